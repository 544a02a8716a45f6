"""The sample application: its logic and its tasks on real files, without a broker."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_app import app, documents, pipeline, report, tasks
from celery_app.documents import DocumentError, FileStillChanging, FolderError, find_documents, read_document
from celery_app.entries import Entry, new_entry
from celery_app.links import LinkChecker
from celery_app.markdown import parse


def write(folder: Path, name: str, content: str | bytes = "# Title\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks run where they are called, and nothing is sent or stored anywhere."""
    settings = {"task_always_eager": True, "broker_url": "memory://", "result_backend": "cache+memory://"}
    before = {name: app.conf[name] for name in settings}
    # What the app keeps from the first use of a setting; monkeypatch puts it back.
    for owner, name, empty in (
        (app, "_pool", None),
        (app.amqp, "_producer_pool", None),
        (app, "_backend_cache", None),
        (app, "_local", threading.local()),
    ):
        monkeypatch.setattr(owner, name, empty)
    app.conf.update(settings)
    yield
    app.conf.update(before)


class TestFindDocuments:
    def test_lists_markdown_and_skips_what_is_not_the_projects_own(self, tmp_path: Path) -> None:
        for name in ("b.md", "docs/A.MD", "c.markdown", "notes.txt"):
            write(tmp_path, name)
        for name in (".venv/x.md", ".git/x.md", "node_modules/p/x.md", "env/x.md"):
            write(tmp_path, name)
        write(tmp_path, "env/pyvenv.cfg", "")
        found, problems = find_documents(tmp_path)
        assert [document.name for document in found] == ["b.md", "c.markdown", "docs/A.MD"]
        assert found[0].size_bytes == len("# Title\n")
        assert problems == []

    def test_missing_folder_and_file_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(FolderError, match=r"there is no folder .*nowhere"):
            find_documents(tmp_path / "nowhere")
        with pytest.raises(FolderError, match="is not a folder"):
            find_documents(write(tmp_path, "file.md"))

    def test_what_cannot_be_read_gets_an_entry(self, tmp_path: Path) -> None:
        (tmp_path / "dangling.md").symlink_to("nowhere")
        os.mkfifo(tmp_path / "pipe.md")
        (tmp_path / "folder.md").mkdir()
        write(tmp_path, os.fsdecode(b"caf\xe9.md"))
        found, problems = find_documents(tmp_path)
        assert found == []
        assert {entry["name"]: entry["error"] for entry in problems} == {
            "dangling.md": "cannot be read: No such file or directory",
            "pipe.md": "not a regular file",
            "caf\ufffd.md": "the file's name is not UTF-8",
        }


class TestReadDocument:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"# A\0B", "NUL bytes"),
            ("# Title".encode("utf-16"), "NUL bytes"),
            (b"# caf\xe9", "not UTF-8: .* at byte 5"),
            (b"x" * (documents.MAX_BYTES + 1), "too large: 2,097,153 bytes"),
        ],
    )
    def test_what_is_no_text_is_refused_with_the_reason(self, tmp_path: Path, content: bytes, message: str) -> None:
        with pytest.raises(DocumentError, match=message):
            read_document(write(tmp_path, "x.md", content))

    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.md")
        for path in (tmp_path, tmp_path / "no.md", tmp_path / "pipe.md", tmp_path / "a\0b.md", tmp_path / ("n" * 300)):
            with pytest.raises(DocumentError):
                read_document(path)

    def test_largest_size_empty_file_and_byte_order_mark_are_fine(self, tmp_path: Path) -> None:
        assert len(read_document(write(tmp_path, "a.md", b"x" * documents.MAX_BYTES)).text) == documents.MAX_BYTES
        assert read_document(write(tmp_path, "b.md", b"")).text == ""
        assert read_document(write(tmp_path, "c.md", b"\xef\xbb\xbf# T")).text == "# T"


class TestParse:
    def test_headings_words_and_links(self) -> None:
        text = (
            "---\ntitle: x\n---\n# One `two`\n\nIt's well-kept, see\n[that](a.md) ![p](i.png).\n\n```\nno = word\n```"
        )
        structure = parse(text)
        assert structure.headings == [{"level": 1, "text": "One two", "slug": "one-two", "line": 4}]
        assert structure.links == [{"target": "a.md", "line": 7}, {"target": "i.png", "line": 7}]
        assert structure.words == len(["One", "two", "It's", "well-kept", "see", "that"])

    @pytest.mark.parametrize(
        ("headings", "slugs"),
        [
            (["Results, tasks & jobs", "C++", "snake_case-and 1.5"], ["results-tasks--jobs", "c", "snake_case-and-15"]),
            (["Größe über alles", "日本語 見出し", "e\u0301"], ["größe-über-alles", "日本語-見出し", "e\u0301"]),
            (["A", "A", "A-1", "a"], ["a", "a-1", "a-1-1", "a-2"]),
            (["[Link](x.md) *and* `code`"], ["link-and-code"]),
        ],
    )
    def test_anchors_are_githubs(self, headings: list[str], slugs: list[str]) -> None:
        structure = parse("\n\n".join(f"## {heading}" for heading in headings))
        assert [heading["slug"] for heading in structure.headings] == slugs

    def test_html_gives_anchors_and_links(self) -> None:
        structure = parse(
            '<div id="top1">\n<a name="here" href="b.md">x</a>\n</div>\n\nA <img src="p.png"> <!-- [x](y) -->'
        )
        assert structure.anchors == {"top1", "here"}
        assert structure.links == [{"target": "b.md", "line": 2}, {"target": "p.png", "line": 5}]

    @pytest.mark.parametrize(
        "text", ["", "<![x", "<div><![x]>", "[" * 5000, "> " * 5000, "<a " * 2000, "---\n", "#\n# #", "[a]: <\n"]
    )
    def test_no_text_is_invalid(self, text: str) -> None:
        assert parse(text).links == []


class TestLinkChecker:
    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("other.md", None),
            ("../README.md#read-me", None),
            ("/README.md", None),
            ("/docs/", None),
            ("other.md?plain=1#part-two", None),
            ("#own-heading", None),
            ("#", None),
            ("#Top", None),
            ("with%20space.md", None),
            ("caf%E9.md", None),
            ("code.py#L10", None),
            ("https://example.com/nowhere", None),
            ("//example.com/nowhere", None),
            ("mailto:a@example.com", None),
            ("", None),
            ("nowhere.md", "no such file"),
            ("/nowhere.md", "no such file"),
            ("%zz%.md", "no such file"),
            ("%00.md", "no such file"),
            ("n" * 5000, "no such file"),
            ("other.md/below", "no such file"),
            ("other.md#nothing", "no heading with the anchor #nothing"),
            ("#%FF", "no heading with the anchor #\ufffd"),
            ("binary.md#x", "the anchor cannot be checked, the file not a text file: it contains NUL bytes"),
            ("http://[broken", "not a valid URL: Invalid IPv6 URL"),
        ],
    )
    def test_each_kind_of_target(self, tmp_path: Path, target: str, reason: str | None) -> None:
        write(tmp_path, "README.md", "# Read me")
        write(tmp_path, "docs/other.md", "# Part one\n\n# Part two")
        for name in ("with space.md", "code.py", os.fsdecode(b"caf\xe9.md")):
            write(tmp_path, f"docs/{name}")
        write(tmp_path, "docs/binary.md", b"\0")
        document = write(tmp_path, "docs/here.md", "# Own heading")
        broken = LinkChecker(tmp_path, document).broken([{"target": target, "line": 3}])
        assert broken == ([] if reason is None else [{"target": target, "line": 3, "reason": reason}])


class TestReport:
    def test_everything_from_documents_is_escaped(self, tmp_path: Path) -> None:
        evil = "<script>alert('x')</script>\"&"
        entry = new_entry("/r", f"{evil}.md")
        entry["headings"] = [{"level": 1, "text": evil, "slug": "s", "line": 1}]
        entry["broken"] = [{"target": evil, "line": 1, "reason": evil}]
        page = report.write([entry, new_entry("/r", "b.md", error=evil)], tmp_path / "new" / "folder")
        assert page == tmp_path / "new" / "folder" / "index.html"
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text
        assert text.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;") == 7
        assert os.listdir(page.parent) == ["index.html"]

    def test_failure_leaves_the_old_report_and_nothing_else(self, tmp_path: Path) -> None:
        report.write([new_entry("/r", "a.md")], tmp_path)
        before = (tmp_path / "index.html").read_bytes()
        lone_surrogate = new_entry("/r", "\ud800.md")
        with pytest.raises(UnicodeEncodeError):
            report.write([lone_surrogate], tmp_path)
        assert (tmp_path / "index.html").read_bytes() == before
        assert os.listdir(tmp_path) == ["index.html"]


@pytest.mark.usefixtures("eager")
class TestTasks:
    def test_add(self) -> None:
        assert tasks.add.delay(2, 3).get(timeout=1) == 5

    def test_the_whole_way_of_a_folder(self, tmp_path: Path) -> None:
        root = str(tmp_path)
        write(tmp_path, "README.md", "# One\n\n[good](b.md#two) [bad](b.md#three)")
        write(tmp_path, "b.md", "# Two")
        write(tmp_path, "bad.md", b"\xff")
        found, _ = find_documents(tmp_path)
        seen: list[str] = []
        patience = pipeline.Patience(deadline=0, check=lambda: None)
        collected = pipeline.gather(root, pipeline.send_collect(root, found), patience, seen.append)
        entries = pipeline.gather(root, pipeline.send_inspect(collected), patience, seen.append)
        assert seen == ["README.md", "b.md", "bad.md"] * 2
        assert [(entry["words"], len(entry["broken"])) for entry in entries] == [(3, 1), (1, 0), (0, 0)]
        assert entries[2]["error"] == "not UTF-8: invalid start byte at byte 0"
        built = tasks.build.delay(entries, str(tmp_path / "report")).get(timeout=1)
        assert built == {
            "path": str(tmp_path / "report" / "index.html"),
            "documents": 3,
            "broken_links": 1,
            "errors": 1,
        }

    def test_recheck_sends_only_what_changed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("same.md", "changed.md", "gone.md", "mended.md"):
            write(tmp_path, name, b"\0" if name == "mended.md" else b"# Title")
        entries = [tasks.collect.run(str(tmp_path), d.name) for d in find_documents(tmp_path)[0]]
        write(tmp_path, "changed.md", "# Longer title")
        write(tmp_path, "mended.md", "# Text now")
        (tmp_path / "gone.md").unlink()
        sent: list[str] = []
        body = tasks.check.run
        monkeypatch.setattr(tasks.check, "run", lambda entry: sent.append(entry["name"]) or body(entry))
        outcome = tasks.recheck.delay(entries).get(timeout=1)
        assert sent == outcome["changed"] == list(outcome["task_ids"]) == ["changed.md", "mended.md"]
        assert outcome["unreadable"] == ["gone.md"]
        assert outcome["unchanged"] == 1

    def test_file_being_written_is_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path, "a.md", "# Half")
        writes = iter([" of", " it"])
        real_fstat = os.fstat

        def fstat_while_somebody_writes(handle: int) -> os.stat_result:
            status = real_fstat(handle)
            with path.open("a") as file:
                file.write(next(writes, ""))
            return status

        monkeypatch.setattr(documents.os, "fstat", fstat_while_somebody_writes)
        result = tasks.collect.apply(args=(str(tmp_path), "a.md"))
        assert path.read_text() == "# Half of it"
        assert result.get()["fingerprint"]["size_bytes"] == len("# Half of it")

    def test_file_that_never_rests_fails_its_task_but_not_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts: list[Path] = []

        def never(path: Path) -> Any:
            attempts.append(path)
            raise FileStillChanging(11, "is being written to", str(path))

        monkeypatch.setattr(tasks, "read_document", never)
        found = [documents.FoundDocument("a.md", 1)]
        results = pipeline.send_collect(str(tmp_path), found)
        patience = pipeline.Patience(deadline=0, check=lambda: None)
        (entry,) = pipeline.gather(str(tmp_path), results, patience, lambda name: None)
        assert len(attempts) == 1 + tasks.collect.max_retries
        assert entry["error"] is not None
        assert entry["error"].startswith(f"{pipeline.TASK_FAILED}FileStillChanging")

    def test_report_folder_that_is_a_file_fails_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        attempts: list[Path] = []
        real = report.write
        monkeypatch.setattr(report, "write", lambda entries, folder: (attempts.append(folder), real(entries, folder)))
        entries: list[Entry] = []
        result = tasks.build.apply(args=(entries, str(write(tmp_path, "file"))))
        assert isinstance(result.result, FileExistsError)
        assert len(attempts) == 1


def test_readme_comes_first_and_small_before_large() -> None:
    names = [("README.md", 10**6), ("docs/readme.md", 10**6), ("a.md", 100), ("b.md", 5000), ("c.md", 10**6)]
    priorities = [pipeline.priority_of(*name) for name in names]
    assert priorities == sorted(set(priorities), reverse=True)
    assert priorities[0] == 9
