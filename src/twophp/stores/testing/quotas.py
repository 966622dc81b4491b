"""Usage: a count that is kept in the same changes as what it counts."""

from __future__ import annotations

import asyncio

import pytest

from twophp.core.errors import StoreError
from twophp.core.phase import decide
from twophp.core.quota import Usage, by_principal
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Records, WholeStore
from twophp.stores.testing.capability import DURABLE, needs
from twophp.stores.testing.scene import (
    POLICY,
    T0,
    AuditableStore,
    HandClock,
    OpenStore,
    Stage,
    intent_put,
    pair_of,
    read,
    registration,
    write,
)

KEY = by_principal("alice")


async def add(store: WholeStore, intents: int, size: int) -> int:
    """Change the count by so much; how many there are then."""

    def change(records: Records) -> Change:
        usage: Usage | None = records.get(KEY)
        before = usage or Usage("alice", 0, 0, 0)
        now = Usage("alice", before.open_intents + intents, before.open_bytes + size, before.version + 1)
        if now.open_intents == 0:
            return Change(answer=0, drops=(KEY,))
        return Change(answer=now.open_intents, puts=(Put(record=now),))

    found: int = await store.transact(AdHocCommand((KEY,), change))
    return found


class QuotaContract(Stage):
    """A count is a record like all others, but for having no history."""

    async def test_a_count_rises_and_falls_and_goes(self, store: AuditableStore) -> None:
        """The count is dropped when no intent is open, and it can begin again."""
        for _ in range(2):
            await add(store, 2, 10)
            assert await add(store, -1, -4) == 1
            assert await read(store, KEY) == Usage("alice", 1, 6, 2)
            assert await add(store, -1, -6) == 0
            assert await read(store, KEY) is None

    async def test_a_crowd_is_counted_one_by_one(self, store: AuditableStore) -> None:
        """Each sees what the one before it has done, in one batch or in many."""
        seen = await asyncio.gather(*(add(store, 1, 1) for _ in range(100)))
        assert sorted(seen) == list(range(1, 101))
        seen = await asyncio.gather(*(add(store, -1, -1) for _ in range(100)))
        assert sorted(seen) == list(range(100))
        assert await read(store, KEY) is None

    async def test_it_is_kept_with_the_intent_or_not_at_all(self, store: AuditableStore) -> None:
        """A change of which one part cannot be written leaves neither."""
        intent = intent_put(decide(None, registration(counted_bytes=7), T0, POLICY))
        await write(store, intent, Put(record=Usage("alice", 1, 7, 1)))
        found = await read(store, pair_of(intent.record))  # type: ignore[arg-type]
        assert found == intent.record
        other = intent_put(decide(None, registration("2", counted_bytes=7), T0, POLICY))
        with pytest.raises(StoreError):
            await write(store, other, Put(record=Usage("alice", 2, 14, 9)), keys=(KEY,))
        assert await read(store, KEY) == Usage("alice", 1, 7, 1)
        assert await read(store, pair_of(other.record)) is None  # type: ignore[arg-type]

    @needs(DURABLE)
    async def test_it_is_there_after_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """As durable as what it counts."""
        async with open_store(clock) as store:
            await add(store, 3, 30)
        async with open_store(clock) as store:
            assert await read(store, KEY) == Usage("alice", 3, 30, 1)
