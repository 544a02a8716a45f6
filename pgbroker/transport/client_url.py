"""What a ``kombu.Connection`` says about where to connect, and keeping passwords out of what it shows.

``can_parse_url`` leaves the whole URL, password included, in ``Connection.hostname``, which ``inspect stats``
prints. So the first thing a transport does is to move the password into ``Connection.password``, which is never
printed. A clone of the connection carries both fields on.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pgbroker import urls
from pgbroker.options import Options


def options_of(client: Any) -> Options:
    """Read the options of a ``kombu.Connection`` and take the password out of its ``hostname``.

    Raises:
        OptionError: The URL or an option is wrong.
    """
    url = _url_of(client)
    parsed = urls.parse_url(url)
    extra = {"password": client.password} if client.password else {}
    if parsed.embedded_dir is None:
        if parsed.words.get("password"):
            extra.setdefault("password", parsed.words["password"])
            client.password = extra["password"]
        shown = {name: value for name, value in parsed.words.items() if name != "password"}
        client.hostname = urls.format_url(shown, parsed.query.items())
        client.uri_prefix = None
    return Options.from_url(url, client.transport_options, ssl=client.ssl or None, extra_libpq=extra)


def _url_of(client: Any) -> str:
    hostname = client.hostname or ""
    if "://" in hostname:
        if client.uri_prefix and not hostname.startswith("pgbroker"):
            return f"{client.uri_prefix}+{hostname}"
        return str(hostname)
    # kombu took the URL apart itself: a failover list, or keyword arguments
    words = {
        "user": client.userid or "",
        "host": hostname,
        "port": str(client.port or ""),
        "dbname": (client.virtual_host or "").strip("/"),
    }
    return urls.format_url(words, ())


def as_uri(client: Any, uri: str, include_password: bool, mask: str) -> str:
    """The URL of a ``kombu.Connection`` for showing, or with its password for connecting."""
    if client is not None and client.uri_prefix and not uri.startswith("pgbroker"):
        uri = f"{client.uri_prefix}+{uri}"
    password = client.password if client is not None else None
    if password and "://" in uri:
        parsed = urls.parse_url(uri)
        words = {**parsed.words, "password": password}
        if include_password:
            return urls.format_url(words, parsed.query.items(), mask=quote(password, safe=""))
        return urls.format_url(words, parsed.query.items(), mask=mask)
    return uri if include_password else urls.sanitize(uri, mask)
