"""A change is made as a whole or not at all, and one caller's mistake affects no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace

from twophp.core.errors import StoreError
from twophp.core.intent import Phase, by_logical_key, by_pair
from twophp.core.obligation import by_flow_and_key, by_id
from twophp.core.phase import decide
from twophp.core.records import JournalEvent
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Put, Records, Statement
from twophp.stores.testing.capability import SQL_STATEMENTS, shows, unless
from twophp.stores.testing.scene import (
    POLICY,
    T0,
    AuditableStore,
    HandClock,
    Stage,
    confirm,
    confirmation,
    finish,
    found,
    fresh_obligation,
    intent_put,
    keys_of,
    obligation_change,
    pair_of,
    read,
    register,
    registration,
    reserve,
    sealed,
    settle,
    taking,
    verified_journal,
    write,
)

MEBIBYTE: Final = 1024 * 1024
BAD_CHANGE: Final = "bad_change"
CONSTRAINT: Final = "constraint"


def new_intent(name: str = "1") -> Put:
    """An intent with everything that can belong to one: ledger row, history, payload."""
    return intent_put(decide(None, registration(name), T0, POLICY), seals={"payload": sealed(b"payload")})


async def nothing_is_left_of(store: AuditableStore, put: Put) -> None:
    """No record under any of its keys, no ledger row, no sealed part, no line of history."""
    for key in keys_of(put.record):
        assert await read(store, key) is None
    assert put.entry is not None
    assert await store.entries(Find(put.entry.server_correlation_id)) == []
    assert await store.unseal(keys_of(put.record)[0], "payload") is None
    subjects = {line.event.subject for line in await verified_journal(store)}
    assert not subjects & {event.subject for event in put.journal}


class ChangeContract(Stage):
    """Read, decide, write: one atomic step."""

    @shows("P-6-a", "P-9.1-a", "P-9.5-d", "P-9.4-b")
    async def test_a_change_is_there_with_all_its_effects(self, store: AuditableStore) -> None:
        """Record, ledger row, history and payload come together."""
        put = new_intent()
        await write(store, put)
        for key in keys_of(put.record):
            assert await read(store, key) == put.record
        assert await store.entries(Find("server-1")) == [put.entry]
        assert await store.unseal(by_pair("client-1", "server-1"), "payload") == b"payload"
        assert [line.event for line in await store.history(by_pair("client-1", "server-1"))] == list(put.journal)

    async def test_what_is_not_there_is_none(self, store: AuditableStore) -> None:
        """Absence is an answer, not an error."""
        key = by_pair("client-1", "server-1")
        assert await read(store, key) is None
        assert await store.unseal(key, "payload") is None
        assert await store.history(key) == []

    async def test_the_answer_comes_back_as_it_was_given(self, store: AuditableStore) -> None:
        """A store does not look into answers."""
        answer = object()
        assert await store.transact(AdHocCommand((), lambda _records: Change(answer=answer))) is answer

    async def test_a_decide_that_raises_changes_nothing(self, store: AuditableStore) -> None:
        """What it raises comes back to its caller, as it is."""

        def explode(_records: Records) -> Change:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await store.transact(AdHocCommand((), explode))
        assert await verified_journal(store) == []

    async def test_a_key_that_was_not_named_cannot_be_looked_at(self, store: AuditableStore) -> None:
        """It was not read, so its absence would mean nothing."""
        await register(store)
        with pytest.raises(KeyError):
            await store.transact(
                AdHocCommand(
                    (by_pair("other", "other"),),
                    lambda records: Change(answer=records.get(by_pair("client-1", "server-1"))),
                ),
            )

    @shows("P-4-d", "P-5.2.2-a", "P-9.5-a")
    async def test_a_change_that_breaks_uniqueness_leaves_nothing(self, store: AuditableStore) -> None:
        """Neither the part that broke it nor the part before or after."""
        await reserve(store, "holder", "key")
        first, last = new_intent("1"), new_intent("2")
        thief = obligation_change(fresh_obligation("thief", "key")).puts[0]
        with pytest.raises(StoreError) as refusal:
            await write(store, first, thief, last)
        assert refusal.value.code == CONSTRAINT
        await nothing_is_left_of(store, first)
        await nothing_is_left_of(store, last)
        assert await read(store, by_id("thief")) is None
        assert (await read(store, by_flow_and_key("publish", "key"))).obligation_id == "holder"

    async def test_a_record_that_is_there_cannot_be_put_as_new(self, store: AuditableStore) -> None:
        """A command that did not read the record cannot overwrite it."""
        intent = await register(store)
        stranger = replace(registration("1"), server_correlation_id="server-2")
        put = intent_put(decide(None, stranger, T0, POLICY))
        with pytest.raises(StoreError) as refusal:
            await write(store, put)
        assert refusal.value.code == CONSTRAINT
        assert await read(store, by_logical_key("alice", "client-1")) == intent
        assert await store.entries(Find("server-2")) == []

    @pytest.mark.parametrize("step", [0, 2])
    async def test_a_version_rises_by_one(self, store: AuditableStore, step: int) -> None:
        """A record that skips a version, or stays on one, was decided about without looking."""
        intent = await register(store)
        decision = decide(intent, confirmation(intent), T0, POLICY)
        put = intent_put(decision, record=replace(found(decision), version=intent.version + step))
        with pytest.raises(StoreError) as refusal:
            await write(store, put, keys=(pair_of(intent),))
        assert refusal.value.code == BAD_CHANGE
        assert await read(store, pair_of(intent)) == intent
        assert len(await verified_journal(store)) == 1

    async def test_a_new_record_begins_with_version_one(self, store: AuditableStore) -> None:
        """Anything else means that there was one before."""
        put = new_intent()
        with pytest.raises(StoreError) as refusal:
            await write(store, replace(put, record=replace(put.record, version=2)))  # type: ignore[type-var]
        assert refusal.value.code == BAD_CHANGE
        await nothing_is_left_of(store, put)

    async def test_a_second_key_is_held_until_it_is_let_go(self, store: AuditableStore) -> None:
        """Other reserves find the holder under it, and no record once it is free."""
        key = by_flow_and_key("publish", "key")
        await reserve(store, "one", "key")
        assert (await reserve(store, "two", "key")).code == "ERR_OBL_DUPLICATE_RESERVE"
        await finish(store, "one")
        assert await read(store, key) is None
        assert (await reserve(store, "two", "key")).changed
        assert (await read(store, key)).obligation_id == "two"
        assert (await read(store, by_id("one"))).state == "Committed"

    async def test_one_change_lets_go_of_a_key_and_takes_it(self, store: AuditableStore, clock: HandClock) -> None:
        """An overdue holder makes room in the change that needs the room."""
        await reserve(store, "one", "key")
        clock.now += 30_000
        decision = await reserve(store, "two", "key")
        assert decision.leaked is not None
        assert (await read(store, by_flow_and_key("publish", "key"))).obligation_id == "two"
        assert await read(store, by_id("one")) == decision.leaked

    async def test_records_without_a_second_key_do_not_collide(self, store: AuditableStore) -> None:
        """An empty key is none (A-75)."""
        await reserve(store, "one")
        await reserve(store, "two")
        assert (await read(store, by_id("two"))).state == "Reserved"

    @shows("A-83")
    async def test_a_dropped_record_leaves_its_ledger_row_and_its_history(self, store: AuditableStore) -> None:
        """The keys are free, the sealed parts are gone; what happened stays on record."""
        intent = await register(store, seals={"payload": sealed(b"payload")})
        rows, lines = await store.entries(Find("server-1")), await verified_journal(store)
        forgotten = JournalEvent("intent", "server-1", "forgotten", "ABANDONED", "ABSENT", T0, T0)
        change = Change(answer=None, drops=(pair_of(intent),), journal=(forgotten,))
        await store.transact(AdHocCommand((pair_of(intent),), lambda _records: change))
        for key in keys_of(intent):
            assert await read(store, key) is None
        assert await store.unseal(pair_of(intent), "payload") is None
        assert await store.entries(Find("server-1")) == rows
        assert (await verified_journal(store))[:-1] == lines
        assert (await verified_journal(store))[-1].event == forgotten
        again = await register(store, server_correlation_id="server-2")
        assert await read(store, by_logical_key("alice", "client-1")) == again

    async def test_a_record_dropped_as_soon_as_it_was_put_leaves_its_ledger_row(self, store: AuditableStore) -> None:
        """Even if no one ever saw the record itself."""
        put = new_intent()
        change = Change(answer=None, puts=(put,), drops=(by_pair("client-1", "server-1"),))
        await store.transact(AdHocCommand((), lambda _records: change))
        assert await read(store, by_pair("client-1", "server-1")) is None
        assert await store.entries(Find("server-1")) == [put.entry]
        assert [line.event for line in await verified_journal(store)] == list(put.journal)

    async def test_what_is_not_there_cannot_be_dropped(self, store: AuditableStore) -> None:
        """A caller drops a record that another caller has dropped before."""
        key, put = by_id("nobody"), new_intent()
        change = Change(answer=None, puts=(put,), drops=(key,))
        with pytest.raises(StoreError) as refusal:
            await store.transact(AdHocCommand((key,), lambda _records: change))
        assert refusal.value.code == BAD_CHANGE
        await nothing_is_left_of(store, put)

    async def test_sealed_parts_are_kept_replaced_and_destroyed(self, store: AuditableStore) -> None:
        """Each part by itself, byte for byte."""
        large = bytes(range(256)) * (MEBIBYTE // 256)
        intent = await register(store, seals={"payload": sealed(large)})
        pair = pair_of(intent)
        intent = await confirm(store, intent)
        assert await store.unseal(pair, "payload") == large
        await settle(store, intent, seals={"response": sealed(b""), "payload": sealed(b"\0other")})
        assert (await store.unseal(pair, "payload"), await store.unseal(pair, "response")) == (b"\0other", b"")
        settled = await read(store, pair)
        purged = Put(record=replace(settled, version=settled.version + 1), seals={"payload": None})
        await write(store, purged, keys=(pair,))
        assert (await store.unseal(pair, "payload"), await store.unseal(pair, "response")) == (None, b"")

    @pytest.mark.parametrize("name", ["Zoë 日本 🜚", "'; --", "a\0b", "e\u0301\u200f", "%_*[", " ", "\x7f\r\n"])
    async def test_any_text_is_kept_as_it_is(self, store: AuditableStore, name: str) -> None:
        """Text is compared by what it is, never folded, trimmed or cut."""
        intent = await register(store, name)
        await register(store, name + "a")
        assert await read(store, pair_of(intent)) == intent
        assert await read(store, by_logical_key("alice", f"client-{name}")) == intent
        assert [row.client_correlation_id for row in await store.entries(Find(f"server-{name}"))] == [f"client-{name}"]
        await reserve(store, name, name)
        assert (await read(store, by_flow_and_key("publish", name))).obligation_id == name
        assert await read(store, by_flow_and_key("publish", name[:1] + "x")) is None

    @unless(SQL_STATEMENTS)
    async def test_statements_are_refused_by_a_store_that_runs_none(self, store: AuditableStore) -> None:
        """Loudly, and with nothing written."""
        put = new_intent()
        change = Change(answer=None, puts=(put,), statements=(Statement(sql="anything", rows=[()]),))
        with pytest.raises(StoreError):
            await store.transact(AdHocCommand((), lambda _records: change))
        await nothing_is_left_of(store, put)

    async def test_a_later_command_sees_the_changes_before_it(self, store: AuditableStore) -> None:
        """Also when both are in flight at once: they are decided in order of arrival."""
        command = registration()
        first = found(decide(None, command, T0, POLICY))
        pair = pair_of(first)
        registered, confirmed, lost = await asyncio.gather(
            store.transact(
                AdHocCommand(
                    (by_logical_key("alice", "client-1"),), taking(by_logical_key("alice", "client-1"), command)
                )
            ),
            store.transact(AdHocCommand((pair,), taking(pair, confirmation(first)))),
            store.transact(AdHocCommand((pair,), taking(pair, confirmation(first)))),
        )
        assert (registered.changed, confirmed.changed, lost.changed) == (True, True, False)
        assert (await read(store, pair)).phase is Phase.PROCESSING
        assert [line.event.after for line in await store.history(pair)] == ["WAITING_CONFIRM", "PROCESSING"]
        (row,) = await store.entries(Find("server-1"))
        assert (row.phase, row.version) == (Phase.PROCESSING, 2)

    async def test_one_bad_change_affects_no_other(self, store: AuditableStore) -> None:
        """Every kind of mistake, at every place among the good changes."""
        await reserve(store, "holder", "key")
        good: list[Awaitable[object]] = [register(store, f"good {number}") for number in range(len(MISTAKES) + 1)]
        bad: list[Awaitable[object]] = [mistake(store) for mistake in MISTAKES]
        mixed = [call for two in zip(good, bad, strict=False) for call in two] + good[-1:]
        outcomes = await asyncio.gather(*mixed, return_exceptions=True)
        assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True] * len(bad) + [False]
        registered = [row.client_correlation_id for row in await store.changes(100)]
        assert registered == [f"client-good {number}" for number in range(len(good))]
        assert len(await verified_journal(store)) == 1 + len(good)


# Ways to be wrong. Each must be refused, to its own caller.


async def _raises(store: AuditableStore) -> None:
    await store.transact(AdHocCommand((), lambda _records: 1 / 0))  # type: ignore[arg-type, return-value]


async def _decides_nothing(store: AuditableStore) -> None:
    await store.transact(AdHocCommand((), lambda _records: None))  # type: ignore[arg-type, return-value]


async def _takes_a_held_key(store: AuditableStore) -> None:
    await write(store, *obligation_change(fresh_obligation("thief", "key")).puts)


async def _skips_a_version(store: AuditableStore) -> None:
    put = new_intent("bad")
    await write(store, replace(put, record=replace(put.record, version=3)))  # type: ignore[type-var]


async def _drops_what_is_not_there(store: AuditableStore) -> None:
    await store.transact(
        AdHocCommand((by_id("nobody"),), lambda _records: Change(answer=None, drops=(by_id("nobody"),)))
    )


async def _breaks_a_rule_of_the_ledger(store: AuditableStore) -> None:
    put = new_intent("bad")
    assert put.entry is not None
    await write(store, replace(put, entry=replace(put.entry, target="nobody")))


MISTAKES: Final[tuple[Callable[[AuditableStore], Awaitable[None]], ...]] = (
    _raises,
    _decides_nothing,
    _takes_a_held_key,
    _skips_a_version,
    _drops_what_is_not_there,
    _breaks_a_rule_of_the_ledger,
)
