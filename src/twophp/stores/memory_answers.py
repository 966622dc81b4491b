"""The draft's questions (§10.4) put to rows in memory, by looking at every one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.obligation import Obligation
from twophp.core.records import Instant, JournalEvent
from twophp.kernel.journal import GENESIS, Link, Writer, new_link
from twophp.ports import Calls, Find, Initiated, Obligations, Question, Stalled, Tail, Tree

_STALLED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})


def answer(
    rows: Sequence[LedgerEntry], question: Question, has_stopped: Callable[[LedgerEntry, Instant | None], bool]
) -> Sequence[LedgerEntry]:
    """The rows, oldest first, that a question asks for."""
    match question:
        case Tree(root):
            called = _called(rows, root)
            return [row for row in rows if row.client_correlation_id in called]
        case Initiated(source):
            return [row for row in rows if row.source == source and row.actor == "client"]
        case Stalled(lease_ended_by):
            stalled = [row for row in rows if row.phase in _STALLED or has_stopped(row, lease_ended_by)]
            return sorted(stalled, key=lambda row: row.phase_1_timestamp)
        case Find(id_):
            return [row for row in rows if id_ in (row.client_correlation_id, row.server_correlation_id)]
        case Calls(ids):
            return [row for row in rows if row.client_correlation_id in ids]
        case Tail(limit):
            return rows[::-1][:limit]


def _called(rows: Sequence[LedgerEntry], root: str) -> set[str]:
    """The root and every id that was called below it. An id that was seen is not visited again (A-53)."""
    children: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.actor == "client":
            children[row.parent_reference_id].append(row.client_correlation_id)
    called, ahead = {root}, [root]
    while ahead:
        fresh = [child for child in children[ahead.pop()] if child not in called]
        called.update(fresh)
        ahead.extend(fresh)
    return called


def link_all(links: list[Link], lines: Sequence[tuple[int, JournalEvent]]) -> None:
    """Chain the new lines, each by itself. Called only when they are read: a chain in memory proves nothing."""
    for number in range(len(links) + 1, len(lines) + 1):
        previous, writer = (links[-1].hash, Writer(1, number - 1)) if links else (GENESIS, Writer())
        record, event = lines[number - 1]
        links.append(new_link(previous, number, writer, [(0, record, event)], event.observed_at, record + 1))


def fits(obligation: Obligation, wanted: Obligations) -> bool:
    """Whether an obligation matches the question."""
    facts = ("flow", "state", "key", "intent", "trace_id")
    return all(getattr(wanted, name) in ("", getattr(obligation, name)) for name in facts)
