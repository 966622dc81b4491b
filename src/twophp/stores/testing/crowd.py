"""Many callers at once, callers that give up, several handles, and a store that was closed."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from twophp.core.intent import INTENT, Phase, by_logical_key
from twophp.core.intent_commands import Renew
from twophp.core.obligation import by_flow_and_key, by_id
from twophp.core.records import JournalEvent
from twophp.kernel.commands import AdHocCommand, MakeChange
from twophp.ports import Admission, Change, Find
from twophp.stores.testing.capability import DURABLE, SHARED, needs, shows
from twophp.stores.testing.scene import (
    EVERYTHING,
    T0,
    AuditableStore,
    HandClock,
    OpenStore,
    Stage,
    act,
    confirm,
    confirmation,
    pair_of,
    read,
    register,
    registration,
    reserve,
    sealed,
    settle,
    verified_journal,
)

CROWD: Final = 256
YEAR_MS: Final = 365 * 24 * 3_600_000


class CrowdContract(Stage):
    """Of concurrent callers who want the same, one wins; and no change gets lost."""

    @shows("A-33", "P-6-b")
    async def test_of_many_confirms_one_wins(self, store: AuditableStore) -> None:
        """The others find out what became of the intent."""
        intent = await register(store)
        decisions = await asyncio.gather(*(act(store, pair_of(intent), confirmation(intent)) for _ in range(CROWD)))
        assert sum(decision.changed for decision in decisions) == 1
        assert {decision.intent for decision in decisions} == {await read(store, pair_of(intent))}
        assert len(await store.history(pair_of(intent))) == 1 + 1

    @shows("A-32", "REG-1-05")
    async def test_of_many_registrations_with_one_id_one_is_made(self, store: AuditableStore) -> None:
        """Whichever server id each of them brought, all get the one that was stored."""
        key = by_logical_key("alice", "client-1")
        commands = [replace(registration(), server_correlation_id=f"server-{number}") for number in range(CROWD)]
        decisions = await asyncio.gather(*(act(store, key, command) for command in commands))
        assert {decision.intent for decision in decisions} == {await read(store, key)}
        assert len(await store.entries(Find("client-1"))) == 1

    async def test_versions_rise_without_gaps(self, store: AuditableStore) -> None:
        """Every one of many changes to one record is made, and none is made over another."""
        intent = await confirm(store, await register(store))
        renewals = (act(store, pair_of(intent), Renew(fence=intent.fence)) for _ in range(CROWD))
        decisions = await asyncio.gather(*renewals)
        versions = [decision.intent.version for decision in decisions if decision.intent is not None]
        assert versions == list(range(intent.version + 1, intent.version + CROWD + 1))
        assert (await read(store, pair_of(intent))).version == intent.version + CROWD

    async def test_changes_are_made_in_order_of_arrival(self, store: AuditableStore) -> None:
        """The journal tells."""

        async def say(number: int) -> None:
            event = JournalEvent("test", str(number), "said", "", "", T0, T0)
            await store.transact(AdHocCommand((), lambda _records: Change(answer=None, journal=(event,))))

        await asyncio.gather(*(say(number) for number in range(CROWD)))
        assert [line.event.subject for line in await verified_journal(store)] == [str(n) for n in range(CROWD)]

    @shows("A-108")
    async def test_a_change_of_any_admission_is_made_and_answered(self, store: AuditableStore) -> None:
        """Which of them goes first is a matter of the queue, where there is one."""
        admissions: tuple[Admission, ...] = ("background", "new", "accepted")
        for admission in admissions:
            assert await store.transact(MakeChange(Change(answer=admission), admission)) == admission

    async def test_a_key_goes_from_hand_to_hand(self, store: AuditableStore) -> None:
        """Of many reserves for one key one gets it, and all others find that holder."""
        decisions = await asyncio.gather(*(reserve(store, str(number), "key") for number in range(CROWD)))
        winners = [decision.obligation for decision in decisions if decision.changed]
        assert len(winners) == 1
        assert winners == [await read(store, by_flow_and_key("publish", "key"))]

    async def test_a_caller_that_gives_up_affects_no_other(self, store: AuditableStore) -> None:
        """An accepted change is made even if its caller no longer waits; and the others get their answers."""
        calls = [asyncio.ensure_future(register(store, str(number))) for number in range(8)]
        await asyncio.sleep(0)  # Each has handed its wish over by now.
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await store.transact(AdHocCommand((), lambda _records: Change(answer=None)))
        made = [row.client_correlation_id for row in await store.changes(EVERYTHING)]
        assert made == [f"client-{number}" for number in range(8)]
        assert [call.result().version for call in calls[1::2]] == [1] * 4

    @needs(DURABLE)
    @shows("P-6-a", "P-9.1-a")
    async def test_everything_is_there_after_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """Records, second keys, sealed parts, rows, what is unsynced, what is due, settings, history."""
        async with open_store(clock) as store:
            intent = await register(store, seals={"payload": sealed(b"payload")})
            await reserve(store, "obligation", "key")
            await store.get_or_set_meta("setting", "value")
            lines, rows = await verified_journal(store), await store.changes(10)
        async with open_store(clock) as store:
            assert await read(store, pair_of(intent)) == intent
            assert (await read(store, by_flow_and_key("publish", "key"))).obligation_id == "obligation"
            assert await store.unseal(pair_of(intent), "payload") == b"payload"
            assert await store.changes(10) == rows
            assert await store.due(INTENT, T0 + YEAR_MS, 10) == [pair_of(intent)]
            assert await store.get_or_set_meta("setting", "other") == "value"
            assert await verified_journal(store) == lines

    @needs(DURABLE)
    async def test_life_goes_on_after_a_restart(self, open_store: OpenStore, clock: HandClock) -> None:
        """Ids, versions and the chain go on where they ended."""
        async with open_store(clock) as store:
            intent = await register(store)
        async with open_store(clock) as store:
            await settle(store, await confirm(store, intent))
            await register(store, "2")
            after = [line.event.after for line in await store.history(pair_of(intent))]
            assert after == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"]
            assert len(await verified_journal(store)) == len(after) + 1
            assert [row.phase for row in await store.changes(10)] == [Phase.COMMITTED, Phase.WAITING_CONFIRM]

    @needs(DURABLE)
    async def test_closing_finishes_what_was_accepted(self, open_store: OpenStore, clock: HandClock) -> None:
        """Every accepted caller gets an answer, and it is true."""
        async with open_store(clock) as store:
            calls = [asyncio.ensure_future(register(store, str(number))) for number in range(CROWD)]
            await asyncio.sleep(0)
        await asyncio.gather(*calls)
        async with open_store(clock) as store:
            assert len(await store.changes(EVERYTHING)) == CROWD

    @needs(SHARED)
    @shows("A-52", "A-33")
    async def test_handles_see_each_other(self, open_store: OpenStore, clock: HandClock) -> None:
        """What one has answered, the other finds: a confirm may reach another instance than its registration."""
        async with open_store(clock) as here, open_store(clock) as there:
            intent = await register(here, seals={"payload": sealed(b"payload")})
            assert await there.unseal(pair_of(intent), "payload") == b"payload"
            confirmed = await confirm(there, intent)
            await settle(here, confirmed)
            assert [row.phase for row in await there.entries(Find("server-1"))] == [Phase.COMMITTED]
            await reserve(here, "one", "key")
            assert (await reserve(there, "two", "key")).code == "ERR_OBL_DUPLICATE_RESERVE"
            assert await read(there, by_id("two")) is None

    @needs(SHARED)
    @shows("A-33")
    async def test_handles_lose_nothing_to_each_other(self, open_store: OpenStore, clock: HandClock) -> None:
        """Changes of one record through both, all at once: no gap, no double, one chain."""
        async with open_store(clock) as here, open_store(clock) as there:
            intent = await confirm(here, await register(here))
            stores = [here, there] * (CROWD // 4)
            renewals = (act(store, pair_of(intent), Renew(fence=intent.fence)) for store in stores)
            decisions = await asyncio.gather(*renewals)
            versions = sorted(decision.intent.version for decision in decisions if decision.intent is not None)
            assert versions == list(range(intent.version + 1, intent.version + len(stores) + 1))
            await asyncio.gather(*(register(store, f"x{n}") for n, store in enumerate(stores)))
            assert len(await verified_journal(there)) == len(stores) + 1 + 1
            assert await verified_journal(here) == await verified_journal(there)
