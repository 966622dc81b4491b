"""The outbox: a job is durable with the transition that owes it, due when it says so, and there once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from twophp.core import job as jobs
from twophp.core.errors import StoreError
from twophp.core.intent import INTENT
from twophp.core.job import DEFAULT_TRIES, JOB, Command, Delivered, Enqueue, Failed, State, Tick, by_job_id
from twophp.core.phase import decide
from twophp.core.records import Sealed
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Part, Put, Records, WholeStore
from twophp.stores.testing.capability import DURABLE, SHARED, needs, shows
from twophp.stores.testing.scene import (
    EVERYTHING,
    NO_SEALS,
    POLICY,
    T0,
    AuditableStore,
    HandClock,
    OpenStore,
    Stage,
    intent_put,
    pair_of,
    read,
    register,
    registration,
    sealed,
    verified_journal,
    write,
)

ID = "server-1/callback"
HOUR_MS = 3_600_000


def new_job(job_id: str = ID) -> Put:
    """A job without an attempt yet, with its payload."""
    command = Enqueue(job_id=job_id, work="callback", subject="server-1")
    return job_put(jobs.decide(None, command, T0), payload=b"payload")


def job_put(decision: jobs.JobDecision, payload: bytes | None = None) -> Put:
    """What a decision makes durable."""
    assert decision.job is not None
    seals: Mapping[Part, Sealed | None] = NO_SEALS if payload is None else {"payload": sealed(payload)}
    return Put(record=decision.job, journal=decision.steps, seals=seals)


async def take(store: WholeStore, command: Command, job_id: str = ID) -> jobs.JobDecision:
    """Take ``command`` to a job."""
    key = by_job_id(job_id)

    def change(records: Records) -> Change:
        decision = jobs.decide(records.get(key), command, records.now)
        if not decision.changed or decision.job is None:
            return Change(answer=decision)
        if decision.job.state is State.ABSENT:
            return Change(answer=decision, drops=(key,), journal=decision.steps)
        return Change(answer=decision, puts=(job_put(decision),))

    decision: jobs.JobDecision = await store.transact(AdHocCommand((key,), change))
    return decision


class JobContract(Stage):
    """Jobs are records like all others."""

    @shows("P-5.5.3-c", "A-38")
    async def test_a_job_is_there_with_the_transition_that_owes_it(self, store: AuditableStore) -> None:
        """One change: the intent, its ledger row and what is owed for it."""
        intent, job = intent_put(decide(None, registration(), T0, POLICY)), new_job()
        await write(store, intent, job)
        assert await read(store, by_job_id(ID)) == job.record
        assert await store.unseal(by_job_id(ID), "payload") == b"payload"
        assert [line.event for line in await store.history(by_job_id(ID))] == list(job.journal)
        assert await read(store, intent.record.keys()[0]) == intent.record

    @shows("A-38")
    async def test_a_transition_whose_job_cannot_be_kept_does_not_happen(self, store: AuditableStore) -> None:
        """An id is used once, so the same thing is never owed twice; and nothing is left of the attempt."""
        await write(store, new_job())
        lines = await verified_journal(store)
        intent = intent_put(decide(None, registration(), T0, POLICY))
        with pytest.raises(StoreError) as refusal:
            await write(store, intent, new_job())
        assert refusal.value.code == "constraint"
        assert await read(store, intent.record.keys()[0]) is None
        assert await verified_journal(store) == lines

    async def test_jobs_are_due_by_themselves(self, store: AuditableStore, clock: HandClock) -> None:
        """Most overdue first, apart from the intents, and not while an attempt holds the lease."""
        intent = await register(store)
        await write(store, new_job("b"))
        later = new_job("a")
        await write(store, replace(later, record=replace(later.record, due_at=T0 + 1)))  # type: ignore[type-var]
        assert await store.due(JOB, T0, EVERYTHING) == []
        assert await store.due(JOB, T0 + 2, EVERYTHING) == [by_job_id("b"), by_job_id("a")]
        assert await store.due(INTENT, T0 + HOUR_MS, EVERYTHING) == [pair_of(intent)]
        clock.now = T0 + 1
        started = await take(store, Tick(), "b")
        assert started.begins_attempt
        assert await store.due(JOB, T0 + 2, EVERYTHING) == [by_job_id("a")]
        lease_end = T0 + 1 + DEFAULT_TRIES.lease_ms
        assert by_job_id("b") in await store.due(JOB, lease_end + 1, EVERYTHING)

    @shows("A-39")
    async def test_a_job_is_tried_again_and_its_payload_stays_what_it_was(
        self, store: AuditableStore, clock: HandClock
    ) -> None:
        """Every field of every version comes back as it was written."""
        await write(store, new_job())
        for attempt in (1, 2):
            started = await take(store, Tick())
            assert started.begins_attempt
            assert await read(store, by_job_id(ID)) == started.job
            failed = await take(store, Failed(attempt=attempt, error="unreachable"))
            assert await read(store, by_job_id(ID)) == failed.job
            assert await store.unseal(by_job_id(ID), "payload") == b"payload"
            clock.now += HOUR_MS
        events = [line.event.event for line in await store.history(by_job_id(ID))]
        assert events == ["PENDING", *("RUNNING", "attempt_failed") * 2]

    async def test_a_delivered_job_is_forgotten_in_time(self, store: AuditableStore, clock: HandClock) -> None:
        """Its history says that it was."""
        await write(store, new_job())
        await take(store, Tick())
        await take(store, Delivered(attempt=1))
        clock.now += DEFAULT_TRIES.delivered_kept_ms
        await take(store, Tick())
        assert await read(store, by_job_id(ID)) is None
        assert await store.unseal(by_job_id(ID), "payload") is None
        assert await store.due(JOB, clock.now + HOUR_MS, EVERYTHING) == []
        assert (await verified_journal(store))[-1].event.event == "forgotten"

    @needs(SHARED)
    async def test_of_two_that_come_by_one_starts(self, open_store: OpenStore, clock: HandClock) -> None:
        """Also when each has a handle of its own."""
        async with open_store(clock) as one, open_store(clock) as other:
            await write(one, new_job())
            assert (await take(one, Tick())).begins_attempt
            assert not (await take(other, Tick())).changed

    @needs(DURABLE)
    @shows("A-38", "A-39")
    async def test_a_job_is_still_owed_after_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """With the payload that was sealed when it was made."""
        async with open_store(clock) as store:
            await write(store, put := new_job())
        async with open_store(clock) as store:
            assert await store.due(JOB, T0 + 1, EVERYTHING) == [by_job_id(ID)]
            assert await read(store, by_job_id(ID)) == put.record
            assert await store.unseal(by_job_id(ID), "payload") == b"payload"
