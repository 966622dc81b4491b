"""The outbox as a task of the service: what it looks for, how much it does at a time, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.outboxes import GUARD_S, Desk, Receiver, until
from twophp.core.errors import StorePoisoned, StoreUnavailable
from twophp.core.job import DEFAULT_TRIES, State
from twophp.delivery.outbox import wait_for_news
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing.scene import HandClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Waits:
    """A waiter that takes no time: it waits for news, or for the test to say that it is time to look."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting = asyncio.Event()
        self.look = asyncio.Event()

    async def __call__(self, news: asyncio.Event, _seconds: float) -> None:
        self.count += 1
        self.waiting.set()
        tasks = [asyncio.create_task(event.wait()) for event in (news, self.look)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        self.waiting.clear()
        self.look.clear()


async def test_run_delivers_at_a_word_and_by_looking() -> None:
    desk = Desk(receiver := Receiver(), wait=(waits := Waits()))
    running = asyncio.create_task(desk.outbox.run())
    async with asyncio.timeout(GUARD_S):
        await waits.waiting.wait()
        await desk.put("a")
        desk.outbox.wake()
        await delivered(desk, "a")
        await waits.waiting.wait()
        await desk.put("b")  # By another process: without a wake.
        waits.look.set()
        await delivered(desk, "b")
        for _ in range(1000):
            await asyncio.sleep(0)
        rounds = waits.count
        await desk.outbox.close()
        await running
    assert receiver.ids == ["a/callback", "b/callback"]
    assert rounds < 10  # A wake counts once: the loop does not run for nothing.


async def delivered(desk: Desk, name: str) -> None:
    async def is_so() -> bool:
        return (await desk.job(name)).state is State.DELIVERED

    await until(is_so)


async def test_run_makes_a_bounded_number_of_attempts_at_a_time() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver, wait=(waits := Waits()), concurrency=3)
    names = [f"server-{number}" for number in range(10)]
    await desk.put(*names)
    running = asyncio.create_task(desk.outbox.run())
    async with asyncio.timeout(GUARD_S):
        await until(receiver.is_visited)
        await waits.waiting.wait()
        assert receiver.in_flight == 3
        # The request's own attempt does not queue behind them.
        decision, owed = await desk.owe("own")
        assert await owed.start(decision)
        assert receiver.in_flight == 4
        receiver.open.set()
        for name in names:
            await delivered(desk, name)
        await desk.outbox.close()
        await running
    assert receiver.most_in_flight == 4
    assert sorted(receiver.ids) == sorted(f"{name}/callback" for name in [*names, "server-own"])


@pytest.mark.parametrize(
    ("failure", "said"), [(StoreUnavailable("not now"), ": store_unavailable"), (RuntimeError("a slip"), "")]
)
async def test_run_outlives_a_store_that_fails(failure: Exception, said: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryStore):
        fails = True

        async def due(self, *args: Any) -> Any:
            if self.fails:
                raise failure
            return await super().due(*args)

    clock = HandClock()
    desk = Desk(Receiver(), store := Failing(clock=clock), clock, wait=(waits := Waits()))
    await desk.put("a")
    running = asyncio.create_task(desk.outbox.run())
    async with asyncio.timeout(GUARD_S):
        await waits.waiting.wait()
        store.fails = False
        waits.look.set()
        await delivered(desk, "a")
        await desk.outbox.close()
        await running
    assert f"the outbox cannot look for what is due{said}" in caplog.messages


async def test_run_opens_a_store_that_has_stopped(tmp_path: Path) -> None:
    clock = HandClock()
    async with SQLiteStore(str(tmp_path / "orders.db"), clock=clock) as store:
        desk = Desk(receiver := Receiver(), store, clock)
        await desk.put("a")
        store._writer._poison = StorePoisoned("a commit failed")
        await desk.deliver_due()
        assert (receiver.ids, (await desk.job("a")).state) == (["a/callback"], State.DELIVERED)


async def test_the_real_waiter_ends_with_news_and_without() -> None:
    news = asyncio.Event()
    await wait_for_news(news, 0.001)
    news.set()
    async with asyncio.timeout(GUARD_S):
        await wait_for_news(news, 2 * GUARD_S)


async def test_of_two_processes_one_makes_the_attempt(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "orders.db"), HandClock()
    async with SQLiteStore(path, clock=clock) as one, SQLiteStore(path, clock=clock) as other:
        desks = [Desk(receiver := Receiver(), one, clock), Desk(receiver, other, clock)]
        await desks[0].put(*(f"server-{number}" for number in range(20)))
        await asyncio.gather(*(desk.deliver_due() for desk in desks))
        assert sorted(receiver.ids) == sorted(f"server-{number}/callback" for number in range(20))


# The end.


async def test_close_lets_what_runs_come_to_its_end() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver)
    decision, owed = await desk.owe()
    await owed.start(decision)
    closing = asyncio.create_task(desk.outbox.close(GUARD_S))
    await asyncio.sleep(0)
    receiver.open.set()
    await closing
    assert (await desk.job()).state is State.DELIVERED


async def test_close_cuts_off_what_does_not_and_it_is_made_again() -> None:
    receiver = Receiver()
    receiver.open.clear()
    desk = Desk(receiver)
    decision, owed = await desk.owe()
    await owed.start(decision)
    await desk.outbox.close(0)
    assert (desk.outbox.attempts_count, (await desk.job()).state) == (0, State.RUNNING)
    desk.clock.now += DEFAULT_TRIES.lease_ms
    receiver.open.set()
    after = Desk(receiver, desk.store, desk.clock)
    await after.deliver_due()
    assert (await desk.job()).state is State.DELIVERED
    assert len({delivery.payload for delivery in receiver.seen}) == 1


async def test_a_closed_outbox_starts_nothing_and_keeps_nobody_waiting() -> None:
    desk = Desk(receiver := Receiver())
    decision, owed = await desk.owe()
    late = asyncio.create_task(owed.start(decision))
    await asyncio.sleep(0)
    for attempt in desk.outbox._attempts:
        attempt.cancel()  # It is made and has not begun.
    async with asyncio.timeout(GUARD_S):
        assert not await late
    await desk.outbox.close()
    assert not await owed.start(decision)
    await desk.put("a")
    await desk.outbox.visit()
    assert (receiver.seen, desk.outbox.attempts_count) == ([], 0)
