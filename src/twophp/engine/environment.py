"""Settings from the environment: what a service or a client did not say in its code, ``TWOPHP_*`` variables may say.

What is said in the code wins, and an empty variable says nothing. Here are the settings that differ from one deployment
to the next; what belongs to the program, such as policies and hooks, is said in the program. Keys and what is about the
central ledger have variables as well, beside what reads them: ``stores.keys`` and ``shipping.shipper``.

A ``TWOPHP_*`` variable that twophp does not read is most likely misspelt, and is logged with the one that was probably
meant. It is not refused: a platform may set such variables by itself, as Kubernetes does for a service named
twophp-central.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from twophp.core.errors import ConfigError
from twophp.core.settings import hint_of

log: Final = logging.getLogger("twophp")

Environ: TypeAlias = Mapping[str, str]


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


def number(text: str) -> float:
    """A number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def flag(text: str) -> bool:
    """Yes or no; anything else is a mistake, not a no."""
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is neither 1 nor 0")
    return text == "1"


def names(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


class Variable(NamedTuple):
    """Which setting a variable is for, and how it is read."""

    setting: str
    read: Callable[[str], Any] = str


SERVER: Final = {
    "TWOPHP_SERVICE": Variable("service"),
    "TWOPHP_STORE": Variable("store"),
    "TWOPHP_TRUSTED_PROXIES": Variable("trusted_proxies", names),
    "TWOPHP_ALLOW_INSECURE": Variable("allow_insecure", flag),
    "TWOPHP_MAX_BODY_BYTES": Variable("max_body_bytes", whole),
    "TWOPHP_MAX_RESULT_BYTES": Variable("max_result_bytes", whole),
    "TWOPHP_SWEEP_INTERVAL_S": Variable("sweep_interval_s", number),
    "TWOPHP_DRAIN_TIMEOUT_S": Variable("drain_timeout_s", number),
    "TWOPHP_TUNE_COLLECTOR": Variable("tune_collector", flag),
    "TWOPHP_LEDGER_RETENTION_MS": Variable("ledger_retention_ms", whole),
}
"""The middleware's."""

CLIENT: Final = {
    "TWOPHP_LEDGER": Variable("ledger"),
    "TWOPHP_SOURCE": Variable("source"),
    "TWOPHP_ALLOW_INSECURE": Variable("allow_insecure", flag),
    "TWOPHP_PATIENCE_S": Variable("patience_s", number),
    "TWOPHP_POLL_LIMIT_S": Variable("poll_limit_s", number),
    "TWOPHP_LEDGER_RETENTION_MS": Variable("ledger_retention_ms", whole),
}
"""The transports'. A service that calls others has both: its own store and the ledger of its calls may differ."""


_SECRETS: Final = (
    "TWOPHP_KEYS",
    "TWOPHP_CENTRAL_TOKEN",
    "TWOPHP_CENTRAL_MANAGEMENT_KEY",
    "TWOPHP_CENTRAL_SIGNING_KEY",
    "TWOPHP_MANAGEMENT_TOKEN",
    "TWOPHP_OIDC_CLIENT_SECRET",
    "TWOPHP_OPERATOR_TOKEN",
    "TWOPHP_WEBHOOK_SECRETS",
)
_ELSEWHERE: Final = (
    "TWOPHP_BYPASS_MIDDLEWARE",
    "TWOPHP_CENTRAL",
    "TWOPHP_CENTRAL_KEY",
    "TWOPHP_CENTRAL_EVENTS",
    "TWOPHP_CENTRAL_INTERVAL_S",
    "TWOPHP_CENTRAL_SILENT_AFTER_S",
    "TWOPHP_CENTRAL_STORE",
    "TWOPHP_PULL_URL",
)
KNOWN: Final = frozenset({*SERVER, *CLIENT, *_ELSEWHERE, *_SECRETS, *(f"{name}_FILE" for name in _SECRETS)})
"""Every variable that some part of twophp reads."""

_OF_A_PLATFORM: Final = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT|_PORT)(_.*)?")  # Kubernetes' links to services.


def warn_of_unknown(environ: Environ) -> None:
    """Log every variable of our form that twophp does not read, once in a process."""
    for name in sorted(environ):
        if name.startswith("TWOPHP_") and name not in KNOWN and not _OF_A_PLATFORM.fullmatch(name):
            _warn_once(name)


@cache
def _warn_once(name: str) -> None:
    log.warning("the environment has a variable that twophp does not know: %s", hint_of(name, KNOWN))


def with_environment(
    said: Mapping[str, Any],
    variables: Mapping[str, Variable],
    required: tuple[str, ...] = (),
    environ: Environ | None = None,
) -> dict[str, Any]:
    """What the code said; for the other settings, what the environment says. A ``required`` one may be None so far."""
    environ = os.environ if environ is None else environ
    warn_of_unknown(environ)
    found = {name: value for name, value in said.items() if value is not None or name not in required}
    for name, variable in variables.items():
        text = environ.get(name)
        if text and variable.setting not in found:
            found[variable.setting] = _read(name, variable, text)
    for setting in required:
        if setting not in found:
            spelled = next(name for name, variable in variables.items() if variable.setting == setting)
            raise ConfigError(f"say {setting}=, or set {spelled}", code="bad_setting")
    return found


def _read(name: str, variable: Variable, text: str) -> Any:
    try:
        return variable.read(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}", code="bad_setting") from error


def secret_in(environ: Environ, name: str) -> str | None:
    """A secret from the environment, or from the file that ``<name>_FILE`` names."""
    if path := environ.get(f"{name}_FILE"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}_FILE: {path} cannot be read", code="bad_setting") from error
    return environ.get(name)


def number_in(environ: Environ, name: str, default: float) -> float:
    """A number from the environment."""
    text = environ.get(name)
    return float(_read(name, Variable(name, number), text)) if text else default


def flag_in(environ: Environ, name: str) -> bool:
    """A flag from the environment; one that is not set is no."""
    text = environ.get(name)
    return bool(_read(name, Variable(name, flag), text)) if text else False
