"""Which database a command works on: the one of the Celery application that ``celery -A`` names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from pgbroker.options import Options
from pgbroker.urls import EMBEDDED_SCHEME, SERVER_SCHEMES


def options_of(ctx: click.Context) -> Options:
    """The options of the application's broker or, if that is none of ours, of its result backend.

    Raises:
        UsageError: Neither is ours.
        OptionError: The URL or an option is wrong.
    """
    conf = ctx.obj.app.conf
    url = _first_of_ours(conf.broker_write_url or conf.broker_url)
    if url is not None:
        return Options.from_url(url, conf.broker_transport_options, ssl=conf.broker_use_ssl or None)
    url = _first_of_ours(conf.result_backend)
    if url is not None:
        return Options.from_url(url, conf.result_backend_transport_options)
    raise click.UsageError(
        "neither the broker nor the result backend of this application is pgbroker; "
        "name the application (celery -A APP pgbroker ...), or set broker_url to pgbroker://USER@HOST/DB"
    )


def _first_of_ours(given: Any) -> str | None:
    """The first URL of ours: Celery takes a list for failover, also as one text with semicolons."""
    urls: Iterable[Any] = given.split(";") if isinstance(given, str) else given or ()
    for url in urls:
        if str(url).partition("://")[0] in (*SERVER_SCHEMES, EMBEDDED_SCHEME):
            return str(url)
    return None
