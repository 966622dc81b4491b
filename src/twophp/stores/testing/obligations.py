"""Obligations asked for by what they have in common, counted, and the two small records beside them."""

from __future__ import annotations

import asyncio

import pytest

from twophp.core import obligation as rules
from twophp.core.budget import Spent, by_flow
from twophp.core.errors import StoreError
from twophp.core.fence import Fence, by_resource
from twophp.core.obligation import State, by_id
from twophp.core.records import Key
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Obligations, Put, Records, Tally, WholeStore
from twophp.stores.testing.capability import DURABLE, needs
from twophp.stores.testing.scene import (
    T0,
    AuditableStore,
    HandClock,
    OpenStore,
    Stage,
    finish,
    obligation_change,
    read,
    reserve,
    write,
)


async def listed(store: WholeStore, **wanted: object) -> list[str]:
    """The ids that fit."""
    return [one.obligation_id for one in await store.obligations(Obligations(**wanted))]  # type: ignore[arg-type]


async def roll_back(store: WholeStore, name: str) -> None:
    """Roll it back."""
    key, command = by_id(name), rules.Rollback(trace_id="t")
    await store.transact(
        AdHocCommand((key,), lambda records: obligation_change(rules.decide(records.get(key), command, records.now)))
    )


async def raise_token(store: WholeStore) -> int:
    """The next token of one resource."""
    key = by_resource("printer")

    def change(records: Records) -> Change:
        found: Fence | None = records.get(key)
        token, version = (0, 0) if found is None else (found.token, found.version)
        return Change(answer=token + 1, puts=(Put(record=Fence("printer", token + 1, "o", version + 1)),))

    number: int = await store.transact(AdHocCommand((key,), change))
    return number


class ObligationContract(Stage):
    """What a tracker asks of a store beyond its one verb."""

    async def test_obligations_are_found_by_what_they_have_in_common(self, store: AuditableStore) -> None:
        """Newest first, and only those that fit everything that was given."""
        for number in range(4):
            await reserve(store, f"o{number}", f"k{number}", intent="call" if number % 2 else "")
        await finish(store, "o0")
        await roll_back(store, "o1")
        assert await listed(store) == ["o3", "o2", "o1", "o0"]
        assert await listed(store, state="Reserved") == ["o3", "o2"]
        assert await listed(store, state="Committed") == ["o0"]
        assert await listed(store, intent="call") == ["o3", "o1"]
        assert await listed(store, state="Reserved", intent="call") == ["o3"]
        assert await listed(store, key="k2", flow="publish", trace_id="t") == ["o2"]
        assert await listed(store, flow="revoke") == []

    async def test_pages_do_not_overlap(self, store: AuditableStore) -> None:
        """A page ends where the next begins, also among what is Reserved."""
        for number in range(5):
            await reserve(store, f"o{number}", intent="call")
        for wanted in ({}, {"state": "Reserved"}, {"state": "Reserved", "intent": "call"}):
            first = await listed(store, limit=2, **wanted)
            second = await listed(store, limit=2, before=first[-1], **wanted)
            assert (first, second) == (["o4", "o3"], ["o2", "o1"])

    async def test_reserved_and_tally(self, store: AuditableStore, clock: HandClock) -> None:
        """Counts by flow, state and resolution, from an instant on."""
        await reserve(store, "o0")
        await finish(store, "o0")
        clock.now = T0 + 5
        await reserve(store, "o1")
        await reserve(store, "o2")
        await roll_back(store, "o2")
        assert await store.reserved() == 1
        early, late = await store.tally(), await store.tally(T0 + 1)
        assert early == [
            Tally("publish", "Committed", "caller", 1),
            Tally("publish", "Reserved", "", 1),
            Tally("publish", "RolledBack", "caller", 1),
        ]
        assert late == early[1:]

    async def test_what_was_settled_long_ago_is_found_oldest_first(
        self, store: AuditableStore, clock: HandClock
    ) -> None:
        """Also behind those that are still Reserved. A dropped one keeps its lines."""
        for number in range(4):
            await reserve(store, f"o{number}", f"k{number}")
        await finish(store, "o0")
        clock.now = T0 + 10
        await finish(store, "o2")
        await roll_back(store, "o3")
        assert await store.settled(T0 + 10, 10) == [by_id("o0")]
        assert await store.settled(T0 + 11, 2) == [by_id("o0"), by_id("o2")]
        assert await store.settled(T0 + 11, 3) == [by_id("o0"), by_id("o2"), by_id("o3")]
        gone = (by_id("o0"), by_id("o2"))
        await store.transact(AdHocCommand(gone, lambda _records: Change(answer=None, drops=gone)))
        assert await store.settled(T0 + 11, 10) == [by_id("o3")]
        assert await listed(store) == ["o3", "o1"]
        told = {line.event.subject for line in await store.journal(0, 20) if line.event.event == "OBL-002"}
        assert told == {"o0", "o2"}

    @needs(DURABLE)
    async def test_whether_it_counts_survives(self, open_store: OpenStore, clock: HandClock) -> None:
        """What a budget counted is still known to be counted after a restart."""
        async with open_store(clock) as store:
            await reserve(store, "o1", counted=True)
            await reserve(store, "o2")
        async with open_store(clock) as store:
            found = [await read(store, by_id(name)) for name in ("o1", "o2")]
            assert [one.counted for one in found] == [True, False]
            assert {one.state for one in found} == {State.RESERVED}

    async def test_a_budgets_count_comes_and_goes(self, store: AuditableStore) -> None:
        """A count is a record like all others, and may begin again after it is gone."""
        key = by_flow("publish")
        for _ in range(2):
            await write(store, Put(record=Spent("publish", 1, 1)), keys=(key,))
            await write(store, Put(record=Spent("publish", 2, 2)), keys=(key,))
            assert await read(store, key) == Spent("publish", 2, 2)
            await store.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))
            assert await read(store, key) is None

    async def test_tokens_of_concurrent_holders_rise_one_by_one(self, store: AuditableStore) -> None:
        """Each sees the token of the one before it, in one batch or in many."""
        assert sorted(await asyncio.gather(*(raise_token(store) for _ in range(50)))) == list(range(1, 51))
        assert await read(store, by_resource("printer")) == Fence("printer", 50, "o", 50)

    @needs(DURABLE)
    async def test_tokens_rise_over_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """A resource is never given an old number again."""
        numbers = []
        for _ in range(3):
            async with open_store(clock) as store:
                numbers.append(await raise_token(store))
        assert numbers == [1, 2, 3]

    async def test_a_token_is_never_forgotten(self, store: AuditableStore) -> None:
        """A dropped token would begin again at 1."""
        key: Key = by_resource("printer")
        await raise_token(store)
        with pytest.raises(StoreError) as error:
            await store.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))
        assert error.value.code == "constraint"
        assert (await read(store, key)).token == 1
