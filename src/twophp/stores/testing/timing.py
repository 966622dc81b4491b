"""Time: what is due, in which order, and a clock that cannot turn back."""

from __future__ import annotations

from twophp.core.intent import INTENT, Mode, Phase
from twophp.core.obligation import OBLIGATION, by_id
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find
from twophp.stores.testing.capability import DURABLE, needs, shows
from twophp.stores.testing.scene import (
    EVERYTHING,
    POLICY,
    T0,
    AuditableStore,
    HandClock,
    OpenStore,
    Stage,
    attend,
    confirm,
    finish,
    found,
    pair_of,
    read,
    register,
    reserve,
    sealed,
    settle,
)

MINUTE_MS = 60_000


async def now_of(store: AuditableStore) -> int:
    """The time that a decision is given."""
    now: int = await store.transact(AdHocCommand((), lambda records: Change(answer=records.now)))
    return now


class TimingContract(Stage):
    """Sweeps find what is due, and time never runs backwards."""

    @shows("P-12.2-a")
    async def test_due_is_most_overdue_first_and_ends_at_the_limit(self, store: AuditableStore) -> None:
        """So a sweep that comes late catches up in the right order."""
        names = ["third", "first", "second"]
        for name, at in zip(names, (T0 + 3, T0 + 1, T0 + 2), strict=True):
            await register(store, name, arrived_at=at)
        due = [key.values[0] for key in await store.due(INTENT, T0 + MINUTE_MS, 2)]
        assert due == ["client-first", "client-second"]
        assert len(await store.due(INTENT, T0 + MINUTE_MS, EVERYTHING)) == len(names)
        assert await store.due(INTENT, T0 + MINUTE_MS, 0) == []

    @shows("A-26")
    async def test_before_is_exclusive(self, store: AuditableStore) -> None:
        """Every window here is half-open. What is due *at* this instant is found by asking for the next one.

        An intent is expired when ``now == deadline`` (A-26), so a sweep at ``now`` asks for ``before=now + 1``.
        """
        intent = await register(store)
        assert intent.due_at == intent.deadline_at
        assert await store.due(INTENT, intent.deadline_at, 1) == []
        assert await store.due(INTENT, intent.deadline_at + 1, 1) == [pair_of(intent)]

    async def test_due_says_the_identity_and_keeps_the_kinds_apart(self, store: AuditableStore) -> None:
        """A key from ``due`` can be named in a transaction as it is."""
        intent = await register(store)
        await reserve(store, "obligation", "key")
        assert await store.due(INTENT, T0 + MINUTE_MS, 10) == [pair_of(intent)]
        assert await store.due(OBLIGATION, T0 + MINUTE_MS, 10) == [by_id("obligation")]

    async def test_asking_does_not_take_away(self, store: AuditableStore) -> None:
        """A record that was not processed is still due for the next caller."""
        await register(store)
        first = await store.due(INTENT, T0 + MINUTE_MS, 10)
        assert await store.due(INTENT, T0 + MINUTE_MS, 10) == first

    async def test_due_follows_the_newest_version(self, store: AuditableStore) -> None:
        """A new version's time replaces the old one's, also when it is none."""
        intent = await confirm(store, await register(store))
        assert intent.due_at is not None
        assert await store.due(INTENT, intent.due_at, 10) == []
        assert await store.due(INTENT, intent.due_at + 1, 10) == [pair_of(intent)]
        await reserve(store, "obligation", "key")
        await finish(store, "obligation")
        assert await store.due(OBLIGATION, T0 + 10 * MINUTE_MS, 10) == []

    @shows("A-29")
    async def test_time_never_runs_backwards(self, store: AuditableStore, clock: HandClock) -> None:
        """A clock that was set back does not revive what has expired."""
        clock.now = T0 + MINUTE_MS
        await register(store, arrived_at=clock.now)
        clock.now = T0
        assert await now_of(store) == T0 + MINUTE_MS
        assert store.now() == T0 + MINUTE_MS, "what arrives is stamped by the same time"

    @shows("A-29")
    async def test_time_goes_on_after_the_clock_was_set_back(self, store: AuditableStore, clock: HandClock) -> None:
        """Else nothing would expire, and no crash be noticed, until the clock is back where it was."""
        clock.now = T0 + MINUTE_MS
        await register(store, arrived_at=clock.now)
        clock.now = T0
        assert store.now() == T0 + MINUTE_MS
        clock.now = T0 + 1
        assert store.now() == await now_of(store) == T0 + MINUTE_MS + 1

    @needs(DURABLE)
    @shows("A-29")
    async def test_time_never_runs_backwards_over_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """The last time that anything was written is part of what was written."""
        clock.now = T0 + MINUTE_MS
        async with open_store(clock) as store:
            await register(store, arrived_at=clock.now)
        clock.now = T0
        async with open_store(clock) as store:
            assert store.now() == await now_of(store) == T0 + MINUTE_MS
            clock.now += 1
            assert store.now() == await now_of(store) == T0 + MINUTE_MS + 1

    @shows("P-7-f", "A-83", "A-27")
    async def test_an_abandoned_intent_loses_its_payload_and_keeps_its_tombstone(
        self, store: AuditableStore, clock: HandClock
    ) -> None:
        """Registered, never confirmed: expired, then abandoned, in the ledger as well."""
        intent = await register(store, seals={"payload": sealed(b"payload")})
        clock.now = intent.deadline_at
        expired = found(await attend(store, intent))
        assert (expired.phase, await store.unseal(pair_of(intent), "payload")) == (Phase.TTL_EXPIRED, b"payload")
        clock.now = intent.abandoned_at
        abandoned = found(await attend(store, intent, seals={"payload": None}))
        assert abandoned.phase is Phase.ABANDONED
        assert await read(store, pair_of(intent)) == abandoned
        assert await store.unseal(pair_of(intent), "payload") is None
        (row,) = await store.entries(Find("server-1"))
        assert (row.phase, row.outcome, row.payload_ref) == (Phase.ABANDONED, Phase.ABANDONED, None)
        at = [line.event.at for line in await store.history(pair_of(intent))]
        assert at == [T0, intent.deadline_at, intent.abandoned_at]

    @shows("P-5.5.3-b", "P-5.5.7-d")
    async def test_auto_confirm_is_one_change(self, store: AuditableStore) -> None:
        """From ABSENT to PROCESSING: history has both steps, and no reader could see the first alone."""
        intent = await register(store, mode=Mode.AUTO_CONFIRM)
        assert (intent.phase, intent.version) == (Phase.PROCESSING, 1)
        after = [line.event.after for line in await store.history(pair_of(intent))]
        assert after == ["WAITING_CONFIRM", "PROCESSING"]
        (row,) = await store.entries(Find("server-1"))
        assert (row.phase, row.version) == (Phase.PROCESSING, 1)

    @shows("A-83")
    async def test_a_settled_intent_is_purged_and_then_forgotten(self, store: AuditableStore, clock: HandClock) -> None:
        """Its payload goes first, its record at the end of the horizon, its ledger row never."""
        intent = await settle(store, await confirm(store, await register(store, seals={"payload": sealed(b"payload")})))
        clock.now += POLICY.payload_retention_ms
        purged = found(await attend(store, intent, seals={"payload": None}))
        assert (purged.phase, purged.has_payload) == (Phase.COMMITTED, False)
        clock.now += POLICY.horizon_ms
        assert await store.due(INTENT, clock.now + 1, 10) == [pair_of(intent)]
        await attend(store, intent)
        assert await read(store, pair_of(intent)) is None
        assert await store.due(INTENT, clock.now + 10 * POLICY.horizon_ms, 10) == []
        assert [row.phase for row in await store.entries(Find("server-1"))] == [Phase.COMMITTED]
