"""What a handle knows after another one has written: nothing out of date, and no more is read than has to be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from twophp.core.errors import RecordTampered, StoreError
from twophp.core.intent import Intent, Phase, by_logical_key, by_pair
from twophp.core.intent_commands import Renew, Settle
from twophp.core.obligation import by_flow_and_key
from twophp.core.phase import FENCE_LOST
from twophp.core.records import Key
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change
from twophp.stores.sqlite import SQLiteStore, record_cache
from twophp.stores.sqlite.tables import TABLE_OF_KEY
from twophp.stores.testing import scene

pytestmark = [pytest.mark.anyio, pytest.mark.req("A-52")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def clock() -> scene.HandClock:
    return scene.HandClock()


@pytest.fixture
async def ours(path: str, clock: scene.HandClock) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path, clock=clock) as store:
        yield store


@pytest.fixture
async def theirs(ours: SQLiteStore, path: str, clock: scene.HandClock) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path, clock=clock) as store:
        assert store.path == ours.path
        yield store


async def told(store: SQLiteStore, key: Key) -> Any:
    """The answer of a command that only reads, as a replay does."""
    return await store.transact(AdHocCommand((key,), lambda records: Change(answer=records.get(key))))


def watch_reads(store: SQLiteStore) -> list[str]:
    """From now on: every statement with which the writer reads whole intents."""
    reads = {text.strip().rstrip(";") for text in TABLE_OF_KEY[by_pair("", "").by].reads.values()}
    seen: list[str] = []

    def note(event: Any) -> None:
        if event["sql"].strip().rstrip(";") in reads:
            seen.append(event["sql"])

    store._connection.trace_v2(apsw.SQLITE_TRACE_STMT, note)
    return seen


async def test_an_intent_that_no_other_handle_changed_is_not_read_again(ours: SQLiteStore, theirs: SQLiteStore) -> None:
    intent = await scene.register(ours, "mine")
    seen = watch_reads(ours)
    await scene.register(theirs, "theirs")
    intent = await scene.confirm(ours, intent)
    await scene.register(theirs, "theirs too")
    intent = await scene.settle(ours, intent)
    assert (intent.phase, seen) == (Phase.COMMITTED, [])
    await scene.verified_journal(ours)


async def test_a_replay_is_told_what_another_handle_has_settled(ours: SQLiteStore, theirs: SQLiteStore) -> None:
    intent = await scene.confirm(ours, await scene.register(ours, "1"))
    settled = await scene.settle(theirs, intent)
    assert await told(ours, scene.pair_of(intent)) == settled
    assert await told(ours, by_logical_key(intent.principal, intent.client_correlation_id)) == settled


async def test_a_change_is_made_on_what_another_handle_has_renewed(ours: SQLiteStore, theirs: SQLiteStore) -> None:
    intent = await scene.confirm(ours, await scene.register(ours, "1"))
    renewed = scene.found(await scene.act(theirs, scene.pair_of(intent), Renew(fence=1)))
    assert renewed.version == intent.version + 1
    assert (await scene.settle(ours, intent)).version == renewed.version + 1


async def test_an_overtaken_owner_cannot_settle(ours: SQLiteStore, theirs: SQLiteStore, clock: scene.HandClock) -> None:
    intent = await scene.confirm(ours, await scene.register(ours, "1"))
    clock.now += scene.POLICY.lease_ms + 1
    taken = scene.found(await scene.attend(theirs, intent))
    assert taken.version > intent.version
    late = await scene.act(ours, scene.pair_of(intent), Settle(fence=1, succeeded=True, status=200))
    assert not late.changed
    assert late.code in {FENCE_LOST, "already_settled"}


async def test_what_another_handle_has_forgotten_is_not_there(
    ours: SQLiteStore, theirs: SQLiteStore, clock: scene.HandClock
) -> None:
    intent = await scene.settle(ours, await scene.confirm(ours, await scene.register(ours, "1")))
    for _visit in range(2):  # The payload goes, then the tombstone.
        clock.now += scene.POLICY.payload_retention_ms + scene.POLICY.horizon_ms
        await scene.attend(theirs, intent)
    assert await told(ours, scene.pair_of(intent)) is None
    assert await told(ours, by_logical_key(intent.principal, intent.client_correlation_id)) is None


@pytest.mark.req("A-62")
async def test_an_open_intent_that_was_set_back_by_hand_is_refused_though_its_version_was_left(
    ours: SQLiteStore, path: str
) -> None:
    intent = await scene.confirm(ours, await scene.register(ours, "1"))
    other = apsw.Connection(path)
    other.execute("UPDATE intent SET phase = 'WAITING_CONFIRM'")
    other.close()
    with pytest.raises(RecordTampered):
        await scene.settle(ours, intent)
    with pytest.raises(RecordTampered):
        await told(ours, scene.pair_of(intent))


async def test_a_row_that_was_deleted_by_hand_is_not_claimed(ours: SQLiteStore, path: str) -> None:
    intent = await scene.confirm(ours, await scene.register(ours, "1"))
    other = apsw.Connection(path)
    other.execute("PRAGMA foreign_keys = off")
    other.execute("DELETE FROM intent")
    other.close()
    assert await told(ours, scene.pair_of(intent)) is None


async def test_nothing_but_intents_is_kept(ours: SQLiteStore, theirs: SQLiteStore) -> None:
    """Counters, budgets, obligations: several workers change the same row, so it is read whenever one has."""
    await scene.reserve(ours, "one", "key")
    await scene.finish(theirs, "one")
    assert await told(ours, by_flow_and_key("publish", "key")) is None
    assert (await scene.reserve(ours, "two", "key")).changed
    assert not any(not isinstance(slot.record, Intent) for slot in ours._writer._known._doubted.values())


async def test_what_is_doubted_is_bounded(
    ours: SQLiteStore, theirs: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_cache, "GENERATION", 8)
    for number in range(20):
        await scene.register(ours, f"ours {number}")
        await scene.register(theirs, f"theirs {number}")
    assert len(ours._writer._known._doubted) <= 12
    assert (await scene.confirm(ours, await scene.register(ours, "ours 0"))).phase is Phase.PROCESSING


async def test_a_failed_batch_leaves_nothing_in_doubt(ours: SQLiteStore, theirs: SQLiteStore) -> None:
    intent = await scene.register(ours, "1")
    await scene.register(theirs, "2")
    thief = scene.obligation_change(scene.fresh_obligation("thief", "key")).puts
    await scene.reserve(theirs, "holder", "key")
    with pytest.raises(StoreError):
        await scene.write(ours, *thief)
    assert await told(ours, scene.pair_of(intent)) == intent


async def test_one_that_was_read_beside_another_and_is_forgotten_since_is_not_remembered(
    ours: SQLiteStore, theirs: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A doubted intent is read anew because another principal uses the same client id: one slot of it may be left."""
    monkeypatch.setattr(record_cache, "GENERATION", 1)
    intent = await scene.register(ours, "mine")
    await scene.register(theirs, "theirs")
    beside = by_logical_key("bob", intent.client_correlation_id)
    assert await told(ours, beside) is None
    key = scene.pair_of(intent)
    await ours.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))
    assert await told(ours, by_logical_key(intent.principal, intent.client_correlation_id)) is None
