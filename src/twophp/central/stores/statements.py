"""The named SQL of a database, and the conditions that a ``RowFilter`` is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Final

from twophp.central.ports import RowFilter
from twophp.core.errors import Refused
from twophp.core.intent import Phase
from twophp.stores.named_sql import named

OPEN_PHASES: Final = frozenset({Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.TTL_EXPIRED})
"""There are few such rows, and an index knows them."""

MOST_INTEGER: Final = 2**62

_FIELDS: Final = ("correlation_id", "service_ledger_id", "target", "service_endpoint")


@cache
def statements(package: str) -> dict[str, str]:
    """Every statement by name: those that both databases understand, and those of this package's queries.sql."""
    shared = named(files(__package__).joinpath("shared.sql").read_text(encoding="utf-8"))
    own = named(files(package).joinpath("queries.sql").read_text(encoding="utf-8"))
    assert not shared.keys() & own.keys(), "a name stands for one statement"
    return shared | own


def conditions(wanted: RowFilter, place: int | None, array: Callable[[list[str]], Any]) -> list[tuple[str, Any]]:
    """The names of the conditions that must hold, each with its value, which it may take several times.

    ``place`` is where a page begins, and ``array`` makes one value of several texts.
    """
    if not is_text(wanted.source, *(getattr(wanted, name) for name in _FIELDS)):
        return [("nothing", None)]
    found: list[tuple[str, Any]] = [("anything", None)]
    if wanted.source is not None and wanted.actor == "client":
        found.append(("initiated_by", wanted.source))
    else:
        found += [("with_source", wanted.source), ("with_actor", wanted.actor)]
    found += [(f"with_{name}", getattr(wanted, name)) for name in _FIELDS]
    if wanted.phases:
        found.append(("with_phases", array(sorted(phase.value for phase in wanted.phases))))
        if wanted.phases <= OPEN_PHASES:
            found.append(("open_only", True))
    if wanted.indeterminate is not None:
        found.append(("indeterminate_only" if wanted.indeterminate else "determinate_only", True))
    times = {"since": wanted.since, "until": wanted.until, "before": place}
    found += [(name, within(at)) for name, at in times.items() if at is not None]
    return [found[0], *((name, value) for name, value in found[1:] if value is not None)]


def is_text(*texts: str | None) -> bool:
    """Whether every database could hold these; what none could hold is nowhere found."""
    return all(text is None or ("\0" not in text and text.encode(errors="replace").decode() == text) for text in texts)


def cleaned(text: str) -> str:
    """As much of a text as every database can hold."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def refuse_unfit(*texts: str | None) -> None:
    """Raise Refused if a database could not hold one of these."""
    if not is_text(*texts):
        raise Refused("a text is Unicode, without a character 0", code="bad_text")


def within(number: int) -> int:
    """The nearest number that every database knows."""
    return max(-MOST_INTEGER, min(number, MOST_INTEGER))


def numbered(statement: str) -> str:
    """The statement with its question marks as PostgreSQL wants them."""
    first, *rest = statement.split("?")
    return first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))


def place_of(cursor: str | None) -> int | None:
    """The number that a page's cursor stands for."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:  # noqa: PLR2004 - So many fit a database.
        raise Refused("the cursor is none that a page gave out", code="bad_cursor")
    return int(cursor)
