"""Reads the structure of a Markdown text: headings with their anchors, words, and links."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token

from celery_app.entries import Heading, Link

_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_WORD = re.compile(r"\w+(?:['’\-.]\w+)*")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:.*\n)*?---[ \t]*(?:\n|\Z)")


@dataclass
class Structure:
    """What a text consists of.

    ``words`` counts words of prose, code in running text included, code blocks and HTML excluded. ``anchors`` holds
    everything a ``#fragment`` may point to: the slugs of the headings, ``id`` and ``name`` attributes in HTML.
    """

    headings: list[Heading] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    words: int = 0


def parse(text: str) -> Structure:
    """Return the structure of a Markdown text (CommonMark and tables); no text is invalid."""
    structure = Structure()
    slugs = Slugs()
    tokens = _PARSER.parse(_without_front_matter(text))
    for index, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 1
        if token.type == "html_block":
            _read_html(token.content, line, structure)
        elif token.type == "inline":
            prose = "".join(_prose(token))
            structure.words += len(_WORD.findall(prose))
            _read_inline(token, line, structure)
            if tokens[index - 1].type == "heading_open":
                slug = slugs.add(prose)
                level = int(tokens[index - 1].tag[1:])
                structure.headings.append({"level": level, "text": prose, "slug": slug, "line": line})
                structure.anchors.add(slug)
    return structure


class Slugs:
    """Makes the anchors of one document's headings, each of them once.

    The rules are GitHub's: lower case, only letters, marks, digits, ``_`` and ``-`` stay, a space becomes a hyphen,
    and a repeated heading gets ``-1``, ``-2`` ... (https://github.com/Flet/github-slugger).
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, text: str) -> str:
        """Return the anchor of the next heading."""
        slug = base = "".join(_slug_character(character) for character in text.strip().lower())
        while slug in self._seen:
            self._seen[base] += 1
            slug = f"{base}-{self._seen[base]}"
        self._seen[slug] = 0
        return slug


def _slug_character(character: str) -> str:
    if character == " ":
        return "-"
    category = unicodedata.category(character)
    return character if character == "-" or category[0] in "LM" or category in ("Nd", "Nl", "Pc") else ""


def _without_front_matter(text: str) -> str:
    """Blank out YAML front matter, which CommonMark would take for a heading; the line numbers stay."""
    match = _FRONT_MATTER.match(text)
    return text if match is None else "\n" * match.group().count("\n") + text[match.end() :]


def _prose(token: Token) -> Iterator[str]:
    for child in token.children or []:
        if child.type in ("text", "code_inline"):
            yield child.content
        elif child.type in ("softbreak", "hardbreak"):
            yield " "


def _read_inline(token: Token, line: int, structure: Structure) -> None:
    for child in token.children or []:
        if child.type in ("softbreak", "hardbreak"):
            line += 1
        elif child.type == "link_open":
            structure.links.append({"target": str(child.attrGet("href") or ""), "line": line})
        elif child.type == "image":
            structure.links.append({"target": str(child.attrGet("src") or ""), "line": line})
        elif child.type == "html_inline":
            _read_html(child.content, line, structure)


def _read_html(html: str, line: int, structure: Structure) -> None:
    reader = _HtmlReader(line, structure)
    try:
        reader.feed(html)
        reader.close()
    except AssertionError:  # how some versions of html.parser answer to a malformed declaration such as "<![x"
        return


class _HtmlReader(HTMLParser):
    """Finds the anchors, links and images in a piece of HTML that begins on the given line."""

    def __init__(self, line: int, structure: Structure) -> None:
        super().__init__()
        self._first_line = line
        self._structure = structure

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag's attributes define or point to."""
        values = dict(attrs)
        self._structure.anchors.update(value for key in ("id", "name") if (value := values.get(key)))
        target = values.get({"a": "href", "img": "src"}.get(tag, ""))
        if target:
            line = self._first_line + self.getpos()[0] - 1
            self._structure.links.append({"target": target, "line": line})
