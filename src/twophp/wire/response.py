"""What the ordinary fields of an answer say: when it was made, when to ask again, where it points, who refused."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twophp.wire import fields, grammar

if TYPE_CHECKING:
    from twophp.core.records import Instant
    from twophp.wire.parse import RawHeaders

MAX_RETRY_AFTER_S: Final = 86_400
_LONGEST_DATE: Final = 64


def field(headers: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a field, stripped; ``name`` in lower case."""
    for key, value in headers:
        if key.lower() == name:
            return value.strip(grammar.OWS)
    return None


def made_at(headers: RawHeaders) -> Instant | None:
    """The answer's Date (RFC 9110 §6.6.1): the server's own clock, in whole seconds."""
    raw = field(headers, b"date")
    return None if raw is None else _http_date(raw)


def retry_after_s(headers: RawHeaders) -> float | None:
    """How long to wait before asking again (RFC 9110 §10.2.3); a date counts from the answer's own."""
    raw = field(headers, b"retry-after")
    if raw is None:
        return None
    if raw.isdigit():
        return float(min(int(raw[:6]), MAX_RETRY_AFTER_S))
    until, since = _http_date(raw), made_at(headers)
    if until is None or since is None:
        return None
    return min(max(until - since, 0) / 1_000, MAX_RETRY_AFTER_S)


def location(headers: RawHeaders) -> str | None:
    """Where an answer points, if it can be written into a request again."""
    raw = field(headers, b"location")
    return None if raw is None else grammar.read_location(raw)


def is_refusal(headers: RawHeaders) -> bool:
    """Whether the middleware itself said no: its refusals all carry a message (A-69), and no application's does."""
    return field(headers, fields.MESSAGE.key) is not None


@lru_cache(maxsize=64)  # A server says the same for a second.
def _http_date(raw: bytes) -> Instant | None:
    if len(raw) > _LONGEST_DATE:
        return None
    try:
        return int(parsedate_to_datetime(raw.decode("latin-1")).timestamp() * 1_000)
    except (TypeError, ValueError, OverflowError):
        return None
