"""``submit``: a callback from the flush in place of a future."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from twophp.core.errors import StoreOverloaded, StorePoisoned, StoreUnavailable
from twophp.core.records import JournalEvent
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Decide, Records, WholeStore
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.anyio, pytest.mark.req("A-108")]

Told = list[tuple[Any, Exception | None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WholeStore]:
    opened = MemoryStore() if request.param == "memory" else SQLiteStore(str(tmp_path / "ledger.db"))
    async with opened as store:
        yield store


def saying(name: str) -> Decide:
    event = JournalEvent("test", name, "said", "", "", 1, 1)
    return lambda _records: Change(answer=name, journal=(event,))


async def said(store: WholeStore) -> list[str]:
    return [line.event.subject for line in await store.journal(0, 10_000)]


async def test_a_callback_hears_the_answer_after_it_is_durable_and_not_before_submit_returns(store: WholeStore) -> None:
    told: Told = []
    over = asyncio.Event()

    def then(answer: Any, error: Exception | None) -> None:
        told.append((answer, error))
        over.set()

    store.submit(AdHocCommand((), saying("one")), then)
    assert told == []
    await over.wait()
    assert told == [("one", None)]
    assert await said(store) == ["one"]


async def test_callbacks_and_futures_are_told_in_the_order_of_their_changes(store: WholeStore) -> None:
    order: list[str] = []
    for name in ("one", "two", "three"):
        store.submit(AdHocCommand((), saying(name)), lambda answer, _error: order.append(answer))
    assert await store.transact(AdHocCommand((), saying("four"))) == "four"
    await asyncio.sleep(0)  # The memory store answers its callbacks in the next turn of the loop.
    assert order == ["one", "two", "three"]
    assert await said(store) == ["one", "two", "three", "four"]


async def test_a_callback_that_raises_affects_no_other(store: WholeStore, caplog: pytest.LogCaptureFixture) -> None:
    order: list[str] = []

    def broken(_answer: Any, _error: Exception | None) -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR):
        store.submit(AdHocCommand((), saying("one")), broken)
        store.submit(AdHocCommand((), saying("two")), lambda answer, _error: order.append(answer))
        assert await store.transact(AdHocCommand((), saying("three"))) == "three"
        assert await store.transact(AdHocCommand((), saying("four"))) == "four", "and the next batch is written"
        await asyncio.sleep(0)
    assert order == ["two"]
    assert any(record.exc_info and "mine" in str(record.exc_info[1]) for record in caplog.records)


async def test_what_a_decision_raises_is_told_to_its_callback_alone(store: WholeStore) -> None:
    told: Told = []

    def broken(_records: Records) -> Change:
        raise ValueError("mine")

    store.submit(AdHocCommand((), broken), lambda *outcome: told.append(outcome))
    assert await store.transact(AdHocCommand((), saying("one"))) == "one"
    await asyncio.sleep(0)
    ((answer, error),) = told
    assert (answer, type(error)) == (None, ValueError)


async def test_a_callback_may_submit_more(store: WholeStore) -> None:
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def first(answer: Any, _error: Exception | None) -> None:
        store.submit(AdHocCommand((), saying(f"{answer} two")), lambda answer, _error: over.set_result(answer))

    store.submit(AdHocCommand((), saying("one")), first)
    assert await over == "one two"
    assert await said(store) == ["one", "one two"]


async def test_a_callback_runs_in_no_requests_context(store: WholeStore) -> None:
    request: ContextVar[str] = ContextVar("request", default="none")
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    request.set("mine")
    store.submit(AdHocCommand((), saying("one")), lambda _answer, _error: over.set_result(request.get()))
    assert await over == "none"


# What only SQLite does: it queues.


async def test_a_change_that_finds_no_room_is_refused_at_once_and_its_callback_never_called(tmp_path: Path) -> None:
    told: Told = []
    async with SQLiteStore(str(tmp_path / "ledger.db"), capacity=1) as store:
        first = store.transact(AdHocCommand((), saying("one"), "new"))
        with pytest.raises(StoreOverloaded):
            store.submit(AdHocCommand((), saying("two"), "new"), lambda *outcome: told.append(outcome))
        await first
    with pytest.raises(StoreUnavailable):
        store.submit(AdHocCommand((), saying("three")), lambda *outcome: told.append(outcome))
    assert told == []


async def test_a_store_that_has_stopped_refuses_at_once(tmp_path: Path) -> None:
    async with SQLiteStore(str(tmp_path / "ledger.db")) as store:
        store._writer.stop("a test")
        with pytest.raises(StorePoisoned):
            store.submit(AdHocCommand((), saying("one")), lambda *_outcome: None)


async def test_closing_tells_every_callback_first(tmp_path: Path) -> None:
    order: list[str] = []
    store = SQLiteStore(str(tmp_path / "ledger.db"))
    store.submit(AdHocCommand((), saying("one")), lambda answer, _error: order.append(answer))
    store.submit(AdHocCommand((), saying("two"), "background"), lambda answer, _error: order.append(answer))
    await store.close()
    assert order == ["one", "two"]


async def test_a_batch_that_waits_for_nothing_needs_no_task(tmp_path: Path) -> None:
    async with SQLiteStore(str(tmp_path / "ledger.db")) as store:
        place = store._writer._place
        assert place is not None
        place.is_on_loop = lambda _now_s: True  # type: ignore[method-assign,assignment]
        before = asyncio.all_tasks()
        done = store.transact(AdHocCommand((), saying("one")))
        seen = set()
        while not done.done():  # type: ignore[attr-defined]
            seen |= asyncio.all_tasks()
            await asyncio.sleep(0)
        assert seen == before


def test_a_future_of_a_closed_loop_keeps_no_other_caller_from_its_answer(tmp_path: Path) -> None:
    async def leave() -> SQLiteStore:
        opened = SQLiteStore(str(tmp_path / "ledger.db"))
        for name in ("one", "two"):  # Two, so that the writer looks again, which this loop does not live to see.
            asyncio.ensure_future(opened.transact(AdHocCommand((), saying(name)))).add_done_callback(
                lambda _future: None
            )
        return opened

    async def go_on(left: SQLiteStore) -> tuple[str, list[str]]:
        async with asyncio.timeout(60), left:
            answer = await left.transact(AdHocCommand((), saying("three")))
            return answer, await said(left)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(leave())
    loop.close()
    assert asyncio.run(go_on(left)) == ("three", ["one", "two", "three"])
