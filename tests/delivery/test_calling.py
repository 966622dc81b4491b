"""What a user gave us to call may hang, exit or be cut off, and harms no other call."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from tests.patience import PATIENCE_S
from twophp.delivery.calling import AT_A_TIME, Caller

pytestmark = pytest.mark.anyio

GUARD_S = PATIENCE_S


class Hanging:
    """A function that returns when the test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.seen: list[int] = []

    def __call__(self, number: int) -> None:
        self.seen.append(number)
        self.begun.release()
        assert self.go_on.wait(GUARD_S)

    async def has_begun(self, calls: int) -> None:
        for _ in range(calls):
            assert await asyncio.to_thread(self.begun.acquire, timeout=GUARD_S)


async def test_so_many_at_a_time_and_the_next_when_one_has_ended() -> None:
    hanging = Hanging()
    caller = Caller(hanging, "hanging")
    calls = [asyncio.create_task(caller.call(number)) for number in range(2 * AT_A_TIME)]
    await hanging.has_begun(AT_A_TIME)
    assert sorted(hanging.seen) == list(range(AT_A_TIME))
    hanging.go_on.set()
    await asyncio.gather(*calls)
    assert sorted(hanging.seen) == list(range(2 * AT_A_TIME))


async def test_what_was_cut_off_before_its_turn_is_never_called() -> None:
    hanging = Hanging()
    caller = Caller(hanging, "hanging")
    calls = [asyncio.create_task(caller.call(number)) for number in range(AT_A_TIME + 1)]
    await hanging.has_begun(AT_A_TIME)
    calls[-1].cancel()
    await asyncio.wait(calls[-1:])
    hanging.go_on.set()
    await asyncio.gather(*calls[:-1])
    await caller.call(100)
    assert AT_A_TIME not in hanging.seen


async def test_calls_that_were_cut_off_do_not_pile_up_behind_one_that_hangs() -> None:
    hanging = Hanging()
    caller = Caller(hanging, "hanging")
    calls = [asyncio.create_task(caller.call(number)) for number in range(AT_A_TIME)]
    await hanging.has_begun(AT_A_TIME)
    for number in range(100):
        late = asyncio.create_task(caller.call(number))
        await asyncio.wait([late], timeout=0)
        late.cancel()
        await asyncio.wait([late])
    assert len(caller._threads._waiting) <= 2
    hanging.go_on.set()
    await asyncio.gather(*calls)


async def test_one_that_hangs_is_in_nobody_elses_way() -> None:
    hanging, seen = Hanging(), list[int]()
    caller, other = Caller(hanging, "hanging"), Caller(seen.append, "other")
    calls = [asyncio.create_task(caller.call(number)) for number in range(AT_A_TIME)]
    await hanging.has_begun(AT_A_TIME)
    await other.call(1)
    assert seen == [1]
    hanging.go_on.set()
    await asyncio.gather(*calls)


async def test_an_exit_is_an_error_like_any_other() -> None:
    async def leaves(_given: object) -> None:
        sys.exit(1)

    for function in (sys.exit, leaves):
        with pytest.raises(RuntimeError, match="must not end the process"):
            await Caller(function, "leaving").call(1)


@pytest.mark.parametrize("raised", [StopIteration, asyncio.CancelledError, KeyboardInterrupt])
async def test_so_is_whatever_no_event_loop_can_take(raised: type[BaseException]) -> None:
    def slips(_given: object) -> None:
        raise raised

    with pytest.raises(RuntimeError, match=f"raised {raised.__name__}") as slip:
        async with asyncio.timeout(GUARD_S):
            await Caller(slips, "slipping").call(1)
    assert isinstance(slip.value.__cause__, raised)


async def test_without_a_thread_it_is_said_and_the_next_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    caller = Caller(seen.append, "other")
    with monkeypatch.context() as none_left:

        def start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        none_left.setattr(threading.Thread, "start", start)
        for number in range(AT_A_TIME):
            with pytest.raises(RuntimeError, match="new thread"):
                await caller.call(number)
    await caller.call(100)
    assert seen == [100]
