"""What an auditor asks about obligations: every event as JSON lines, and whether anything leaked.

The audit log is the journal: an event is written in the same change as the state it explains, and the journal is a hash
chain of the whole store. An export holds the lines about obligations alone, so it has a chain of its own (``chain``),
and each line names its place in the journal (``seq``, ``hash``) to be found there again. ``check_chain`` follows an
export without any database; ``twophp ledger verify`` follows the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal, Protocol

import msgspec

from twophp.core.errors import JournalBroken
from twophp.core.misfits import misfit
from twophp.core.obligation import EVENTS, OBLIGATION, State
from twophp.core.records import Instant, Key
from twophp.ports import MOST_ROWS, JournalLine, Tally

PAGE: Final = 1_000
GENESIS: Final = ""
NO_LEAKS: Final = "NO_LEAKS"
LEAKS: Final = "LEAKS"


class AuditedStore(Protocol):
    """What is asked of a store here; a reader of a file can answer it too."""

    def now(self) -> Instant:
        """See ``Store.now``."""
        ...

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """See ``Store.journal``."""
        ...

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``."""
        ...

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        ...


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the export."""

    seq: int
    code: str
    event: str
    obligation_id: str  # Empty for a finished scan.
    before: str
    after: str
    at: Instant
    observed_at: Instant
    trace_id: str
    detail: str
    token: int  # The fencing token, where one was given out.
    hash: str
    chain: str = GENESIS


class Audit:
    """An export under way, a page at a time."""

    def __init__(self, store: AuditedStore) -> None:
        self._store = store
        self._after = 0
        self._chain = GENESIS

    async def page(self) -> list[AuditLine] | None:
        """The next events about obligations, oldest first, chained; None after the last. A page may be empty."""
        found = await self._store.journal(self._after, PAGE)
        if not found:
            return None
        self._after = found[-1].seq
        lines = []
        for line in found:
            if line.event.kind == OBLIGATION:
                lines.append(_chained(self._chain, _line(line)))
                self._chain = lines[-1].chain
        return lines


def check_chain(lines: Iterable[bytes | str]) -> int:
    """How many lines an export has. Raises JournalBroken at the first that does not follow from the one before it."""
    chain, count = GENESIS, 0
    for count, text in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(text, type=AuditLine)
        except msgspec.DecodeError as error:
            said = misfit(error, AuditLine)
            raise JournalBroken(f"line {count} of the export is not an audit line: {said}") from error
        if _chained(chain, line).chain != line.chain:
            raise JournalBroken(f"line {count} of the export, or one before it, was changed or is missing")
        chain = line.chain
    return count


def _line(line: JournalLine) -> AuditLine:
    event = line.event
    return AuditLine(
        seq=line.seq,
        code=event.event,
        event=EVENTS.get(event.event, event.event),
        obligation_id=event.subject if event.after else "",
        before=event.before,
        after=event.after,
        at=event.at,
        observed_at=event.observed_at,
        trace_id=event.trace_id,
        detail=event.detail,
        token=event.fence,
        hash=line.digest.hex(),
    )


def _chained(previous: str, line: AuditLine) -> AuditLine:
    bare = msgspec.structs.replace(line, chain=previous)
    return msgspec.structs.replace(line, chain=sha256(msgspec.json.encode(bare)).hexdigest())


class LeakReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether obligations leak. ``leaked`` were rolled back for it; ``overdue`` will be, by the next scan."""

    verdict: Literal["NO_LEAKS", "LEAKS"]
    at: Instant
    since: Instant
    reserved: int
    committed: int
    rolled_back: int
    leaked: int
    overdue: int
    leaked_by_flow: dict[str, int]
    counts: tuple[Tally, ...]


async def leak_report(store: AuditedStore, *, since: Instant = 0) -> LeakReport:
    """The state of everything that was reserved from ``since`` on, and the verdict."""
    now = store.now()
    counts = tuple(await store.tally(since))
    overdue = len(await store.due(OBLIGATION, now + 1, MOST_ROWS))
    leaked = {flow: count for flow in {one.flow for one in counts} if (count := _sum(counts, flow, "leak_scan"))}
    return LeakReport(
        verdict=LEAKS if leaked or overdue else NO_LEAKS,
        at=now,
        since=since,
        reserved=_of(counts, State.RESERVED),
        committed=_of(counts, State.COMMITTED),
        rolled_back=_of(counts, State.ROLLED_BACK),
        leaked=sum(leaked.values()),
        overdue=overdue,
        leaked_by_flow=dict(sorted(leaked.items())),
        counts=counts,
    )


def _of(counts: Iterable[Tally], state: State) -> int:
    return sum(one.count for one in counts if one.state == state)


def _sum(counts: Iterable[Tally], flow: str, resolution: str) -> int:
    return sum(one.count for one in counts if (one.flow, one.resolution) == (flow, resolution))


def as_json_line(line: AuditLine) -> bytes:
    """One line of the export, with its end."""
    encoded: bytes = msgspec.json.encode(line)
    return encoded + b"\n"
