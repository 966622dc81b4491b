"""What the services on both sides answer about one call when an operator who may pull asks. It is shown, not kept.

Their journals, as far as they are about this call; what was owed to others, with its attempts; who executes it, until
when, under which fence; the obligations that were reserved for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from twophp.central.drawing.words import CLASSES, INDETERMINATE, LABELS
from twophp.central.ingest.told import ServiceReply, keepers, told_about
from twophp.central.pages.frame import Visit
from twophp.central.ports import Service
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.job import JOB
from twophp.core.obligation import EVENTS, OBLIGATION
from twophp.core.pairing import Pair
from twophp.core.records import Instant
from twophp.wire.evidence import EvidenceFacts, LineFacts
from twophp.wire.rows import instant_of

ASKED: Final = "ask"
"""The parameter of the address that asks."""

DOTS: Final[Mapping[str, str]] = {str(state): class_ for state, class_ in CLASSES.items()} | {
    "PENDING": "waiting-confirm",
    "RUNNING": "processing",
    "DELIVERED": "committed",
    "DEAD": "failed",
    "Reserved": "waiting-confirm",
    "Committed": "committed",
    "RolledBack": "abandoned",
}
"""States of jobs and obligations look like the phases that they are most like."""
_WORDS: Final[Mapping[str, str]] = {
    "WAITING_CONFIRM": "registered; waits for Phase 2",
    "PROCESSING": "confirmed; past the point of no return",
    "indeterminate": "failed, and nobody knows whether its effects happened",
    "recovered": "taken over: the lease of its executor had ended",
    "payload_purged": "payload destroyed, as its retention says",
    "attempt_failed": "attempt failed; to be made again",
    "taken_over": "taken over: the lease of the attempt had ended",
    "PENDING": "owed",
    "RUNNING": "attempt begun",
    "DELIVERED": "delivered",
    "DEAD": "given up",
}


_FAILURES: Final = frozenset({"attempt_failed", "taken_over", "DEAD"})


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal, in words."""

    line: LineFacts
    at: Instant
    dot: str
    what: str
    about: str
    late_ms: int  # How much later it was noticed.
    remark: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one service told, ready to be shown, or why it did not."""

    told: ServiceReply
    moments: Sequence[Moment] = ()
    at: Instant | None = None

    @property
    def name(self) -> str:
        """The service's."""
        return self.told.service.name

    @property
    def evidence(self) -> EvidenceFacts | None:
        """What it told."""
        return self.told.evidence

    @property
    def is_empty(self) -> bool:
        """Whether it answered that it knows nothing of this call."""
        found = self.told.evidence
        return found is not None and found.intent is None and found.call is None


async def accounts_of(visit: Visit, pair: Pair, services: Sequence[Service]) -> list[Account] | None:
    """What the services answer; None if the visitor did not ask, or may not."""
    if not visit.asked(ASKED) or not visit.is_operator:
        return None
    told = await told_about(visit.central.puller, keepers(pair.rows, services), pair.key)
    return [_account(one) for one in told]


def can_be_asked(rows: Sequence[LedgerEntry], services: Sequence[Service]) -> list[Service]:
    """The services that know of the call and have a pull URL."""
    return [service for service in keepers(rows, services) if service.pull_url is not None]


def _account(told: ServiceReply) -> Account:
    found = told.evidence
    if found is None:
        return Account(told=told)
    names = {job.job_id: f"{job.work} {job.name}".rstrip() for job in found.jobs}
    flows = {one.obligation_id: f"{one.flow} obligation" for one in found.obligations}
    known = {JOB: names, OBLIGATION: flows}
    moments = [_moment(line, known.get(line.kind, {}).get(line.subject, "")) for line in found.journal]
    return Account(told=told, moments=moments, at=instant_of(found.at))


def _moment(line: LineFacts, about: str) -> Moment:
    at = instant_of(line.at)
    return Moment(
        line=line,
        at=at,
        dot=CLASSES[INDETERMINATE] if line.event == "indeterminate" else DOTS.get(line.after, ""),
        what=_what(line),
        about=about,
        late_ms=max(instant_of(line.observed_at) - at, 0),
        remark=line.detail if line.kind == JOB and line.event in _FAILURES else "",
    )


def _what(line: LineFacts) -> str:
    if line.event in EVENTS:
        return EVENTS[line.event].removeprefix("Obligation ").lower()
    if line.event in _WORDS:
        return _WORDS[line.event]
    is_phase = line.after in Phase.__members__ and line.event == line.after
    return LABELS[Phase(line.after)].lower() if is_phase else line.event.replace("_", " ")
