"""The writer's queue: what goes first, what is refused, and how much the background takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import apsw
import pytest

from twophp.core.errors import StoreOverloaded
from twophp.core.records import JournalEvent
from twophp.kernel.admission import BITE, NEW_SHARE, QUIET_S, Queue
from twophp.kernel.apply import Job
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Decide
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.flow import Flow
from twophp.stores.testing.scene import T0

pytestmark = pytest.mark.anyio

LIMIT, CAPACITY = 64, 1_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Stopwatch:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def job(name: Any = None) -> Job:
    return AdHocCommand((), lambda _records: Change(answer=name)), asyncio.Future()


def a_queue(seconds: Stopwatch | None = None, *, capacity: int = CAPACITY) -> Queue:
    return Queue(capacity=capacity, batch_limit=LIMIT, seconds=seconds or Stopwatch())


@pytest.mark.req("A-108")
async def test_new_work_is_refused_while_the_queue_is_full_and_accepted_work_is_not() -> None:
    queue = a_queue(capacity=3)
    for _ in range(3):
        queue.add(job(), "new")
    with pytest.raises(StoreOverloaded):
        queue.add(job(), "new")
    for _ in range(3):
        queue.add(job(), "accepted")
    with pytest.raises(StoreOverloaded):  # Its own room has a bound as well.
        queue.add(job(), "accepted")
    assert len(queue) == queue.size == 6


@pytest.mark.req("A-108")
async def test_accepted_work_goes_first_and_leaves_a_share_to_new_work() -> None:
    queue = a_queue()
    new, accepted = [job() for _ in range(LIMIT)], [job() for _ in range(2 * LIMIT)]
    for one in new:
        queue.add(one, "new")
    for one in accepted:
        queue.add(one, "accepted")
    share = LIMIT // NEW_SHARE
    assert queue.take() == [*accepted[: LIMIT - share], *new[:share]]


@pytest.mark.req("P-9.3-a")
async def test_the_background_takes_a_tenth_of_the_writer_while_requests_wait() -> None:
    """Counted on a clock of its own: a bite takes 5 ms, a batch of requests 1 ms, and requests wait all the time."""
    seconds = Stopwatch()
    queue = a_queue(seconds)
    of_requests, of_bites, batches, bites = 0.0, 0.0, 0, 0
    while batches < 1_000:
        for _ in range(LIMIT - len(queue)):
            queue.add(job(), "accepted")
        for _ in range(BITE):
            if queue.size < CAPACITY:
                queue.add(job(), "background")
        assert len(queue.take()) == LIMIT
        seconds.now += 0.001
        queue.asked()
        batches, of_requests = batches + 1, of_requests + 0.001
        began = seconds.now
        if bite := queue.take_bite():
            assert len(bite) <= BITE
            seconds.now += 0.005
            queue.bitten(began)
            bites, of_bites = bites + 1, of_bites + 0.005
    assert bites > 0
    assert of_bites <= 0.1 * (of_bites + of_requests) + 0.005


@pytest.mark.req("P-9.3-a")
async def test_the_background_does_not_rest_without_requests() -> None:
    seconds = Stopwatch()
    queue = a_queue(seconds)
    for _ in range(3 * BITE):
        queue.add(job(), "background")
    for _ in range(3):
        began = seconds.now
        assert len(queue.take_bite()) == BITE
        seconds.now += 1.0
        queue.bitten(began)
    queue.add(job(), "background")
    queue.asked()
    # The rest after that bite is longer, but it ends when requests have ceased: nobody has to sleep through that.
    assert (queue.take_bite(), queue.rest_s()) == ([], QUIET_S)
    seconds.now += queue.rest_s()
    assert len(queue.take_bite()) == 1


def saying(name: str) -> Decide:
    event = JournalEvent("test", name, "said", "", "", T0, T0)
    return lambda _records: Change(answer=None, journal=(event,))


async def said(store: SQLiteStore) -> list[str]:
    return [line.event.subject for line in await store.journal(0, 10_000)]


@pytest.mark.req("P-9.3-a")
async def test_the_background_waits_behind_requests_in_a_real_store_and_is_finished_when_it_closes(
    tmp_path: Any,
) -> None:
    """Ten bites wait, and requests come all the time: after the first bite they are not held up by the others."""
    path = str(tmp_path / "ledger.db")
    seconds = Stopwatch()
    store = SQLiteStore(path)
    store._writer._seconds = store._writer._waiting._seconds = seconds
    real = store._writer.write

    def taking_a_second(take: Callable[[], list[Job]]) -> Flow:
        jobs = take()
        seconds.now += 0.001 if len(jobs) < BITE else 0.01
        yield from real(lambda: jobs)

    store._writer.write = taking_a_second  # type: ignore[method-assign]
    await store.transact(AdHocCommand((), saying("first")))
    waiting = [store.transact(AdHocCommand((), saying("background"), "background")) for _ in range(10 * BITE)]
    for _ in range(45):
        await store.transact(AdHocCommand((), saying("request")))
    lines = await said(store)
    assert lines.count("request") == 45
    assert lines.count("background") == BITE  # 45 ms of requests are half of what the next bite waits for.
    await store.close()
    assert all(one.done() and one.exception() is None for one in map(asyncio.ensure_future, waiting))
    async with SQLiteStore(path) as again:
        assert (await said(again)).count("background") == 10 * BITE


@pytest.mark.req("A-108")
async def test_accepted_changes_find_room_while_another_process_holds_the_lock(tmp_path: Any) -> None:
    path = str(tmp_path / "ledger.db")
    async with SQLiteStore(path, capacity=4) as store:
        other = apsw.Connection(path)
        other.execute("BEGIN IMMEDIATE")
        held = [store.transact(AdHocCommand((), saying("new"), "new"))]
        for _turn in range(1_000):  # By then the writer waits for the lock.
            await asyncio.sleep(0)
        held += [store.transact(AdHocCommand((), saying("new"), "new")) for _ in range(3)]
        with pytest.raises(StoreOverloaded):
            await store.transact(AdHocCommand((), saying("refused"), "new"))
        held.append(store.transact(AdHocCommand((), saying("accepted"))))
        other.execute("ROLLBACK")
        await asyncio.gather(*held)
        assert await said(store) == ["accepted", "new", "new", "new", "new"]
        assert store.load().batches == 1, "what came while the lock was held shares its commit"
        other.close()
