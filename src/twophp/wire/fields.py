"""The twelve field names of the draft (§14.1). Nothing else in the project spells them.

The figures' ``…-Client-Corr-ID`` and ``…-Server-Corr-ID`` are drawing abbreviations (A-102): they are not here, so they
are neither sent nor understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Header fields as ASGI wants them: lower-case names, raw bytes."""


class Field(NamedTuple):
    """One name, spelled twice (A-17): ``name`` for people and HTTP/1.1, ``key`` for ASGI, HTTP/2 and comparing."""

    name: str
    key: bytes


def _field(name: str) -> Field:
    return Field(name, name.lower().encode("ascii"))


ENABLED: Final = _field("DTT-2PHP-Enabled")
CLIENT_CORRELATION_ID: Final = _field("DTT-2PHP-Client-Correlation-ID")
AUTO_CONFIRM: Final = _field("DTT-2PHP-Auto-Confirm")
CALLBACK: Final = _field("DTT-2PHP-Callback")
REQUESTED_TTL: Final = _field("DTT-2PHP-Requested-TTL")
SERVER_CORRELATION_ID: Final = _field("DTT-2PHP-Server-Correlation-ID")
PHASE_STATE: Final = _field("DTT-2PHP-Phase-State")
TTL: Final = _field("DTT-2PHP-TTL")
PONR_DEADLINE: Final = _field("DTT-2PHP-PONR-Deadline")
RESOURCE_ID: Final = _field("DTT-2PHP-Resource-ID")
REPLAY_POLICY: Final = _field("DTT-2PHP-Replay-Policy")
MESSAGE: Final = _field("DTT-2PHP-Message")

# The Server-Correlation-ID travels both ways: Phase 1 answers it, Phase 2 echoes it (draft §5.2.2).
REQUEST_FIELDS: Final = (
    ENABLED,
    CLIENT_CORRELATION_ID,
    AUTO_CONFIRM,
    CALLBACK,
    REQUESTED_TTL,
    SERVER_CORRELATION_ID,
)
RESPONSE_FIELDS: Final = (
    SERVER_CORRELATION_ID,
    PHASE_STATE,
    TTL,
    PONR_DEADLINE,
    RESOURCE_ID,
    REPLAY_POLICY,
    MESSAGE,
)
FIELDS: Final = (*REQUEST_FIELDS, *RESPONSE_FIELDS[1:])

PREFIX: Final = b"dtt-2php-"
"""Of every name, in the form of its ``key``."""
BY_KEY: Final = {field.key: field for field in FIELDS}
NAMES: Final = frozenset(field.name for field in FIELDS)

# what a browser client needs in Access-Control-Allow-Headers and Access-Control-Expose-Headers.
CORS_ALLOW_HEADERS: Final = tuple(field.name for field in REQUEST_FIELDS)
CORS_EXPOSE_HEADERS: Final = tuple(field.name for field in RESPONSE_FIELDS)


def without_fields(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The same headers without the twelve: what the wrapped application may see of a request (A-03)."""
    return [(name, value) for name, value in headers if name.lower() not in BY_KEY]


def canonical(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """The same headers as text, our names in the draft's spelling: cosmetics for HTTP/1.1 and WSGI (A-17)."""
    return [(_spelling(name), value.decode("latin-1")) for name, value in headers]


def _spelling(name: bytes) -> str:
    field = BY_KEY.get(name.lower())
    return field.name if field else name.decode("latin-1").title()
