"""URLs and transport options: what they become, what is refused, and that no password ever shows."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import re
import ssl
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kombu.transport
import psycopg2.extensions
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgbroker import foreign_options, libpq
from pgbroker.errors import OptionError
from pgbroker.options import Options, sanitize

SECRET = "S3cr3t-Wort"


@pytest.fixture(autouse=True)
def _no_pg_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PG"):
            monkeypatch.delenv(name)


@pytest.fixture
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_options, "_warned", set())


def words(url: str, overrides: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """Give the libpq words of a URL without those that we add."""
    found = dict(Options.from_url(url, overrides, **more).libpq)
    return {name: value for name, value in found.items() if libpq.DEFAULTS.get(name) != value}


def refusal(*args: Any, **kwargs: Any) -> str:
    """Give the message with which the arguments are refused, as a log would show it."""
    with pytest.raises(OptionError) as caught:
        Options.from_url(*args, **kwargs)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        "rest",
        [
            "",
            "/",
            "h",
            "h/",
            "h/db",
            "h:5433/db",
            "u@h/db",
            "u:p@h/db",
            "u:p@/db",
            ":p@h/db",
            "u:@h/db",
            "@h/db",
            "u:p:q@h/db",
            "h1:5432,h2:5433/db",
            "h1,h2:5433/db",
            "h1:5432,h2/db",
            "[::1]/db",
            "[::1]:5433/db",
            "[fe80::1%25eth0]:5433,h2:1/db",
            "%2Frun%2Fpostgresql/db",
            "u@%2Frun%2Fpostgresql:5433/db",
            "/db?host=/run/postgresql",
            "/?host=/run/postgresql&dbname=db&user=u",
            "h/db?host=other",
            "h/db?sslmode=verify-full&sslrootcert=/etc/ca.pem&target_session_attrs=read-write",
            "h/db?options=-c%20statement_timeout%3D5s",
            "h/db?application_name=a+b",
            "h/db?application_name=",
            "h?application_name=x",
            "h/db?ssl=true",
            "u%20%40:p%2F%3A%25@h%C3%A4/d%2Fb%3F",
            "ü:ß@h/ж",
        ],
    )
    def test_agrees_with_libpq(self, rest: str) -> None:
        expected = {
            name: value for name, value in psycopg2.extensions.parse_dsn(f"postgresql://{rest}").items() if value
        }
        assert words(f"pgbroker://{rest}") == expected
        assert words(f"pgbroker+postgresql://{rest}") == expected

    def test_spaces_around_plus_and_case_of_scheme(self) -> None:
        assert words("PGBROKER://h/db") == {"host": "h", "dbname": "db"}

    def test_ports_are_given_to_each_host(self) -> None:
        assert words("pgbroker://a,b/db?port=5433")["port"] == "5433,5433"
        assert "port" not in words("pgbroker://a,b/db")

    def test_query_wins_over_authority_as_in_libpq(self) -> None:
        assert words("pgbroker://h:1/db?host=x&port=2&dbname=y") == {"host": "x", "port": "2", "dbname": "y"}

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("", "begins with pgbroker://"),
            ("pgbroker", "begins with pgbroker://"),
            ("postgresql://h/db", "put pgbroker+ before"),
            ("redis://h/0", "begins with pgbroker://"),
            ("pgbroker://h/db#x", "unencoded #"),
            ("pgbroker://u:p@x@h/db", "%40"),
            ("pgbroker://u:1/x@h/db", "%40"),
            ("pgbroker://u:1?x@h/db", "%40"),
            ("pgbroker://h/a/b", "unencoded /"),
            ("pgbroker://h/d%b", "percent escape"),
            ("pgbroker://h/d%", "percent escape"),
            ("pgbroker://u%ZZ@h/", "percent escape"),
            ("pgbroker://h/d%FF", "UTF-8"),
            ("pgbroker://h/d%00", "NUL"),
            ("pgbroker://h/db\n", "control character"),
            (" pgbroker://h/db", "white space"),
            ("pgbroker://h/a;pgbroker://g/a", "one URL is expected"),
            ("pgbroker://h:x/db", "port"),
            ("pgbroker://h:0/db", "1 to 65535"),
            ("pgbroker://h:65536/db", "1 to 65535"),
            ("pgbroker://h:-1/db", "1 to 65535"),
            ("pgbroker://h:５/db", "1 to 65535"),
            ("pgbroker://h/db?port=x", "1 to 65535"),
            ("pgbroker://a,b,c/db?port=1,2", "2 ports do not fit 3 hosts"),
            ("pgbroker://::1/db", "brackets"),
            ("pgbroker://[::1/db", "brackets"),
            ("pgbroker://[]/db", "brackets"),
            ("pgbroker://[::1]x/db", "brackets"),
            ("pgbroker://h/db?schema", "name=value"),
            ("pgbroker://h/db?=x", "name=value"),
            ("pgbroker://h/db?schema=a&&notify=1", "name=value"),
            ("pgbroker://h/db?schema=a&schema=b", "'schema' stands twice"),
            ("pgbroker://h/db?sslmode=a&ssl%6Dode=b", "'sslmode' stands twice"),
        ],
    )
    def test_refused(self, url: str, says: str) -> None:
        assert says in refusal(url)

    def test_refuses_no_text(self) -> None:
        assert "NoneType" in refusal(None)
        assert "bytes" in refusal(b"pgbroker://h/db")


class TestEmbedded:
    def test_default_folder_lies_in_the_current_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for url in ("pgbroker+embedded://", "pgbroker+embedded:///", "pgbroker+embedded://?schema=pgbroker"):
            assert Options.from_url(url).embedded_dir == tmp_path.resolve() / ".pgbroker"

    def test_folder_is_decoded_and_resolved(self, tmp_path: Path) -> None:
        target = tmp_path / "a b%ü?"
        target.mkdir()
        link = tmp_path / "link"
        link.symlink_to(target)
        by_name = Options.from_url(f"pgbroker+embedded://{quote(str(target))}")
        by_link = Options.from_url(f"pgbroker+embedded://{quote(str(link))}/../link/")
        assert by_name.embedded_dir == target.resolve()
        assert by_name == by_link
        assert by_name.same_database(by_link)

    @pytest.mark.parametrize("authority", ["h", "h:5432", "u@h", f"u:{SECRET}@", "."])
    def test_host_and_credentials_are_refused(self, authority: str) -> None:
        message = refusal(f"pgbroker+embedded://{authority}/data")
        assert "three slashes" in message
        assert SECRET not in message

    @pytest.mark.parametrize("name", sorted(libpq.TARGET_WORDS))
    def test_place_of_the_server_is_refused(self, name: str) -> None:
        assert f"{name!r}" in refusal(f"pgbroker+embedded:///data?{name}=1")
        assert f"{name!r}" in refusal("pgbroker+embedded:///data", {name: "1"})

    def test_caller_may_add_words(self) -> None:
        options = Options.from_url("pgbroker+embedded:///data?application_name=x", extra_libpq={"host": "/sock"})
        assert dict(options.libpq)["host"] == "/sock"
        assert dict(options.libpq)["application_name"] == "x"

    def test_is_none_for_a_server(self) -> None:
        assert Options.from_url("pgbroker://h/db").embedded_dir is None


class TestDefaults:
    def test_defaults(self) -> None:
        options = Options.from_url("pgbroker://")
        assert {name: getattr(options, name) for name in OWN} == {
            "schema": "pgbroker",
            "auto_migrate": True,
            "lease_seconds": 60.0,
            "reap_interval": 30.0,
            "max_attempts": 5,
            "max_requeues": None,
            "strict_start": False,
            "claim_when_free": False,
            "notify": True,
            "listen_url": None,
            "poll_interval": 5.0,
            "queue_order": "fair",
            "priority_order": "high_first",
            "dedupe_wait_seconds": 5.0,
            "batch_max": 100_000,
        }
        assert dict(options.libpq) == libpq.DEFAULTS

    def test_reap_interval_follows_the_lease(self) -> None:
        assert Options.from_url("pgbroker://?lease_seconds=10").reap_interval == 5
        assert Options.from_url("pgbroker://?lease_seconds=10&reap_interval=7").reap_interval == 7

    def test_user_wins_over_our_libpq_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = dict(Options.from_url("pgbroker://h/db?connect_timeout=3", {"keepalives_idle": 5}).libpq)
        assert (found["connect_timeout"], found["keepalives_idle"], found["keepalives"]) == ("3", "5", "1")
        monkeypatch.setenv("PGAPPNAME", "mine")
        monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
        assert not {"application_name", "connect_timeout"} & dict(Options.from_url("pgbroker://h/db").libpq).keys()

    def test_every_option_is_described(self) -> None:
        for spec in dataclasses.fields(Options):
            if spec.name in OWN:
                assert spec.metadata["unit"]
                assert spec.metadata["meaning"]


OWN = [spec.name for spec in dataclasses.fields(Options) if spec.name not in {"libpq", "embedded_dir"}]


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            *[("notify", text, False) for text in ("false", "0", "no", "off", "FALSE", "Off")],
            *[("strict_start", text, True) for text in ("true", "1", "yes", "on", "TRUE", "On")],
            ("lease_seconds", "2", 2.0),
            ("lease_seconds", "2.5", 2.5),
            ("poll_interval", "0.1", 0.1),
            ("dedupe_wait_seconds", "0", 0.0),
            ("max_attempts", "1", 1),
            ("max_requeues", "0", 0),
            ("max_requeues", "none", None),
            ("max_requeues", "", None),
            ("batch_max", "7", 7),
            ("schema", "jobs_2", "jobs_2"),
            ("schema", "Jobs of 'the' \"shop\" 🐘", "Jobs of 'the' \"shop\" 🐘"),
            ("queue_order", "strict", "strict"),
            ("priority_order", "low_first", "low_first"),
            ("listen_url", "", None),
        ],
    )
    def test_texts(self, name: str, value: str, expected: object) -> None:
        for options in (
            Options.from_url(f"pgbroker://h/db?{name}={value}"),
            Options.from_url("pgbroker://h/db", {name: value}),
            Options(**{name: value}),  # type: ignore[arg-type]
        ):
            assert getattr(options, name) == expected
            assert type(getattr(options, name)) is type(expected)

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("notify", False, False),
            ("notify", 0, False),
            ("lease_seconds", 10, 10.0),
            ("lease_seconds", 10.5, 10.5),
            ("max_attempts", 3.0, 3),
            ("max_requeues", None, None),
            ("lease_seconds", None, 60.0),
            ("schema", None, "pgbroker"),
        ],
    )
    def test_typed_values(self, name: str, value: object, expected: object) -> None:
        options = Options.from_url("pgbroker://h/db", {name: value})
        assert getattr(options, name) == expected
        assert type(getattr(options, name)) is type(expected)

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("notify", "maybe", "true or false"),
            ("notify", 2, "true or false"),
            ("notify", 1.0, "true or false"),
            ("notify", "", "true or false"),
            ("lease_seconds", "1.9", "from 2 to 604800 (unit: s"),
            ("lease_seconds", 1, "from 2 to 604800 (unit: s"),
            ("lease_seconds", -5, "from 2 to"),
            ("lease_seconds", "nan", "from 2 to"),
            ("lease_seconds", "inf", "from 2 to"),
            ("lease_seconds", True, "from 2 to"),
            ("lease_seconds", "1m", "from 2 to"),
            ("lease_seconds", [], "from 2 to"),
            ("reap_interval", 0, "from 0.1 to"),
            ("poll_interval", 0, "from 0.1 to 3600"),
            ("dedupe_wait_seconds", -1, "from 0 to 3600"),
            ("max_attempts", 0, "whole number from 1 to 32767 (unit: count"),
            ("max_attempts", 1.5, "whole number"),
            ("max_attempts", 10**400, "whole number"),
            ("max_attempts", "9" * 500, "whole number"),
            ("max_requeues", -1, "from 0 to"),
            ("batch_max", 0, "from 1 to"),
            ("queue_order", "random", "one of fair, strict"),
            ("priority_order", "", "one of high_first, low_first"),
            ("schema", "", "1 to 63"),
            ("schema", "a" * 64, "1 to 63"),
            ("schema", "pg_jobs", "pg_..."),
            ("schema", "ab\n", "control characters"),
            ("schema", 5, "text, not a int"),
        ],
    )
    def test_refused(self, name: str, value: Any, says: str) -> None:
        message = refusal("pgbroker://h/db", {name: value})
        assert name in message
        assert says in message
        with pytest.raises(OptionError):
            Options(**{name: value})

    def test_dict_wins_over_query(self) -> None:
        url = "pgbroker://h/db?lease_seconds=10&sslmode=require&schema=a"
        overrides = {"lease_seconds": 20, "sslmode": "disable", "schema": None}
        options = Options.from_url(url, overrides)
        assert (options.lease_seconds, options.schema) == (20, "pgbroker")
        assert dict(options.libpq)["sslmode"] == "disable"

    def test_the_dict_is_left_alone(self) -> None:
        overrides = {"lease_seconds": "20", "visibility_timeout": 5, "max_retries": 3}
        before = dict(overrides)
        Options.from_url("pgbroker://h/db", overrides)
        assert overrides == before


class TestNames:
    def test_libpq_words_pass(self) -> None:
        given = {"keepalives": False, "connect_timeout": 7, "sslmode": "require", "options": "-c a=b", "sslcert": None}
        assert words("pgbroker://h/db", given) == {
            "host": "h",
            "dbname": "db",
            "keepalives": "0",
            "connect_timeout": "7",
            "sslmode": "require",
            "options": "-c a=b",
        }

    @pytest.mark.parametrize("name", sorted(libpq.KEYWORDS - libpq.SECRET_WORDS - {"port"}))
    def test_every_libpq_word_passes(self, name: str) -> None:
        assert words(f"pgbroker://?{name}=x") == {name: "x"}

    @pytest.mark.parametrize("value", [[], {}, b"x", "a\0b"])
    def test_libpq_words_are_texts(self, value: object) -> None:
        assert "'sslmode' must be a text" in refusal("pgbroker://h/db", {"sslmode": value})

    @pytest.mark.parametrize("name", sorted(libpq.SECRET_WORDS))
    def test_secrets_are_refused_where_celery_prints_them(self, name: str) -> None:
        for message in (refusal(f"pgbroker://h/db?{name}={SECRET}"), refusal("pgbroker://h/db", {name: SECRET})):
            assert f"{name!r} is refused in the" in message
            assert SECRET not in message

    def test_password_refusal_says_where_it_belongs(self) -> None:
        message = refusal(f"pgbroker://h/db?password={SECRET}")
        assert "query string" in message
        assert "pgbroker://USER:PASSWORD@HOST/DB" in message
        assert "passfile" in message
        assert "PGPASSWORD" in message

    def test_passfile_passes(self) -> None:
        assert words("pgbroker://h/db?passfile=/etc/pgpass")["passfile"] == "/etc/pgpass"

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("lease_second", "lease_seconds"),
            ("leaseseconds", "lease_seconds"),
            ("shema", "schema"),
            ("ssl_mode", "sslmode"),
            ("queue-order", "queue_order"),
        ],
    )
    def test_unknown_names_the_nearest(self, name: str, near: str) -> None:
        assert f"unknown option {name!r} in the query string; did you mean {near!r}?" in refusal(
            f"pgbroker://h/db?{name}={SECRET}"
        )
        message = refusal("pgbroker://h/db", {name: SECRET})
        assert f"unknown option {name!r} in the transport options; did you mean {near!r}?" in message
        assert SECRET not in message

    def test_unknown_near_a_secret_says_where_that_belongs(self) -> None:
        message = refusal(f"pgbroker://h/db?pasword={SECRET}")
        assert message.startswith("unknown option 'pasword' in the query string; 'password' is refused")
        assert SECRET not in message

    def test_unknown_without_a_near_one_lists_ours(self) -> None:
        assert "pgbroker's own are schema, auto_migrate" in refusal("pgbroker://h/db?xyzzyxyzzy=1")
        assert "unknown option 5 " in refusal("pgbroker://h/db", {5: 1})

    @pytest.mark.usefixtures("_fresh_warnings")
    def test_keys_of_kombu_and_celery_pass_silently(self, caplog: pytest.LogCaptureFixture) -> None:
        policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1, "retry_errors": None}
        more = {"errback": print, "callback": print, "connect_retries_timeout": 4, "retry_policy": policy}
        assert Options.from_url("pgbroker://h/db", policy | more) == Options.from_url("pgbroker://h/db")
        assert caplog.records == []

    @pytest.mark.usefixtures("_fresh_warnings")
    @pytest.mark.parametrize(
        ("name", "ours"),
        [
            ("visibility_timeout", "lease_seconds"),
            ("polling_interval", "poll_interval"),
            ("priority_steps", "priority_order"),
            ("queue_order_strategy", "queue_order"),
            ("global_keyprefix", "schema"),
            ("fanout_prefix", "schema"),
            ("socket_connect_timeout", "connect_timeout"),
            ("region", ""),
        ],
    )
    def test_options_of_other_transports_warn_once(
        self, name: str, ours: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            assert Options.from_url("pgbroker://h/db", {name: object()}) == Options.from_url("pgbroker://h/db")
            Options.from_url(f"pgbroker://h/db?{name}=1")
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"{name!r}" in record.getMessage()
        assert ours in record.getMessage()

    def test_hints_name_options_that_exist(self) -> None:
        for hint in foreign_options.IGNORED.values():
            for name in re.findall(r"\b(?:use|see) (?:libpq's )?([a-z]+_[a-z_]+)", hint):
                assert name in {*OWN, *libpq.KEYWORDS} or name.startswith(("broker_", "worker_")), hint

    def test_every_option_kombu_reads_is_known(self) -> None:
        folder = Path(kombu.transport.__file__).parent
        found: set[str] = set()
        for path in [*folder.rglob("*.py"), folder.parent / "connection.py"]:
            text = path.read_text()
            found |= set(re.findall(r"transport_(?:options|opts)(?:\.get\(|\[)\s*['\"]([^'\"]+)['\"]", text))
            found |= set(re.findall(r"'(\w+)' in transport_opts", text))
            for block in re.findall(r"from_transport_options = .*?\n\n", text, re.DOTALL):
                found |= set(re.findall(r"'(\w+)'", block))
        assert len(found) > 60
        ssl_of_qpid = {"ssl_keyfile", "ssl_certfile", "ssl_trustfile", "ssl_skip_hostname_check"}  # it writes these
        known = {*OWN, *libpq.KEYWORDS, *foreign_options.PASSED_BY, *foreign_options.IGNORED, *ssl_of_qpid}
        assert found <= known


class TestTls:
    @pytest.mark.parametrize(
        ("setting", "expected"),
        [
            (None, {}),
            (False, {}),
            ({}, {}),
            (True, {"sslmode": "require"}),
            ({"ca_certs": "/ca"}, {"sslmode": "verify-full", "sslrootcert": "/ca"}),
            ({"ssl_ca_certs": "/ca"}, {"sslmode": "verify-full", "sslrootcert": "/ca"}),
            ({"sslrootcert": "/ca"}, {"sslmode": "verify-full", "sslrootcert": "/ca"}),
            ({"ca_certs": "/ca", "cert_reqs": ssl.CERT_NONE}, {"sslmode": "require", "sslrootcert": "/ca"}),
            ({"ca_certs": "/ca", "cert_reqs": ssl.CERT_OPTIONAL}, {"sslmode": "verify-ca", "sslrootcert": "/ca"}),
            ({"ca_certs": "/ca", "cert_reqs": ssl.CERT_REQUIRED}, {"sslmode": "verify-full", "sslrootcert": "/ca"}),
            ({"ssl_cert_reqs": "CERT_OPTIONAL"}, {"sslmode": "verify-ca"}),
            ({"cert_reqs": "required"}, {"sslmode": "verify-full"}),
            ({"cert_reqs": 0}, {"sslmode": "require"}),
            ({"cert_reqs": None, "ca_certs": None}, {"sslmode": "require"}),
            (
                {"certfile": "/c", "keyfile": "/k"},
                {"sslmode": "require", "sslcert": "/c", "sslkey": "/k"},
            ),
            ({"sslmode": "verify-ca", "ca_certs": "/ca"}, {"sslmode": "verify-ca", "sslrootcert": "/ca"}),
            ({"sslmode": "allow", "cert_reqs": ssl.CERT_REQUIRED}, {"sslmode": "allow"}),
            (
                {"ssl_min_protocol_version": "TLSv1.3"},
                {"sslmode": "require", "ssl_min_protocol_version": "TLSv1.3"},
            ),
        ],
    )
    def test_mapping(self, setting: object, expected: dict[str, str]) -> None:
        assert words("pgbroker://", ssl=setting) == expected

    def test_url_and_options_win(self) -> None:
        assert words("pgbroker://?sslmode=verify-ca", ssl=True) == {"sslmode": "verify-ca"}
        assert words("pgbroker://", {"sslmode": "prefer"}, ssl=True) == {"sslmode": "prefer"}

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("ssl=true", "require"),
            ("ssl=TRUE", "require"),
            ("ssl=true&sslmode=verify-full", "verify-full"),
            ("sslmode=verify-full&ssl=true", "verify-full"),
        ],
    )
    def test_jdbc_word_never_weakens(self, query: str, expected: str) -> None:
        assert words(f"pgbroker://?{query}") == {"sslmode": expected}

    @pytest.mark.parametrize("name", ["ciphers", "server_hostname", "check_hostname", "ssl_version", "host"])
    def test_others_are_refused_by_name(self, name: str) -> None:
        assert f"broker_use_ssl: {name!r} has no equal" in refusal("pgbroker://h/db", ssl={name: "x"})

    @pytest.mark.parametrize("value", ["maybe", 7, []])
    def test_bad_cert_reqs(self, value: object) -> None:
        assert "CERT_REQUIRED" in refusal("pgbroker://h/db", ssl={"cert_reqs": value})

    def test_bad_setting(self) -> None:
        assert "must be true, false or a dict" in refusal("pgbroker://h/db", ssl="yes")
        message = refusal("pgbroker://h/db", ssl={"sslpassword": SECRET})
        assert "sslpassword" in message
        assert SECRET not in message


class TestListen:
    MAIN = f"pgbroker://u:{SECRET}@pooler:6432/db?sslmode=require&hostaddr=127.0.0.1&schema=s"

    def listen(self, url: str, main: str = MAIN) -> Options:
        options = Options.from_url(main, {"listen_url": url}).listen_options()
        assert options is not None
        return options

    def test_none_without_listen_url(self) -> None:
        assert Options.from_url(self.MAIN).listen_options() is None

    def test_takes_the_rest_from_the_main_url(self) -> None:
        options = self.listen("pgbroker://direct")
        found = dict(options.libpq)
        assert (options.schema, options.listen_url) == ("s", None)
        assert (found["host"], found["user"], found["password"], found["dbname"]) == ("direct", "u", SECRET, "db")
        assert found["sslmode"] == "require"
        assert not {"port", "hostaddr"} & found.keys()

    def test_names_what_differs(self) -> None:
        found = dict(self.listen("pgbroker://direct:5433/other?sslmode=disable&application_name=l").libpq)
        assert (found["host"], found["port"], found["dbname"]) == ("direct", "5433", "other")
        assert (found["sslmode"], found["application_name"]) == ("disable", "l")

    def test_another_port_of_the_same_host(self) -> None:
        found = dict(self.listen("pgbroker://:5432").libpq)
        assert (found["host"], found["port"], found["hostaddr"]) == ("pooler", "5432", "127.0.0.1")

    def test_password_stays_with_its_user(self) -> None:
        assert dict(self.listen("pgbroker://u@direct").libpq)["password"] == SECRET
        assert "password" not in dict(self.listen("pgbroker://v@direct").libpq)

    def test_may_stand_in_the_query_string(self) -> None:
        options = Options.from_url(f"{self.MAIN}&listen_url={quote('pgbroker://direct:5432/', safe='')}")
        assert options.listen_options() == self.listen("pgbroker://direct:5432/")

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            (f"pgbroker://u:{SECRET}@direct", "'password' is refused in listen_url"),
            (f"pgbroker://direct?password={SECRET}", "'password' is refused in the query string of listen_url"),
            ("pgbroker+embedded:///data", "embedded server has none"),
            ("pgbroker://direct?schema=x", "put 'schema' into the main URL"),
            ("postgresql://direct", "listen_url: a broker URL begins with"),
            (f"pgbroker://u:{SECRET}/db", "listen_url: the URL has a port"),
        ],
    )
    def test_refused(self, url: str, says: str) -> None:
        message = refusal(self.MAIN, {"listen_url": url})
        assert says in message
        assert SECRET not in message

    def test_refused_beside_an_embedded_server(self) -> None:
        assert "embedded server has none" in refusal("pgbroker+embedded:///data", {"listen_url": "pgbroker://h"})


class TestIdentity:
    def test_hash_equality_and_pickle(self) -> None:
        one = Options.from_url(f"pgbroker://u:{SECRET}@h/db?schema=s&lease_seconds=10")
        same = Options.from_url(f"pgbroker://u:{SECRET}@h/db", {"lease_seconds": 10.0, "schema": "s"})
        assert one == same
        assert {one: 1}[same] == 1
        assert one != Options.from_url(f"pgbroker://u:{SECRET}2@h/db?schema=s&lease_seconds=10")
        assert pickle.loads(pickle.dumps(one)) == one

    def test_frozen(self) -> None:
        options = Options.from_url("pgbroker://h/db")
        with pytest.raises(dataclasses.FrozenInstanceError):
            options.schema = "x"  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("one", "two", "same"),
        [
            ("pgbroker://h/db", "pgbroker://u:p@H:5432/db?sslmode=require&notify=0", True),
            ("pgbroker://h/db", "pgbroker+postgresql://h/db", True),
            ("pgbroker://u@h", "pgbroker://h/u", True),
            ("pgbroker:///db?host=/run/pg", "pgbroker://%2Frun%2Fpg/db", True),
            ("pgbroker://a,b/db", "pgbroker://a:5432,b:5432/db", True),
            ("pgbroker://h/db", "pgbroker://g/db", False),
            ("pgbroker://h/db", "pgbroker://h:5433/db", False),
            ("pgbroker://h/db", "pgbroker://h/other", False),
            ("pgbroker://h/db", "pgbroker://h/db?schema=x", False),
            ("pgbroker:///db?host=/run/pg", "pgbroker:///db?host=/run/PG", False),
            ("pgbroker+embedded:///a", "pgbroker+embedded:///a?notify=0", True),
            ("pgbroker+embedded:///a", "pgbroker+embedded:///b", False),
            ("pgbroker+embedded:///a", "pgbroker+embedded:///a?schema=x", False),
            ("pgbroker+embedded:///a", "pgbroker:///a", False),
        ],
    )
    def test_same_database(self, one: str, two: str, same: bool) -> None:
        first, second = Options.from_url(one), Options.from_url(two)
        assert first.same_database(second) is same
        assert second.same_database(first) is same

    def test_same_database_reads_the_variables_of_libpq(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGHOST", "h")
        monkeypatch.setenv("PGPORT", "5433")
        monkeypatch.setenv("PGDATABASE", "db")
        assert Options.from_url("pgbroker://").same_database(Options.from_url("pgbroker://h:5433/db"))
        assert Options.from_url("pgbroker://").same_database(Options.from_url("pgbroker://h"))
        assert not Options.from_url("pgbroker://").same_database(Options.from_url("pgbroker://h:5432"))
        assert not Options.from_url("pgbroker://").same_database(Options.from_url("pgbroker://g"))


class TestSafeUrl:
    @pytest.mark.parametrize(
        ("url", "safe"),
        [
            ("pgbroker://", "pgbroker:///"),
            (f"pgbroker+postgresql://u:{SECRET}@h:5433/db", "pgbroker://u:**@h:5433/db"),
            (f"pgbroker://:{SECRET}@h/db", "pgbroker://:**@h/db"),
            ("pgbroker://u@h1:5432,h2/db", "pgbroker://u@h1:5432,h2/db"),
            ("pgbroker://a,b/db?port=1", "pgbroker://a:1,b:1/db"),
            ("pgbroker:///db?host=/run/pg", "pgbroker://%2Frun%2Fpg/db"),
            ("pgbroker://[::1]:5432/db", "pgbroker://[::1]:5432/db"),
            ("pgbroker://[fe80::1%25eth0]/db", "pgbroker://[fe80::1%25eth0]/db"),
            ("pgbroker://h/d%2Fb%C3%BC", "pgbroker://h/d%2Fb%C3%BC"),
            (
                "pgbroker://h/db?sslmode=require&connect_timeout=10&notify=off",
                "pgbroker://h/db?sslmode=require&notify=false",
            ),
            ("pgbroker://h/db?lease_seconds=20&reap_interval=10", "pgbroker://h/db?lease_seconds=20"),
            (
                "pgbroker://h/db?lease_seconds=20.5&reap_interval=4",
                "pgbroker://h/db?lease_seconds=20.5&reap_interval=4",
            ),
            ("pgbroker+embedded:///a%20b?schema=x", "pgbroker+embedded:///a%20b?schema=x"),
            ("pgbroker://h/db?listen_url=pgbroker%3A%2F%2Fg", "pgbroker://h/db?listen_url=pgbroker%3A//g"),
        ],
    )
    def test_canonical(self, url: str, safe: str) -> None:
        options = Options.from_url(url)
        assert options.safe_url == safe
        assert str(options) == repr(options) == f"<Options {safe}>"
        assert Options.from_url(safe).safe_url == safe
        if SECRET not in url:
            assert Options.from_url(safe) == options

    def test_no_secret_of_the_caller_shows(self) -> None:
        options = Options.from_url("pgbroker://h/db", extra_libpq=dict.fromkeys(libpq.SECRET_WORDS, SECRET))
        assert dict(options.libpq)["sslpassword"] == SECRET
        assert SECRET not in options.safe_url + repr(options) + str(options)


class TestSanitize:
    @pytest.mark.parametrize(
        ("url", "clean"),
        [
            (f"pgbroker://u:{SECRET}@h:5432/db", "pgbroker://u:**@h:5432/db"),
            (f"pgbroker://:{SECRET}@h/db", "pgbroker://:**@h/db"),
            (
                f"pgbroker://u:{SECRET}@h1:5432,[::1]:5433/db?sslmode=require",
                "pgbroker://u:**@h1:5432,[::1]:5433/db?sslmode=require",
            ),
            (f"pgbroker://u:{SECRET}@a/d;pgbroker://v:{SECRET}@b/d", "pgbroker://u:**@a/d;pgbroker://v:**@b/d"),
            (f"pgbroker://u@h/db?password={SECRET}&x=1", "pgbroker://u@h/db?password=**&x=1"),
            (f"pgbroker://h/db?p%61ssword={SECRET}", "pgbroker://h/db?p%61ssword=**"),
            (f"pgbroker://h/db?PASSWORD={SECRET}", "pgbroker://h/db?PASSWORD=**"),
            (f"pgbroker://h/db?sslpassword={SECRET}", "pgbroker://h/db?sslpassword=**"),
            (f"pgbroker://h/db?passwd={SECRET}", "pgbroker://h/db?passwd=**"),
            ("pgbroker://h/db?passfile=/a", "pgbroker://h/db?passfile=/a"),
            (f"pgbroker://u:{SECRET}/x?y#z@h/db", "pgbroker://u:**@h/db"),
            (f"pgbroker://u:a@{SECRET}@h/db", "pgbroker://u:**@h/db"),
            (f"pgbroker://u:a;{SECRET}@h/db", "pgbroker://u:**@h/db"),
            (f"pgbroker://u:{SECRET}/db", "pgbroker://u:**/db"),
            (f"u:{SECRET}@h/db", "u:**@h/db"),
            (f"embedded://u:{SECRET}@/db", "embedded://u:**@/db"),
            (
                f"pgbroker://h/db?listen_url={quote(f'pgbroker://u:{SECRET}@g', safe='')}",
                "pgbroker://h/db?listen_url=pgbroker%3A%2F%2Fu%3A**%40g",
            ),
            ("pgbroker+embedded:///a/b?schema=x", "pgbroker+embedded:///a/b?schema=x"),
            ("pgbroker://", "pgbroker://"),
            ("pgbroker://h:5432", "pgbroker://h:5432"),
            ("", ""),
        ],
    )
    def test_masks(self, url: str, clean: str) -> None:
        assert sanitize(url) == clean
        assert sanitize(clean) == clean

    def test_mask(self) -> None:
        assert sanitize(f"pgbroker://u:{SECRET}@h/db?password={SECRET}", "xxx") == "pgbroker://u:xxx@h/db?password=xxx"

    @given(st.text())
    @example("://")
    @example("a://@?=&;[")
    def test_never_raises(self, text: str) -> None:
        assert isinstance(sanitize(text), str)


plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
#: Long enough to be recognised wherever it shows.
passwords = plain.map(lambda text: f"{text}Geh31m")


def every_text(error: BaseException) -> Iterator[str]:
    yield str(error)
    yield repr(error)
    yield "".join(line for line in traceback.format_exception(error) if not line.lstrip().startswith("File "))


@given(user=plain, password=passwords, database=plain)
@example(user="", password="@:/?#[];%,=&+ \n\tGeh31m", database="a/b?c#d@e;f%g")
def test_encoded_parts_come_out_unchanged_and_no_password_shows(user: str, password: str, database: str) -> None:
    name, secret, db = (quote(text, safe="") for text in (user, password, database))
    url = f"pgbroker://{name}:{secret}@h1:5432,h2:5433/{db}?sslmode=require"
    options = Options.from_url(url)
    found = dict(options.libpq)
    assert (found.get("user", ""), found["password"], found.get("dbname", "")) == (user, password, database)
    assert (found["host"], found["port"]) == ("h1,h2", "5432,5433")
    again = dict(Options.from_url(options.safe_url).libpq)
    assert again == found | {"password": "**"}
    shown = [repr(options), str(options), options.safe_url, sanitize(url), sanitize(f"{url};{url}")]
    for text in shown:
        assert "Geh31m" not in text


@given(
    password=passwords,
    form=st.sampled_from(
        [
            "pgbroker://u:{raw}@h:x/db",
            "pgbroker://u:{quoted}@h:x/db",
            "pgbroker://u:{raw}@h/db%",
            "pgbroker://u:{quoted}@h/db%F",
            "pgbroker://u:{quoted}@h/%FF",
            "pgbroker://u:{quoted}@h/db#frag",
            "pgbroker://u:{quoted}%zz@h/db",
            "pgbroker://u:{quoted}%ff@h/db",
            "pgbroker://u:{quoted}/db",
            "pgbroker://u:{quoted}@@h/db",
            "pgbroker://u:{quoted}@h/db?nonsense=1",
            "pgbroker://u:{quoted}@h/db?schema=pg_no",
            "pgbroker://u:{quoted}@h/db?password={quoted}",
            "pgbroker://h/db?password={quoted}",
            "pgbroker://h/db?sslpassword={quoted}",
            "pgbroker://u:{quoted}@[h/db",
            "postgresql://u:{quoted}@h/db",
            "u:{quoted}@h/db",
            "pgbroker+embedded://u:{quoted}@/dir",
            "pgbroker://u:1/{raw}@h/db",
            "pgbroker://u:1?{raw}@h/db",
            "pgbroker://u:1?x={raw}@h/db",
            "pgbroker://u:1#{raw}@h/db",
            "pgbroker://u:1@{raw}@h/db",
            "pgbroker://u:{quoted}@a/db;pgbroker://u:{quoted}@b/db",
        ]
    ),
)
def test_no_error_shows_the_password_of_a_corrupted_url(password: str, form: str) -> None:
    url = form.format(raw=password, quoted=quote(password, safe=""))
    assert "Geh31m" not in sanitize(url)
    with pytest.raises(OptionError) as caught:
        Options.from_url(url)
    for text in every_text(caught.value):
        assert "Geh31m" not in text


def test_module_loads_neither_celery_nor_driver() -> None:
    code = (
        "import sys, types; package = types.ModuleType('pgbroker'); package.__path__ = [sys.argv[1]];"
        "sys.modules['pgbroker'] = package; import pgbroker.options;"
        "print([m for m in ('kombu', 'celery', 'psycopg2', 'sqlalchemy') if m in sys.modules])"
    )
    folder = Path(libpq.__file__).parent
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
