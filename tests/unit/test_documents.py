"""The documents say what is so: links, options, commands, columns, methods, paths, code, the Compose file."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import click
import jsonschema
import pytest
import yaml
from flower.options import options as flower_options
from markdown_it import MarkdownIt

from celery_app.documents import find_documents
from celery_app.links import LinkChecker
from celery_app.markdown import parse
from pgbroker import JobQueue
from pgbroker.cli.main import pgbroker as command_group
from pgbroker.monitor.settings import KNOWN as SETTINGS
from pgbroker.option_values import to_text
from pgbroker.options import Options
from pgbroker.postgres import schema
from pgbroker.postgres.rights import runtime_grants

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [document.name for document in find_documents(ROOT)[0]]

#: Commands in console blocks that nobody runs in a test: they install, or need what a test has not.
NOT_RUN = {"make", "pip", "docker"}


class Block(NamedTuple):
    """A fenced code block."""

    document: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks() -> Iterator[Block]:
    for name in DOCUMENTS:
        for token in MarkdownIt("commonmark").parse(read(name)):
            if token.type == "fence":
                assert token.map is not None
                yield Block(name, token.map[0] + 1, token.info, token.content)


def section(name: str, heading: str) -> str:
    """The text below a heading, up to the next heading of the same level."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^{level} |\Z)", read(name), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} has no heading {heading!r}"
    return found[1]


def table(text: str) -> list[dict[str, str]]:
    """The first table of a text: a dict for each row, by its heads, without code marks."""
    lines = re.search(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert lines is not None
    heads, _, *body = [
        re.split(r"\s*\|\s*", line.strip().strip("|").strip().replace("`", "")) for line in lines[0].splitlines()
    ]
    assert all(len(row) == len(heads) for row in body), body
    return [dict(zip(heads, row, strict=True)) for row in body]


# -- links ------------------------------------------------------------------------------------------


def test_there_are_documents() -> None:
    assert {"README.md", "AGENTS.md", "CHANGELOG.md", "docs/DEPLOY.md"} <= set(DOCUMENTS)
    assert len(DOCUMENTS) >= 15


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    links = parse(read(name)).links
    assert LinkChecker(ROOT, ROOT / name).broken(links) == []


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "README.md"])
def test_the_readme_leads_to_every_document(name: str) -> None:
    assert name in {link["target"] for link in parse(read("README.md")).links}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_in_code_marks_exist(name: str) -> None:
    found = re.findall(r"`((?:pgbroker|celery_app|tests|benchmarks|docs)/[\w/.-]*)`", read(name))
    assert [path for path in found if not (ROOT / path).exists()] == []


def test_the_file_map_leads_to_every_folder_of_the_package() -> None:
    mapped = read("docs/ARCHITECTURE.md")
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "pgbroker").glob("*/__init__.py")}
    assert [folder for folder in folders if f"`{folder}/" not in mapped] == []


# -- code -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "python"], ids=lambda b: f"{b[0]}:{b[1]}")
def test_python_parses(block: Block) -> None:
    ast.parse(block.text)


def test_every_block_names_its_language() -> None:
    known = {"console", "mermaid", "python", "sql", "text"}
    assert [block for block in blocks() if block.language not in known] == []


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "console"], ids=lambda b: f"{b[0]}:{b[1]}")
def test_a_console_block_is_run_or_known_to_be_left_out(block: Block) -> None:
    """``APP`` is a placeholder, and variables before a command mean another server than a test has."""
    if "runnable" in block.info.split():
        assert re.search(r"^\$ ", block.text, re.MULTILINE)
        return
    for line in block.text.splitlines():
        assert line.startswith("$ "), "no command"
        first = line.split()[1]
        assert first in NOT_RUN or "-A APP " in line or re.match(r"PGBROKER_TEST_\w+=", first), line


# -- commands ---------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    context = click.Context(command_group)
    found = {name: command_group.get_command(context, name) for name in command_group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def long_options(command: click.Command) -> set[str]:
    """Its options; for a command that hands on what it does not know, Flower's as well."""
    found = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    if command.name == "flower":
        found |= {f"--{name.replace('_', '-')}" for name in flower_options}
    return found


def test_the_commands_in_the_documents_exist_with_their_options() -> None:
    known = commands()
    seen = 0
    for name in DOCUMENTS:
        for call in re.findall(r"celery -A \S+\s+pgbroker ([^`\n]*)", read(name)):
            command, *rest = call.split() or [""]
            if command in ("COMMAND", "…"):
                continue
            assert command in known, f"{name}: {call}"
            used = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert used <= long_options(known[command]), f"{name}: {call}"
            seen += 1
    assert seen > 20


def test_the_reference_has_every_command_and_every_option() -> None:
    text = read("docs/reference/command-line.md")
    listed = {name for row in table(text) for name in re.findall(r"\[(\w+)\]", row["command"])}
    assert listed == set(commands())
    for name, command in commands().items():
        heading = "## pause and resume" if name in ("pause", "resume") else f"## {name}"
        described = set(re.findall(r"--[a-z-]+", section("docs/reference/command-line.md", heading)))
        if name == "flower":  # Flower describes its own
            assert described <= long_options(command)
        else:
            assert long_options(command) - {"--json"} == described, name


def test_every_command_has_an_example_that_is_run() -> None:
    run = {
        match
        for name in DOCUMENTS
        for block in re.findall(r"^```console [^\n]*runnable[^\n]*\n(.*?)^```", read(name), re.MULTILINE | re.DOTALL)
        for match in re.findall(r"^\$ celery -A \w+ pgbroker (\w+)", block, re.MULTILINE)
    }
    assert set(commands()) - run == {"flower"}  # which does not end; tests of its own start it


# -- options, tables, methods -----------------------------------------------------------------------


def test_the_table_of_options_is_that_of_the_code() -> None:
    rows = {row["option"]: row for row in table(section("docs/reference/urls-and-options.md", "## Options"))}
    specs = {spec.name: spec for spec in fields(Options) if spec.metadata}
    assert list(rows) == list(specs)
    for name, spec in specs.items():
        default = "none" if spec.default is None else to_text(spec.default)
        expected = {
            "default": "lease_seconds / 2" if name == "reap_interval" else default,
            "unit": spec.metadata["unit"],
        }
        if "least" in spec.metadata:
            expected["bounds"] = f"{spec.metadata['least']} to {spec.metadata['most']}"
        elif "choices" in spec.metadata:
            expected["bounds"] = ", ".join(spec.metadata["choices"])
        assert {head: rows[name][head] for head in expected} == expected, name
    assert Options(lease_seconds=40).reap_interval == 20


def test_the_table_of_settings_is_that_of_the_code() -> None:
    rows = table(section("docs/reference/urls-and-options.md", "## Retention"))
    assert [(row["setting"], row["default"], row["unit"], row["bounds"]) for row in rows] == [
        (one.name, str(one.default), one.unit, f"{one.least} to {one.most}") for one in SETTINGS.values()
    ]


def test_the_columns_are_those_of_the_view() -> None:
    shared = [row["column"] for row in table(section("docs/reference/tables.md", "## `pgbroker.jobs`"))]
    more = [row["column"] for row in table(section("docs/reference/tables.md", "## `pgbroker.job_log`"))]
    assert shared + more == [column.name for column in schema.job_log.columns]
    assert set(shared) <= {column.name for column in schema.jobs.columns}
    named = re.findall(r"`(\w+)`", section("docs/reference/tables.md", "## `pgbroker.job_events`"))
    assert {column.name for column in schema.job_events.columns} <= set(named)


def test_the_parameters_of_enqueue_are_those_of_the_function() -> None:
    sql = read("pgbroker/postgres/migrations/sql/functions/enqueue.sql")
    header = sql.partition("create or replace function pgbroker.enqueue(")[2].partition(")\nreturns")[0]
    declared = [parameter.split()[:2] for parameter in header.split(",")]
    rows = table(section("docs/reference/tables.md", "## `pgbroker.enqueue`"))
    assert [[row["parameter"], row["type"]] for row in rows] == declared


def test_the_methods_are_those_of_the_class() -> None:
    rows = table(section("docs/reference/python-job-queue.md", "## Methods"))
    documented = {row["method"].partition("(")[0]: row["method"] for row in rows}
    methods = {name: method for name, method in vars(JobQueue).items() if not name.startswith("_") and callable(method)}
    assert set(documented) == set(methods)
    for name, method in methods.items():
        names = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
        call: Any = ast.parse(f"def {documented[name]}: pass").body[0]
        assert [a.arg for a in call.args.args + call.args.kwonlyargs] == names, name


def test_the_grants_are_those_of_check() -> None:
    assert runtime_grants("pgbroker", "proj") in read("docs/DEPLOY.md")


# -- Docker Compose ---------------------------------------------------------------------------------


def test_the_compose_file_is_valid() -> None:
    """By the JSON schema of the Compose specification, which the package check-jsonschema ships."""
    try:
        package = distribution("check-jsonschema")
    except PackageNotFoundError:
        pytest.skip("check-jsonschema is not installed")
    path = package.locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    specification = json.loads(Path(str(path)).read_text("utf-8"))
    jsonschema.validators.validator_for(specification)(specification).validate(compose_file())


def test_the_services_start_this_application_in_order() -> None:
    services = compose_file()["services"]
    assert set(services) == {"postgres", "migrate", "worker", "beat", "flower"}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in set(services) - {"postgres", "migrate"}:
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}, name
        assert "celery -A celery_app " in services[name]["command"], name
    assert services["worker"]["deploy"]["replicas"] > 1
    assert Options.from_url(
        services["worker"]["environment"]["PGBROKER_URL"].replace("${POSTGRES_PASSWORD:-proj}", "proj")
    ) == Options.from_url("pgbroker://proj:proj@postgres:5432/proj", {"auto_migrate": False})


def test_what_the_image_copies_exists() -> None:
    copied = [
        word for line in re.findall(r"^COPY (.*) \S+$", read("Dockerfile"), re.MULTILINE) for word in line.split()
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def compose_file() -> Any:
    return yaml.safe_load(read("docker-compose.yml"))
