"""The request field ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header), for clients that know no 2PHP.

Its value is an Item of Structured Fields, a String: ``Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"``. Many
clients leave the quotes out, so both spellings are read, as the same key. A key becomes the client's correlation id,
and has its grammar: 1 to 255 visible ASCII characters. An unquoted comma separates values, so it is in no key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twophp.core.errors import WireError
from twophp.wire.grammar import OWS, matches_id, matches_plain_id

if TYPE_CHECKING:
    from twophp.wire.parse import RawHeaders

KEY: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotent-replayed", b"true")
"""On an answer that was stored, as other servers say it. The field is in no draft."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_PRINTABLE: Final = range(0x20, 0x7F)


def read_key(headers: RawHeaders) -> str | None:
    """The key of a request, None without one. Raises WireError if it is malformed, empty or there are several."""
    values = [value for name, value in headers if name.lower() == KEY]
    if not values:
        return None
    key = _read(values[0].strip(OWS)) if len(values) == 1 else None
    if key is None:
        raise WireError("the Idempotency-Key cannot be read", code="idempotency_key_malformed")
    return key


def _read(value: bytes) -> str | None:
    if not value.startswith(b'"'):
        return value.decode("ascii") if matches_plain_id(value) else None
    text = _string(value)
    return text.decode("ascii") if text is not None and matches_id(text) else None


def _string(value: bytes) -> bytes | None:
    """The text of a String (RFC 8941 §3.3.3). Parameters may follow it, and have no meaning here."""
    text, rest = bytearray(), iter(enumerate(value))
    next(rest)
    for place, byte in rest:
        if byte == _QUOTE:
            after = value[place + 1 :].lstrip(OWS)
            return bytes(text) if not after or after.startswith(b";") else None
        if byte == _BACKSLASH:
            _place, byte = next(rest, (0, 0))  # noqa: PLW2901 - The escaped one stands for both.
            if byte not in (_QUOTE, _BACKSLASH):
                return None
        if byte not in _PRINTABLE:
            return None
        text.append(byte)
    return None
