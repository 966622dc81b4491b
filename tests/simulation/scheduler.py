"""Virtual time, and processes that take turns.

Each process has an event loop of its own, so within a process callbacks run in asyncio's order. Whose callback runs
next is drawn: between processes every interleaving can happen. Time stands still while a callback runs and moves on to
the next timer when nobody has anything to do.

A process that crashed keeps its tasks: they are never resumed, and what they hold is let go of when the run is over.
A coroutine that was collected earlier would run its ``finally`` blocks in the middle of somebody else's callback.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, TypeAlias

TURN_S: Final = 2e-6
"""So long a callback takes: time that stood still would hide every race about a deadline."""
LOOKS_EVERY: Final = 8
"""So many callbacks are run between two looks whether the run is over."""

_Timer: TypeAlias = tuple[float, int, "ProcessLoop | None", asyncio.Handle]


class Stuck(Exception):
    """Nothing can happen any more, and somebody still waits."""


class Scheduler:
    """All processes of a run, and the time that they have in common."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - drawn again from the same seed: that is the purpose.
        self.now = 0.0
        self.turns = 0
        self._number = 0
        self._timers: list[_Timer] = []
        self._runnable: list[ProcessLoop] = []
        self._graveyard: list[ProcessLoop] = []
        self._running: ProcessLoop | None = None

    def later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call it in the world's own name: it belongs to no process, so no crash prevents it."""
        self._push(self.now + delay_s, None, _Call(callback, arguments))

    def timer(self, when: float, loop: ProcessLoop, handle: asyncio.Handle) -> None:
        """A timer of a process."""
        self._push(when, loop, handle)

    def _push(self, when: float, loop: ProcessLoop | None, handle: Any) -> None:
        self._number += 1
        heappush(self._timers, (when, self._number, loop, handle))

    def listed(self, loop: ProcessLoop) -> None:
        """Let it take turns while it has something to do."""
        if loop.has_work is not loop.is_listed:
            loop.is_listed = loop.has_work
            (self._runnable.append if loop.is_listed else self._runnable.remove)(loop)

    def bury(self, loop: ProcessLoop) -> None:
        """Keep what it leaves behind until the end of the run."""
        self.listed(loop)
        self._graveyard.append(loop)

    def step(self) -> None:
        """Run one callback."""
        self.turns += 1
        runnable = self._runnable
        if not runnable:
            self._advance()
            return
        loop = runnable[0] if len(runnable) == 1 else runnable[int(self.random.random() * len(runnable))]
        self.now += TURN_S
        handle = loop.ready.popleft()
        if not handle._cancelled:
            if loop is not self._running:
                self._runs(loop)
            handle._run()
        if not loop.ready and loop.is_listed:
            self.listed(loop)

    def _runs(self, loop: ProcessLoop | None) -> None:
        """What asyncio takes for the running loop."""
        self._running = loop
        events._set_running_loop(loop)

    def _advance(self) -> None:
        """Go on to the next timer; what is due then is handed to its process."""
        if not self._timers:
            raise Stuck("no timer is left")
        when, _number, loop, handle = heappop(self._timers)
        self.now = max(self.now, when)
        if loop is not None:
            loop.due(handle)
            return
        if self._running is not None:
            self._runs(None)
        handle._run()

    def run(self, until: Callable[[], bool], *, at_most_s: float) -> bool:
        """Run until it is true, and no longer than so much time; whether it became true."""
        end = self.now + at_most_s
        step = self.step
        try:
            while not until():
                if self.now >= end:
                    return False
                for _turn in range(LOOKS_EVERY):
                    step()
        finally:
            self._runs(None)
        return True


class _Call:
    """A callback of the world."""

    __slots__ = ("_arguments", "_callback")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._callback = callback
        self._arguments = arguments

    def _run(self) -> None:
        self._callback(*self._arguments)


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self.is_listed = False  # The scheduler's own.
        self.process: Any = None  # What runs here, for whoever is asked to open something for it.
        self.failures: list[str] = []
        self.ready: deque[asyncio.Handle] = deque()

    # For the scheduler.

    @property
    def has_work(self) -> bool:
        """Whether it can take a turn."""
        return bool(self.ready) and not self.is_paused

    def due(self, handle: asyncio.Handle) -> None:
        """Its time has come."""
        if not self.is_dead and not handle._cancelled:
            self._enqueue(handle)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self.ready.append(handle)
        if not self.is_listed:
            self._scheduler.listed(self)

    def kill(self) -> None:
        """End at once: nothing that waits here is ever run."""
        self.is_dead = True
        self._unheard, self.ready = self.ready, deque()
        self._scheduler.bury(self)

    def pause(self) -> None:
        """Stand still, as a stopped process does."""
        self.is_paused = True
        self._scheduler.listed(self)

    def resume(self) -> None:
        """Go on; what fell due meanwhile is late."""
        self.is_paused = False
        self._scheduler.listed(self)

    # For asyncio.

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """See asyncio."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self._scheduler.timer(when, self, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._scheduler.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays where it is, and is passed over."""

    def time(self) -> float:
        """Seconds since the beginning of the run, which no process can set."""
        return self._scheduler.now

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """See asyncio."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def is_running(self) -> bool:
        """See asyncio."""
        return not self.is_dead

    def is_closed(self) -> bool:
        """See asyncio."""
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody caught. What a dead process did not get to catch says nothing."""
        error = context.get("exception")
        if not self.is_dead and error is not None and not isinstance(error, asyncio.CancelledError):
            self.failures.append(f"{self.name}: {context.get('message')}: {error!r}")


async def pause(seconds: float) -> None:
    """Wait so long, in virtual time."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    handle = loop.call_later(seconds, _wake, done)
    try:
        await done
    finally:
        handle.cancel()


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
