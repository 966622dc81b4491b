"""What one caller, or the end of a loop, must not do to the others, to the file, and to what is known of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.patience import PATIENCE_S
from tests.stores.orders import LEDGER_ID
from twophp.core.errors import ConstraintViolation, StoreError
from twophp.core.intent import Intent, by_logical_key
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Statement
from twophp.stores.sqlite import SQLiteStore, record_cache
from twophp.stores.sqlite.commit_place import CommitPlace
from twophp.stores.sqlite.verify import verify
from twophp.stores.testing import scene
from twophp.stores.testing.scene import register
from twophp.storing.reopening import open_ledger

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path, clock=scene.HandClock()) as store:
        store._connection.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)")
        store._connection.execute(
            "CREATE TABLE mine (id INTEGER PRIMARY KEY, x INTEGER CHECK (x < 10), "
            "customer INTEGER REFERENCES customer DEFERRABLE INITIALLY DEFERRED)"
        )
        store._connection.execute(
            "CREATE TRIGGER no_thirteen BEFORE INSERT ON mine WHEN new.id = 13 "
            "BEGIN SELECT raise(ROLLBACK, 'thirteen'); END"
        )
        yield store


# Statements of a handler's own.


@pytest.mark.parametrize(
    "bad",
    [
        "INSERT INTO mine (id, customer) VALUES (1, 99)",  # Only COMMIT would find it, and fail for the whole batch.
        "INSERT OR ROLLBACK INTO mine (id, x) VALUES (1, 11)",
        "INSERT INTO mine (id) VALUES (13)",
        "PRAGMA query_only = on",  # No rollback would take it back.
        "PRAGMA foreign_keys = off",
        "ATTACH ':memory:' AS elsewhere",
        "COMMIT",
    ],
)
@pytest.mark.req("A-34")
@pytest.mark.parametrize("how", ["statements", "trial"])
async def test_a_bad_statement_affects_no_other_change(store: SQLiteStore, bad: str, how: str) -> None:
    change = msgspec.structs.replace(Change(answer=None), **{how: (Statement(sql=bad, rows=[()]),)})
    outcomes = await asyncio.gather(
        *(register(store, str(number)) for number in range(3)),
        store.transact(AdHocCommand((), lambda _records: change)),
        *(register(store, str(number)) for number in range(3, 6)),
        return_exceptions=True,
    )
    assert isinstance(outcomes.pop(3), StoreError)
    assert [type(outcome) for outcome in outcomes] == [Intent] * 6
    assert len(await scene.verified_journal(store)) == 6
    assert store._connection.execute("SELECT count(*) FROM mine").get == 0
    assert (await register(store, "later")).version == 1, "the handle is as good as before"


async def test_two_that_end_the_transaction_cost_the_others_two_more_rounds(store: SQLiteStore) -> None:
    thirteen = Change(answer=None, statements=(Statement(sql="INSERT INTO mine (id) VALUES (?)", rows=[(13,)]),))
    outcomes = await asyncio.gather(
        register(store, "1"),
        store.transact(AdHocCommand((), lambda _records: thirteen)),
        register(store, "2"),
        store.transact(AdHocCommand((), lambda _records: thirteen)),
        register(store, "3"),
        return_exceptions=True,
    )
    told = [type(outcome) for outcome in outcomes]
    assert told == [Intent, ConstraintViolation, Intent, ConstraintViolation, Intent]
    assert len(await scene.verified_journal(store)) == 3


async def test_a_reference_that_is_met_in_time_is_no_fault(store: SQLiteStore) -> None:
    both = (
        Statement(sql="INSERT INTO mine (id, customer) VALUES (1, 5)", rows=[()]),
        Statement(sql="INSERT INTO customer VALUES (5)", rows=[()]),
    )
    await store.transact(AdHocCommand((), lambda _records: Change(answer=None, statements=both)))
    assert store._connection.execute("SELECT count(*) FROM mine").get == 1


# The end of a loop.


def test_a_loop_that_ends_in_the_middle_of_a_commit_leaves_a_ledger_to_go_on_with(tmp_path: Path) -> None:
    """It cancels its tasks, the writer's too. What a task still writes then must know what is on the disk."""
    path, go_on = tmp_path / "orders.db", threading.Event()

    async def cut_short() -> None:
        store = SQLiteStore(str(path), clock=scene.HandClock())  # It is never closed.
        await open_ledger(store, "orders", lambda: LEDGER_ID)
        await register(store, "0")
        committing = hold_the_commits(store, go_on)

        async def last_words() -> None:
            try:
                await register(store, "1")
            finally:
                go_on.set()
                await store.get_or_set_meta("said", "goodbye")  # A change without a line.

        task = asyncio.create_task(last_words())
        await committing.wait()
        assert not task.done()

    asyncio.run(cut_short())
    assert verify(str(path)).lines == 2

    async def once_more() -> None:
        async with SQLiteStore(str(path), clock=scene.HandClock()) as store:
            assert (await register(store, "2")).version == 1
            assert await store.get_or_set_meta("said", "nothing") == "goodbye"
            assert len(await scene.verified_journal(store)) == 3

    asyncio.run(once_more())


def hold_the_commits(store: SQLiteStore, until: threading.Event) -> asyncio.Event:
    """Every COMMIT goes to the thread and waits there; the event says that one has come so far."""
    loop, committing = asyncio.get_running_loop(), asyncio.Event()
    commit, store._writer._place = store._writer._sync, CommitPlace()  # A new one begins in the thread.

    def held() -> None:
        loop.call_soon_threadsafe(committing.set)
        until.wait()
        commit()

    store._writer._sync = held  # type: ignore[method-assign]
    return committing


def test_a_writer_that_was_cancelled_before_it_began_is_followed_by_another(path: str) -> None:
    """The loop's end cancels tasks that have not begun, and a task that cleans up then must not wait for ever."""

    async def main() -> None:
        store = SQLiteStore(path, clock=scene.HandClock())

        async def cleaning_up() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await register(store, "last")
                await store.close()

        async def queueing() -> None:
            await register(store, "queued")

        cleaning = asyncio.create_task(cleaning_up())
        await asyncio.sleep(0)
        queued = asyncio.create_task(queueing())
        for _turn in ("it is queued", "its batch waits for the thread"):
            await asyncio.sleep(0)
        assert store._writer._task is not None
        store._writer._task.cancel()  # It has not begun.
        cleaning.cancel()
        with suppress(asyncio.CancelledError):
            await cleaning
        await queued

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


# What is known.


async def test_what_was_found_beside_the_wanted_is_not_known_twice(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's intent under the same client id is read along. It is known already; once forgotten, it is gone."""
    monkeypatch.setattr(record_cache, "GENERATION", 40)
    clock = scene.HandClock()
    async with SQLiteStore(path, clock=clock) as store:
        intent = await register(store, "hers")
        intent = await scene.settle(store, await scene.confirm(store, intent))
        for number in range(21):  # Hers moves to the older generation.
            await register(store, str(number))
        beside = by_logical_key("somebody else", intent.client_correlation_id)
        assert await scene.read(store, beside) is None
        for _visit in range(2):  # The payload goes, then the tombstone.
            clock.now += scene.POLICY.payload_retention_ms + scene.POLICY.horizon_ms
            await scene.attend(store, intent)
        assert await scene.read(store, scene.pair_of(intent)) is None


async def test_an_update_of_what_is_not_there_is_refused(store: SQLiteStore) -> None:
    """A row that was deleted behind the store's back, on its own connection: nothing tells, but nothing is claimed."""
    intent = await register(store)
    store._connection.execute("DELETE FROM intent")
    newer = replace(intent, version=2)
    with pytest.raises(StoreError):
        await store.transact(
            AdHocCommand((scene.pair_of(intent),), lambda _records: Change(answer="done", puts=(Put(record=newer),)))
        )
