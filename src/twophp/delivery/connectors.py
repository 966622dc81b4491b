"""Our own connectors reach the outside through obligations, too (OBL-OV-1).

What a transition of an intent owes to others (the acknowledgement of a callback, a compensation hook) is decided by
that very transition: it is reserved and committed in the same change that makes its job durable, so in between nothing
is ever seen of it (A-72). The outbox must show the committed obligation; a connector that is called without one raises
before anything leaves. Requests that owe nothing pay nothing for it.

Only the central ledger decides a shipment of ledger rows, so it is reserved before the rows leave and settled by the
answer (``shipping.shipments``). Its connector asks for one that is Reserved.
"""

from __future__ import annotations

from typing import Final

import msgspec

from twophp.core.job import Job
from twophp.core.obligation import NOT_FOUND, Commit, Obligation, ObligationError, Reserve, State, decide
from twophp.core.records import Instant
from twophp.ports import Put

CONNECTORS: Final = frozenset({"callback", "hook"})
"""The works of jobs that are connectors of ours; each is a flow of that name."""


def committed_with(job: Job, now: Instant) -> Put:
    """The obligation of a job, reserved and committed at once, for the change that owes the job."""
    command = Reserve(obligation_id=job.job_id, flow=job.work, trace_id=job.subject, intent=job.subject)
    reserved = decide(None, command, now, CONNECTORS)
    committed = decide(reserved.obligation, Commit(trace_id=job.subject), now)
    assert committed.obligation is not None
    record = msgspec.structs.replace(committed.obligation, version=1)  # The store sees it once, as it is in the end.
    return Put(record=record, journal=reserved.steps + committed.steps)


def require_committed(obligation: Obligation | None) -> None:
    """Raise unless there is a committed obligation to act on."""
    if obligation is None or obligation.state is not State.COMMITTED:
        raise ObligationError("a connector acts on a committed obligation alone; go through the outbox", code=NOT_FOUND)


def require_reserved(obligation: Obligation | None) -> None:
    """Raise unless there is an open obligation to act under."""
    if obligation is None or obligation.state is not State.RESERVED:
        raise ObligationError("rows leave under a reserved shipment alone; go through the shipper", code=NOT_FOUND)
