"""Makes the HTML report: one page without scripts, everything from the documents escaped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from celery_app.entries import Entry

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: #c33; font-weight: 600; }
code { overflow-wrap: anywhere; }
details { margin: .5rem 0; }
li { margin-left: calc((var(--level, 1) - 1) * 1rem); }
"""


def render(entries: Sequence[Entry]) -> str:
    """Return the report as one HTML page."""
    broken = sum(len(entry["broken"]) for entry in entries)
    errors = sum(entry["error"] is not None for entry in entries)
    summary = f"{len(entries)} documents, {sum(entry['words'] for entry in entries):,} words, {broken} broken links"
    if errors:
        summary += f", {errors} not readable"
    rows = "\n".join(_row(number, entry) for number, entry in enumerate(entries))
    details = "\n".join(_details(number, entry) for number, entry in enumerate(entries))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Documents</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Documents</h1>
<p>{summary}</p>
<table>
<thead><tr><th>Document</th><th class="number">Words</th><th class="number">Headings</th>
<th class="number">Links</th><th class="number">Broken</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
{details}
</body>
</html>
"""


def write(entries: Sequence[Entry], folder: Path) -> Path:
    """Write the report to ``index.html`` in the folder, which is made if need be; a reader never sees half of it.

    Returns:
        The absolute path of the page.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder.resolve() / "index.html"
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".index-", suffix=".html")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(render(entries))
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def _row(number: int, entry: Entry) -> str:
    name = f'<a href="#d{number}">{escape(entry["name"])}</a>'
    if entry["error"] is not None:
        return f'<tr><td>{name}</td><td class="bad" colspan="4">{escape(entry["error"])}</td></tr>'
    broken = len(entry["broken"])
    counts = (entry["words"], len(entry["headings"]), len(entry["links"]))
    cells = "".join(f'<td class="number">{count:,}</td>' for count in counts)
    return f'<tr><td>{name}</td>{cells}<td class="number{" bad" if broken else ""}">{broken}</td></tr>'


def _details(number: int, entry: Entry) -> str:
    parts = [f'<section id="d{number}">', f"<h2>{escape(entry['name'])}</h2>"]
    if entry["error"] is not None:
        parts.append(f'<p class="bad">{escape(entry["error"])}</p>')
    if entry["broken"]:
        items = (
            f"<code>{escape(link['target'])}</code> (line {link['line']}): {escape(link['reason'])}"
            for link in entry["broken"]
        )
        parts.append(f"<h3>Broken links</h3><ul>{_items(items)}</ul>")
    if entry["headings"]:
        items = (
            f'<span style="--level:{heading["level"]}">{escape(heading["text"])}</span>'
            for heading in entry["headings"]
        )
        parts.append(f"<details><summary>Headings</summary><ul>{_items(items)}</ul></details>")
    parts.append("</section>")
    return "\n".join(parts)


def _items(items: Iterable[str]) -> str:
    return "".join(f"<li>{item}</li>" for item in items)
