"""Templates and the words in them. Everything that comes from a ledger is hostile: escaped, and printable at that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from twophp.central.drawing import words
from twophp.central.drawing.shown import state_of
from twophp.central.drawing.svg import printable
from twophp.core.intent import Phase
from twophp.core.pairing import Pair
from twophp.core.policy import DAY_MS, SECOND_MS
from twophp.core.records import EPOCH, Instant
from twophp.wire.instant import format_instant
from twophp.wire.rows import instant_of

HERE: Final = Path(__file__).parents[1]
STATIC: Final = HERE / "static"
SHORT_ID: Final = 8
LONG_ID: Final = 28
UUID_CHARS: Final = 36


def url(path: str, /, **parameters: object) -> str:
    """An address of ours. A list stands for several values; what is None or empty is left out."""
    given = [(key.rstrip("_"), value) for key, value in parameters.items() if value not in (None, "", [], ())]
    return f"{path}?{urlencode(given, doseq=True, quote_via=quote)}" if given else path


def of_pair(pair: Pair) -> str:
    """All about one call."""
    return url("/intent", client=pair.client_correlation_id, server=pair.server_correlation_id)


@cache
def static(name: str) -> str:
    """The address of a file that may be kept forever: it changes with the content."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return url(f"/static/{name}", v=digest)


def stamp(at: Instant | None) -> str:
    """``16 Nov 2026 03:14:07``, UTC as everything here."""
    return "" if at is None else f"{_moment(at):%d %b %Y %H:%M:%S}".lstrip("0")


def stamp_ms(at: Instant | None) -> str:
    """``03:14:07.123``: where the day is known."""
    return "" if at is None else f"{_moment(at):%H:%M:%S}.{at % 1000:03}"


def day(at: Instant) -> str:
    """``16 Nov``."""
    return f"{_moment(at):%d %b}".lstrip("0")


def clock_time(at: Instant) -> str:
    """``03:14``."""
    return f"{_moment(at):%H:%M}"


def iso(at: Instant | None) -> str:
    """For programs, and for who points at a time. Clocks that are off by centuries do not stop a page."""
    return "" if at is None or not 0 <= at < DAY_MS * 2_932_896 else format_instant(at)


def ago(at: Instant | None, now: Instant) -> str:
    """``3 min ago``. Clocks differ, so what lies a little ahead is now."""
    if at is None:
        return "never"
    if at > now + words.MINUTE_MS:
        return f"in {words.duration(at - now)}"
    return "just now" if now - at < SECOND_MS else f"{words.duration(now - at)} ago"


def short_id(id_: str) -> str:
    """As much of an id as distinguishes it on a page."""
    if len(id_) == UUID_CHARS and id_.count("-") == 4:  # noqa: PLR2004 - A GUID has four.
        return id_[:SHORT_ID]
    return id_ if len(id_) <= LONG_ID else f"{id_[: LONG_ID - 1]}\N{HORIZONTAL ELLIPSIS}"


def _moment(at: Instant) -> datetime:
    try:
        return EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _finalize(value: Any) -> Any:
    """What a template writes: no control character, nothing that turns the direction of the text around."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def environment() -> Environment:
    """The templates, with everything escaped and nothing undefined."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": ago,
        "stamp": stamp,
        "stamp_ms": stamp_ms,
        "iso": iso,
        "short_id": short_id,
        "duration": lambda value: "" if value is None else words.duration(value),
        "count": words.count,
        "day": day,
        "ms": lambda value: None if value is None else instant_of(value),
    }
    made.globals |= {
        "url": url,
        "of_pair": of_pair,
        "static": static,
        "Phase": Phase,
        "labels": words.LABELS,
        "classes": words.CLASSES,
        "meanings": words.MEANINGS,
        "state_of": state_of,
        "row_state": words.row_state,
        "reason": words.reason,
        "rate": words.rate,
        "confirmed_after_ms": words.confirmed_after_ms,
        "ran_for_ms": words.ran_for_ms,
    }
    return made


TEMPLATES: Final = environment()


def render(template: str, context: Mapping[str, Any]) -> str:
    """A page."""
    return TEMPLATES.get_template(template).render(context)
