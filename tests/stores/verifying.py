"""A database to tamper with, and what a verification finds in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.stores.orders import POLICY, HandClock, orders
from twophp.core import job, obligation
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Put, Records
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import ProvenHead, verify
from twophp.storing.bites import RETENTION_MS, purge

# Six orders, in this order: four that were settled, one that is waiting, one that was abandoned.
# Each settled one has three lines: registered, confirmed, settled. Line 1 is about s0, lines 4 to 6 are about s1.
SETTLED = range(4)


def filled(path: Path) -> Path:
    """The database, with what the comment above says."""

    async def fill() -> None:
        clock = HandClock()
        async with orders(path, clock=clock) as service:
            for n in SETTLED:
                await service.take(n)
            await service.register(4)
            clock.now += POLICY.ttl_ms + POLICY.delta_ms
            await service.sweep()
            await service.register(5)
            await reserve(service.store)

    asyncio.run(fill())
    return path


async def forgotten(path: Path, **arrived: int) -> int:
    """Everything was settled and forgotten long ago; rows that arrived when it says are purged: so many."""
    clock = HandClock(HandClock().now + 2 * POLICY.horizon_ms)
    async with orders(path, clock=clock) as service:
        for _ in range(2):  # The payload goes first, then the rest.
            await service.sweep()
            for id_, at in arrived.items():
                await service.store.synced(await service.store.entries(Find(id_)), at)
            clock.now += POLICY.horizon_ms
        return await purge(service.store, RETENTION_MS)


async def reserve(store: SQLiteStore) -> None:
    command = obligation.Reserve(obligation_id="o1", flow="publish", trace_id="t1")

    def change(records: Records) -> Change:
        decision = obligation.decide(None, command, records.now)
        [record] = decision.records
        return Change(answer=None, puts=(Put(record=record, journal=decision.steps),))

    await store.transact(AdHocCommand((), change))


async def enqueue(store: SQLiteStore) -> None:
    command = job.Enqueue(job_id="j1", work="callback", subject="s1")

    def change(records: Records) -> Change:
        decision = job.decide(None, command, records.now)
        assert decision.job is not None
        return Change(answer=None, puts=(Put(record=decision.job, journal=decision.steps),))

    await store.transact(AdHocCommand((), change))


def found(path: Path, expect: ProvenHead | None = None) -> list[tuple[str, int | None, str]]:
    report = verify(str(path), expect=expect)
    assert report.holds is not bool(report.findings)
    return [(finding.what, finding.seq, finding.subject) for finding in report.findings]


def messages(path: Path) -> str:
    return "\n".join(finding.message for finding in verify(str(path)).findings)
