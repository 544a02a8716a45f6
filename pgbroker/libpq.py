"""The connection words of libpq: which there are, which are secret, and how Celery's TLS settings map to them.

Source: PostgreSQL 18 documentation, chapter libpq, "Parameter Key Words" (34.1.2) and "SSL Support" (34.19).
"""

from __future__ import annotations

import os
import ssl as ssl_module
from collections.abc import Mapping

from pgbroker.errors import OptionError

_KEYWORDS = """
host hostaddr port dbname user password passfile require_auth channel_binding connect_timeout client_encoding
options application_name fallback_application_name keepalives keepalives_idle keepalives_interval
keepalives_count tcp_user_timeout replication gssencmode sslmode requiressl sslnegotiation sslcompression sslcert
sslkey sslkeylogfile sslpassword sslcertmode sslrootcert sslcrl sslcrldir sslsni requirepeer
ssl_min_protocol_version ssl_max_protocol_version min_protocol_version max_protocol_version krbsrvname gsslib
gssdelegation scram_client_key scram_server_key service target_session_attrs load_balance_hosts oauth_issuer
oauth_client_id oauth_client_secret oauth_scope
"""
KEYWORDS = frozenset(_KEYWORDS.split())

#: Words that hold a secret: never accepted where Celery prints what it was given, never printed by us.
SECRET_WORDS = frozenset({"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})

#: Words that name the server, which an embedded server decides by itself.
TARGET_WORDS = frozenset({"host", "hostaddr", "port", "dbname", "user", "service", "requirepeer"})

#: What pgbroker asks of libpq unless the user says otherwise: a dead server is noticed within about a minute.
DEFAULTS: Mapping[str, str] = {
    "application_name": "pgbroker",
    "connect_timeout": "10",  # s
    "keepalives": "1",
    "keepalives_idle": "30",  # s
    "keepalives_interval": "10",  # s
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # ms
}

_TLS_FILES = {"ca_certs": "sslrootcert", "certfile": "sslcert", "keyfile": "sslkey"}

_CERT_REQS: Mapping[object, str] = {
    ssl_module.CERT_NONE: "require",
    ssl_module.CERT_OPTIONAL: "verify-ca",
    ssl_module.CERT_REQUIRED: "verify-full",
    "none": "require",
    "optional": "verify-ca",
    "required": "verify-full",
}


_DEFAULT_VARIABLES = {"application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT"}


def defaults() -> dict[str, str]:
    """Give `DEFAULTS` without those that the environment sets, since libpq puts words before variables."""
    return {name: value for name, value in DEFAULTS.items() if not os.environ.get(_DEFAULT_VARIABLES.get(name, ""))}


def refuse_secret(word: str, where: str) -> OptionError:
    """Build the error for a secret in a place that Celery prints.

    Args:
        word: the libpq word, one of `SECRET_WORDS`.
        where: the place, as the user knows it ("the query string").

    Returns:
        The error, to be raised; it says where the secret belongs.
    """
    if word == "password":
        belongs = "it belongs into the user part of the URL (pgbroker://USER:PASSWORD@HOST/DB), passfile or PGPASSWORD"
    else:
        belongs = "keep it in a libpq service file or use credentials that need none"
    return OptionError(f"{word!r} is refused in {where}, because Celery prints that; {belongs}")


def to_word(name: str, value: object) -> str:
    """Turn a typed value into the text libpq takes.

    Args:
        name: the libpq word, for the error.
        value: text, number or boolean (1 or 0 for libpq).

    Returns:
        The text.

    Raises:
        OptionError: the value is of another type, or has a NUL character.
    """
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, str | int | float):
        text = str(value)
        if "\0" not in text:
            return text
    raise OptionError(f"{name!r} must be a text or a number without NUL characters, not a {type(value).__name__}")


def tls_words(setting: object) -> dict[str, str]:
    """Map Celery's `broker_use_ssl` to libpq words.

    Args:
        setting: `None` or `False` for nothing, `True` for encryption without verification, or a dict with the
            keys of Python's `ssl` (`ca_certs`, `certfile`, `keyfile`, `cert_reqs`, also with the prefix `ssl_`)
            or libpq's own (`sslmode`, `sslrootcert` ...).

    Returns:
        The words, with `sslmode` always among them unless the setting is empty.

    Raises:
        OptionError: a key that libpq has no equal for.
    """
    if not setting:
        return {}
    if setting is True:
        return {"sslmode": "require"}
    if not isinstance(setting, Mapping):
        raise OptionError(f"broker_use_ssl must be true, false or a dict, not a {type(setting).__name__}")
    words: dict[str, str] = {}
    mode: str | None = None
    for key, value in setting.items():
        name = str(key)
        plain = name.removeprefix("ssl_")
        if name in SECRET_WORDS:
            raise refuse_secret(name, "broker_use_ssl")
        if plain == "cert_reqs":
            mode = _verification(value)
        elif value is None:
            continue
        elif plain in _TLS_FILES:
            words[_TLS_FILES[plain]] = to_word(name, value)
        elif name.startswith("ssl") and name in KEYWORDS:
            words[name] = to_word(name, value)
        else:
            raise OptionError(
                f"broker_use_ssl: {name!r} has no equal in libpq; known are ca_certs, certfile, keyfile, cert_reqs and "
                "libpq's own words (sslmode=verify-ca checks no host name, ssl_min_protocol_version sets the version)"
            )
    words.setdefault("sslmode", mode or ("verify-full" if "sslrootcert" in words else "require"))
    return words


def _verification(value: object) -> str | None:
    if value is None:
        return None
    key = value.lower().removeprefix("cert_") if isinstance(value, str) else value
    try:
        return _CERT_REQS[key]
    except (KeyError, TypeError):
        raise OptionError("broker_use_ssl: cert_reqs must be one of CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED") from None
