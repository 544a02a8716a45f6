"""Teaches kombu the URL schemes, without importing more of kombu than its table of transports.

Kombu has no entry point for transports, but it loads every ``kombu.serializers`` entry point when
``kombu.serialization`` is imported, which every use of kombu or Celery does sooner or later. Ours names
``SERIALIZER`` in this module: loading it runs :func:`register`. The loading happens in the middle of
kombu's own import, so nothing here may import more than ``kombu.transport``.
"""

from __future__ import annotations

import json
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

#: Failover looks the whole scheme up, so each spelling is an entry of its own.
SCHEMES = ("pgbroker", "pgbroker+postgresql", "pgbroker+embedded")

_TRANSPORT = "pgbroker.transport.transport:Transport"


def register() -> None:
    """Enter our schemes into kombu's table of transports; may be called any number of times."""
    for scheme in SCHEMES:
        TRANSPORT_ALIASES[scheme] = _TRANSPORT


def _decode(text: Any) -> Any:
    return json.loads(text)


register()

#: Arguments of ``kombu.serialization.register`` after the name: encoder, decoder, content type, encoding.
#: A plain JSON serializer that nobody needs to use; it is the price of being loaded.
SERIALIZER = (json.dumps, _decode, "application/x-pgbroker-json", "utf-8")
