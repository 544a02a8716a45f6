"""Switching a ``kombu.Connection`` to another of our URLs: failover lists, and ``Connection.switch()`` itself.

kombu (5.7, ``Connection.switch``) takes the new URL apart by itself, whatever the transport says of its own parsing:
an option in the query string is then a ``TypeError``, a list of hosts a ``ValueError``. A connection may switch before
it has made its transport, so the method is wrapped on the class; other transports' URLs go the way they went.
"""

from __future__ import annotations

import functools
from typing import Any

from kombu import Connection

from pgbroker import urls

_SCHEMES = (*urls.SERVER_SCHEMES, urls.EMBEDDED_SCHEME)


def install() -> None:
    """Let ``kombu.Connection`` switch to our URLs; may be called any number of times."""
    plain = Connection.switch
    if hasattr(plain, "knows_pgbroker"):
        return

    @functools.wraps(plain)
    def switch(self: Any, conn_str: str) -> None:
        scheme = conn_str.partition("://")[0].lower()
        if scheme in _SCHEMES and "://" in conn_str:
            _switch(self, scheme, conn_str)
        else:
            plain(self, conn_str)

    switch.knows_pgbroker = True  # type: ignore[attr-defined]
    Connection.switch = switch  # type: ignore[method-assign]


def _switch(connection: Any, scheme: str, url: str) -> None:
    """Do what ``Connection.switch()`` does, but keep the URL whole, as kombu does when a connection is made.

    Raises:
        OptionError: The URL is malformed.
    """
    port = urls.parse_url(url).words.get("port", "")
    connection.close()
    connection._closed = False
    # a password stays in the URL, from which the transport takes it when it is made
    own = {"transport": scheme, "hostname": url, "userid": None, "password": None, "virtual_host": None, "port": None}
    connection._init_params(**{**connection._initial_params, **own})
    connection.uri_prefix = None
    connection.port = int(port) if port.isdigit() else None  # those who list alternatives tell servers apart by it
