"""Instants on the wire: RFC 3339, UTC, milliseconds, ``Z`` (A-26). No clock is read here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twophp.core.errors import WireError
from twophp.core.records import EPOCH, since_epoch

if TYPE_CHECKING:
    from twophp.core.records import Instant

_THOUSANDTHS: Final = tuple(f".{ms:03d}Z" for ms in range(1000))
_LAST: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z: RFC 3339 years have four digits.
# An offset is required: the draft wants an *absolute* timestamp (§5.2.2), and a local time is none.
# Hours end at 23: Python 3.14 reads 24:00 as the next day, which RFC 3339 does not know.
_RFC3339: Final = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    rb"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def format_instant(at: Instant) -> str:
    """``2026-01-02T03:04:05.678Z``. Exact: integers all the way, where ``fromtimestamp(ms / 1000)`` rounds."""
    if not 0 <= at <= _LAST:
        raise WireError("The instant lies outside the years 1970 to 9999.", code="internal")
    return _whole_second(at // 1000) + _THOUSANDTHS[at % 1000]


@lru_cache(maxsize=64)  # Deadlines lie close together: the calendar is worked out once a second.
def _whole_second(seconds: int) -> str:
    return (EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def spelled(record: msgspec.Struct, names: Iterable[str] | None = None) -> dict[str, Any]:
    """A record for a JSON encoder: its fields, or these and properties of these names, with its instants as text."""
    if names is None:
        found, instants = msgspec.structs.asdict(record), _instants_of(type(record))
    else:
        found = {name: getattr(record, name) for name in names}
        instants = tuple(filter(_is_instant, found))
    for name in instants:
        if found[name] is not None:
            found[name] = format_instant(found[name])
    return found


@cache
def _instants_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(filter(_is_instant, kind.__struct_fields__))


def _is_instant(name: str) -> bool:
    """Everywhere here a name says so."""
    return name == "at" or name.endswith(("_at", "_until", "_by", "_timestamp"))


def parse_instant(value: bytes) -> Instant | None:
    """Read what any RFC 3339 writer sends, None if it is no instant.

    Finer fractions are cut off, not rounded: a client that leaves a little too early is safe, one that leaves a
    little too late is not (draft §5.2.2: "MUST send Phase 2 before this timestamp").
    """
    if not _RFC3339.fullmatch(value):
        return None
    try:
        moment = datetime.fromisoformat(value.decode("ascii").upper())
    except ValueError:  # The 31st of February, the 25th hour, a leap second.
        return None
    return since_epoch(moment)
