"""Checks where the links of a document lead: the file must exist, and the anchor must exist in it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from celery_app.documents import DocumentError, read_document
from celery_app.entries import BrokenLink, Link
from celery_app.markdown import parse

_DOCUMENT_SUFFIXES = (".md", ".markdown")


class LinkChecker:
    """Checks the relative links of one document; each target is read once.

    Links to other hosts and other schemes are left alone. A target that begins with ``/`` counts from ``root``, as
    it does on GitHub.
    """

    def __init__(self, root: Path, document: Path) -> None:
        self._root = root
        self._document = document
        self._anchors: dict[str, set[str] | str] = {}

    def broken(self, links: Iterable[Link]) -> list[BrokenLink]:
        """Return the links that lead nowhere, each with the reason.

        Raises:
            OSError: a target cannot be read right now; worth another try.
        """
        result: list[BrokenLink] = []
        for link in links:
            reason = self._reason(link["target"])
            if reason is not None:
                result.append({"target": link["target"], "line": link["line"], "reason": reason})
        return result

    def _reason(self, target: str) -> str | None:
        try:
            parts = urlsplit(target)
        except ValueError as error:
            return f"not a valid URL: {error}"
        if parts.scheme or parts.netloc:
            return None
        path = self._resolve(parts.path)
        if not os.path.exists(path):  # False for a path with a NUL byte, too
            return "no such file"
        fragment = unquote(parts.fragment)
        # HTML gives "" and "top" to the beginning of every page. Fragments into other files (#L10) are the viewer's.
        if fragment.lower() in ("", "top") or not path.lower().endswith(_DOCUMENT_SUFFIXES):
            return None
        anchors = self._anchors_of(path)
        if isinstance(anchors, str):
            return f"the anchor cannot be checked, the file {anchors}"
        return None if fragment in anchors else f"no heading with the anchor #{fragment}"

    def _resolve(self, path: str) -> str:
        """Return the file a link's path means; bytes that are no UTF-8 are kept, since file names may hold them."""
        if not path:
            return str(self._document)
        decoded = os.fsdecode(unquote_to_bytes(path))
        if decoded.startswith("/"):
            return os.path.normpath(os.path.join(self._root, decoded.lstrip("/")))
        return os.path.normpath(os.path.join(self._document.parent, decoded))

    def _anchors_of(self, path: str) -> set[str] | str:
        if path not in self._anchors:
            try:
                self._anchors[path] = parse(read_document(Path(path)).text).anchors
            except DocumentError as error:
                self._anchors[path] = str(error)
        return self._anchors[path]
