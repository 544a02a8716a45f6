"""Broker URLs: parsing them into libpq words and a query, printing them, masking what is secret.

The rules are libpq's (PostgreSQL documentation, "Connection URIs"), stricter where an unencoded character of a
password would otherwise end up in another part of the URL. No error quotes any piece of a URL but an option's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote, unquote

from pgbroker.errors import OptionError
from pgbroker.libpq import SECRET_WORDS

SERVER_SCHEMES = ("pgbroker", "pgbroker+postgresql")
EMBEDDED_SCHEME = "pgbroker+embedded"
DEFAULT_EMBEDDED_DIR = ".pgbroker"

_ENCODE = "write it percent-encoded in user, password and all other parts (@ is %40, / is %2F, ? is %3F, # is %23)"
_HEX = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|^\s|\s$")
_SECRET_KEY = re.compile(r"pass(?!file$)|pwd|secret|^scram_")


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """What a URL says: `words` for libpq, `query` (decoded, not yet judged), or the folder of an embedded server."""

    words: dict[str, str] = field(repr=False)
    query: dict[str, str] = field(repr=False)
    embedded_dir: Path | None = None


def parse_url(url: str) -> ParsedUrl:
    """Take a broker URL apart.

    Args:
        url: one URL with one of the schemes `pgbroker`, `pgbroker+postgresql`, `pgbroker+embedded`.

    Returns:
        The parts; empty ones are left out so that libpq's defaults and `PG*` variables apply.

    Raises:
        OptionError: the URL is malformed; the message never quotes it.
    """
    _check_characters(url)
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in (*SERVER_SCHEMES, EMBEDDED_SCHEME):
        raise OptionError(
            "a broker URL begins with pgbroker://, pgbroker+postgresql:// or pgbroker+embedded:// "
            "(put pgbroker+ before a postgresql:// URL)"
        )
    place, _, query_text = rest.partition("?")
    authority, slash, path = place.partition("/")
    if "@" in path or "@" in query_text:
        raise OptionError(f"the URL has an unencoded @ after its host; {_ENCODE}")
    query = _parse_query(query_text)
    if scheme == EMBEDDED_SCHEME:
        if authority:
            raise OptionError(
                "an embedded URL has neither host nor credentials, only an absolute folder after three slashes: "
                "pgbroker+embedded:///abs/dir"
            )
        return ParsedUrl({}, query, _embedded_dir(slash + path))
    if "/" in path:
        raise OptionError(f"the database name in the URL has an unencoded /; {_ENCODE}")
    words = _parse_authority(authority)
    words["dbname"] = _decode(path)
    return ParsedUrl({name: value for name, value in words.items() if value}, query)


def format_url(words: Mapping[str, str], query: Iterable[tuple[str, str]], mask: str = "**") -> str:
    """Print libpq words as a canonical server URL.

    Args:
        words: libpq words; user, password, host, port and dbname are taken, the others ignored.
        query: names and values for the query string, in this order.
        mask: what stands in for a password.

    Returns:
        The URL; without its password, it parses to the same words again.
    """
    user = quote(words.get("user", ""), safe="")
    secret = f":{mask}" if words.get("password") else ""
    at = "@" if user or secret else ""
    hosts = words.get("host", "").split(",")
    ports = words.get("port", "").split(",")
    pairs = zip_longest(hosts, ports, fillvalue="")
    places = ",".join(_format_host(host) + (f":{port}" if port else "") for host, port in pairs)
    return f"pgbroker://{user}{secret}{at}{places}/{quote(words.get('dbname', ''), safe='')}{format_query(query)}"


def format_query(query: Iterable[tuple[str, str]]) -> str:
    """Print names and values as a query string, with its question mark, or nothing at all."""
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='/')}" for name, value in query)
    return f"?{text}" if text else ""


def sanitize(url: str, mask: str = "**") -> str:
    """Mask the passwords in a URL or a failover list of URLs separated by `;`, however malformed; never raises.

    Args:
        url: any broker URL, with or without its scheme.
        mask: what stands in for each password.

    Returns:
        The same text with `mask` for the passwords, in the user part and in the query string.
    """
    return ";".join(_sanitize_one(part, mask) for part in re.split(r";(?=[A-Za-z][A-Za-z0-9+.-]*://)", url))


def _check_characters(url: str) -> None:
    if not isinstance(url, str):
        raise OptionError(f"a broker URL is a text, not a {type(url).__name__}")
    if _CONTROL.search(url):
        raise OptionError("the URL has a control character in it or white space around it")
    if "#" in url:
        raise OptionError(f"the URL has an unencoded #, and a broker URL has no fragment; {_ENCODE}")
    if ";" in url:
        raise OptionError("the URL has an unencoded ; (one URL is expected, no list; a ; in a password is %3B)")
    if _HEX.search(url):
        raise OptionError("the URL has a % that does not begin a percent escape (a % in a password is %25)")


def _decode(text: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise OptionError("the URL has percent escapes that are not UTF-8") from None
    if "\0" in decoded:
        raise OptionError("the URL has a NUL character (%00)")
    return decoded


def _parse_authority(authority: str) -> dict[str, str]:
    credentials, _, places = authority.rpartition("@")
    if "@" in credentials:
        raise OptionError(f"the user part of the URL has an unencoded @; {_ENCODE}")
    user, _, password = credentials.partition(":")
    pairs = [_parse_place(place) for place in places.split(",")]
    hosts, ports = zip(*pairs, strict=True)
    return {
        "user": _decode(user),
        "password": _decode(password),
        "host": ",".join(hosts) if any(hosts) else "",
        "port": ",".join(ports) if any(ports) else "",
    }


def _parse_place(place: str) -> tuple[str, str]:
    """Split `host`, `host:port` or `[ipv6]:port`."""
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or not host or (rest and not rest.startswith(":")):
            raise OptionError("the URL has an IPv6 address whose brackets are not in order: [ADDRESS]:PORT")
        port = rest[1:]
    else:
        host, _, port = place.partition(":")
        if ":" in port:
            raise OptionError("the URL has more than one : in a host; an IPv6 address is written in brackets")
    check_port(port)
    return _decode(host), port


def check_port(port: str) -> None:
    """Refuse a port that is neither empty nor a number from 1 to 65535.

    Raises:
        OptionError: it is not; the message does not quote it, it may be a piece of a password.
    """
    if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise OptionError(
            f"the URL has a port that is not a number from 1 to 65535; if it is part of a password, {_ENCODE}"
        )


def _parse_query(text: str) -> dict[str, str]:
    query: dict[str, str] = {}
    for piece in text.split("&") if text else ():
        name, equals, value = piece.partition("=")
        if not equals or not name:
            raise OptionError("the query string of the URL must be made of name=value, joined by &")
        key = _decode(name)
        if key in query:
            raise OptionError(f"option {key!r} stands twice in the query string")
        query[key] = _decode(value)
    return query


def _embedded_dir(path: str) -> Path:
    folder = _decode(path)
    return Path(folder if folder.strip("/") else DEFAULT_EMBEDDED_DIR).resolve()


def _format_host(host: str) -> str:
    return f"[{quote(host, safe=':')}]" if ":" in host and not host.startswith("/") else quote(host, safe="")


def _sanitize_one(url: str, mask: str) -> str:
    head, found, rest = url.partition("://")
    if not found:
        head, rest = "", url
    # An unencoded / or @ in a password must not uncover the rest of it: all up to the last @ is credentials.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    place, question, query = place.partition("?")
    authority, slash, path = place.partition("/")
    authority = ",".join(_mask_port(part, mask) for part in authority.split(","))
    query = "&".join(_mask_value(piece, mask) for piece in query.split("&"))
    return f"{head}{found}{user}{colon}{mask if colon else ''}{at}{authority}{slash}{path}{question}{query}"


def _mask_port(place: str, mask: str) -> str:
    """Mask what stands where a port should: the `secret` of `user:secret/db`, whose host was forgotten."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", place, re.DOTALL)
    if match is None:
        return mask
    host, port = match.groups()
    return place if port is None or re.fullmatch(r"[0-9]{0,5}", port) else f"{host}:{mask}"


def _mask_value(piece: str, mask: str) -> str:
    name, equals, value = piece.partition("=")
    key = unquote(name).lower()
    if key in SECRET_WORDS or _SECRET_KEY.search(key):
        return f"{name}{equals}{mask}"
    nested = unquote(value)
    return f"{name}{equals}{quote(_sanitize_one(nested, mask), safe='*')}" if "://" in nested else piece
