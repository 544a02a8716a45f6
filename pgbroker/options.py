"""Every option of pgbroker with its default, in one frozen `Options`, built from a URL and transport options.

`Options` is hashable: processes share connections and sessions between all that is opened with equal options.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pgbroker import libpq as libpq_words
from pgbroker.errors import OptionError
from pgbroker.foreign_options import is_foreign
from pgbroker.option_values import coerce, option, to_text
from pgbroker.urls import EMBEDDED_SCHEME, check_port, format_query, format_url, parse_url, sanitize

__all__ = ["Options", "sanitize"]

_NOT_OPTIONS = frozenset({"libpq", "embedded_dir"})
#: The words besides dbname by which libpq finds a database (the user is the default of dbname); PGHOST ... stand in.
_PLACE = ("host", "hostaddr", "port", "user", "service")


@dataclass(frozen=True, slots=True, repr=False)
class Options:
    """What pgbroker was told: where the database is, and how to work with it.

    Values are checked, and texts parsed, however an instance is made; `None` means the default.

    Raises:
        OptionError: a value is of the wrong type or out of its bounds; the message names option, unit and bounds.
    """

    #: Words for `psycopg2.connect(**dict(libpq))`, sorted by name; the password is among them.
    libpq: tuple[tuple[str, str], ...] = ()
    #: Absolute data folder of an embedded server, or `None` for a server that libpq finds.
    embedded_dir: Path | None = None

    schema: str = option("pgbroker", "name", "name", "Postgres schema that holds everything")
    auto_migrate: bool = option(True, "bool", "bool", "create or upgrade the schema on first use")
    lease_seconds: float = option(
        60.0, "float", "s", "how long a claimed job stays claimed without renewal", least=2, most=604800
    )
    reap_interval: float = option(
        None,
        "float",
        "s",
        "how often expired leases are looked for (default lease_seconds / 2)",
        least=0.1,
        most=604800,
    )
    max_attempts: int = option(
        5, "int", "count", "losses and fail() calls after which a job goes to DEAD", least=1, most=32767
    )
    max_requeues: int | None = option(
        None,
        "int",
        "count",
        "how often Reject(requeue=True) may put a job back (default: any number)",
        least=0,
        most=32767,
    )
    strict_start: bool = option(False, "bool", "bool", "early ack: commit the start before the body runs")
    claim_when_free: bool = option(False, "bool", "bool", "claim only what a free pool slot can start at once")
    notify: bool = option(True, "bool", "bool", "LISTEN/NOTIFY wake-ups; false: polling only")
    listen_url: str | None = option(
        None, "url", "broker URL", "direct connection for LISTEN where the main URL is a transaction pooler"
    )
    poll_interval: float = option(5.0, "float", "s", "upper bound of the fallback poll", least=0.1, most=3600)
    queue_order: str = option(
        "fair", "choice", "word", "how a worker with several queues shares its claims", choices=("fair", "strict")
    )
    priority_order: str = option(
        "high_first", "choice", "word", "which priority goes first", choices=("high_first", "low_first")
    )
    dedupe_wait_seconds: float = option(
        5.0, "float", "s", "how long a publish waits for an open transaction that holds its key", least=0, most=3600
    )
    batch_max: int = option(100_000, "int", "count", "messages one batch() may hold", least=1, most=10_000_000)

    def __post_init__(self) -> None:
        for spec in _SPECS.values():
            object.__setattr__(self, spec.name, coerce(spec, getattr(self, spec.name)))
        if self.reap_interval is None:
            object.__setattr__(self, "reap_interval", self.lease_seconds / 2)
        if self.listen_url is not None:
            self.listen_options()

    @classmethod
    def from_url(
        cls,
        url: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        ssl: object = None,
        extra_libpq: Mapping[str, str] | None = None,
    ) -> Options:
        """Read a broker or result backend URL and the options beside it.

        Args:
            url: `pgbroker://`, `pgbroker+postgresql://` or `pgbroker+embedded://` URL by libpq's rules.
            overrides: Celery's transport options: own options, libpq words and what kombu and Celery put there; they
                win over the query string, `None` as a value restores the default.
            ssl: Celery's `broker_use_ssl`: a boolean or a dict; words of the URL and of `overrides` win.
            extra_libpq: libpq words of the caller's own, secrets allowed; they win over everything.

        Returns:
            The options.

        Raises:
            OptionError: the URL is malformed, an option unknown or out of bounds; no message shows a password.
        """
        parsed = parse_url(url)
        query = parsed.query
        if query.get("ssl", "").lower() == "true":  # libpq takes this word of JDBC URLs
            query = {name: value for name, value in query.items() if name != "ssl"}
            query.setdefault("sslmode", "require")
        words, own = _sort_out(query, "the query string")
        more_words, more_own = _sort_out(overrides or {}, "the transport options")
        words |= more_words
        if parsed.embedded_dir is not None and (refused := sorted(libpq_words.TARGET_WORDS & words.keys())):
            raise OptionError(f"an embedded server decides {refused[0]!r} by itself; leave it out of the options")
        given = {name: value for name, value in words.items() if value is not None}
        given = libpq_words.tls_words(ssl) | parsed.words | given | dict(extra_libpq or {})
        return cls(
            libpq=_finish(libpq_words.defaults() | {name: value for name, value in given.items() if value}),
            embedded_dir=parsed.embedded_dir,
            **(own | more_own),
        )

    @property
    def safe_url(self) -> str:
        """The canonical URL, passwords masked as `**`, with every option that is not at its default."""
        words = dict(self.libpq)
        shown = set(words) - libpq_words.SECRET_WORDS
        if self.embedded_dir is None:
            shown -= {"user", "host", "port", "dbname"}
        query = [(name, words[name]) for name in sorted(shown) if words[name] != libpq_words.DEFAULTS.get(name)]
        for name, spec in _SPECS.items():
            value = getattr(self, name)
            default = self.lease_seconds / 2 if name == "reap_interval" else spec.default
            if value != default:
                query.append((name, to_text(value)))
        if self.embedded_dir is not None:
            return f"{EMBEDDED_SCHEME}://{quote(str(self.embedded_dir))}{format_query(query)}"
        return format_url(words, query)

    def listen_options(self) -> Options | None:
        """Give the options of the connection for LISTEN.

        Returns:
            The same options with the place that `listen_url` names; what it leaves out (user and password, database,
            TLS ...) is as in the main URL. `None` without a `listen_url`.

        Raises:
            OptionError: `listen_url` is malformed, embedded, or holds a password or an option of pgbroker's own.
        """
        if self.listen_url is None:
            return None
        try:
            parsed = parse_url(self.listen_url)
        except OptionError as error:
            raise OptionError(f"listen_url: {error}") from None
        if parsed.embedded_dir is not None or self.embedded_dir is not None:
            raise OptionError("listen_url is for servers behind a transaction pooler; an embedded server has none")
        if "password" in parsed.words:
            raise libpq_words.refuse_secret("password", "listen_url (the main URL's holds there too)")
        words, own = _sort_out(parsed.query, "the query string of listen_url")
        if own:
            raise OptionError(f"listen_url takes connection words only; put {min(own)!r} into the main URL")
        place = parsed.words | {name: value for name, value in words.items() if value}
        kept = dict(self.libpq)
        if place.keys() & {"host", "hostaddr", "service"}:
            kept = {name: value for name, value in kept.items() if name not in {"host", "hostaddr", "port", "service"}}
        if place.get("user", kept.get("user")) != kept.get("user"):
            kept.pop("password", None)
        return replace(self, libpq=_finish(kept | place), listen_url=None)

    def same_database(self, other: Options) -> bool:
        """Tell whether two options mean the same schema of the same database.

        Compares names, not servers: `False` may be wrong (an alias of a host), `True` is not, short of a name that
        leads to several servers.
        """
        return self.schema == other.schema and self._place() == other._place()

    def _place(self) -> tuple[object, ...]:
        words = dict(self.libpq)
        if self.embedded_dir is not None:
            return (self.embedded_dir, words.get("dbname"))
        found = {name: words.get(name) or os.environ.get(f"PG{name.upper()}", "") for name in _PLACE}
        database = words.get("dbname") or os.environ.get("PGDATABASE") or found["user"]
        hosts = tuple(h if h.startswith(("/", "@")) else h.lower() for h in found["host"].split(","))
        ports = tuple(port or "5432" for port in found["port"].split(","))
        ports = ports * len(hosts) if len(ports) == 1 else ports
        return (hosts, found["hostaddr"], ports, database, found["service"])

    def __repr__(self) -> str:
        return f"<Options {self.safe_url}>"

    __str__ = __repr__


_SPECS: dict[str, Field[Any]] = {spec.name: spec for spec in fields(Options) if spec.name not in _NOT_OPTIONS}


def _sort_out(given: Mapping[str, Any], where: str) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Split options into libpq words and our own; refuse secrets and unknown names, skip other transports'."""
    words: dict[str, str | None] = {}
    own: dict[str, Any] = {}
    for name, value in given.items():
        if name in libpq_words.SECRET_WORDS:
            raise libpq_words.refuse_secret(name, where)
        if name in _SPECS:
            own[name] = value
        elif name in libpq_words.KEYWORDS:
            words[name] = None if value is None else libpq_words.to_word(name, value)
        elif not is_foreign(name):
            raise OptionError(f"unknown option {name!r} in {where}; {_hint(str(name), where)}")
    return words, own


def _hint(name: str, where: str) -> str:
    near = difflib.get_close_matches(name, sorted({*_SPECS, *libpq_words.KEYWORDS}), n=1, cutoff=0.5)
    if not near:
        return f"pgbroker's own are {', '.join(_SPECS)}"
    if near[0] in libpq_words.SECRET_WORDS:
        return str(libpq_words.refuse_secret(near[0], where))
    return f"did you mean {near[0]!r}?"


def _finish(words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Check hosts against ports, give each host its port, and sort."""
    hosts = words.get("host", "").split(",")
    ports = words.get("port", "").split(",")
    for port in ports:
        check_port(port)
    if len(ports) == 1:
        ports *= len(hosts)
    if len(hosts) > 1 and len(ports) != len(hosts):
        raise OptionError(f"{len(ports)} ports do not fit {len(hosts)} hosts; give one port, or one for each host")
    if any(ports):
        words = words | {"port": ",".join(ports)}
    else:
        words.pop("port", None)
    return tuple(sorted(words.items()))
