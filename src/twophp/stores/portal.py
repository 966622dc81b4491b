"""An event loop in a thread of its own, for callers that have none.

The flows are asynchronous; a synchronous edge (a transport, the tracker, the registrar) runs them through a ``Portal``.
There is one loop for any number of threads, so calls of several threads at the same time share one group commit.
A coroutine that never waits needs no loop: ``run_sync`` runs it where it is.

Threads put their errands in a queue and wake the loop only if no other thread has since it last looked: a wake-up costs
more than an errand.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, cast

from twophp.core.errors import StoreUnavailable

T = TypeVar("T")


class _Errand:
    """A coroutine on its way to the loop, and its result or error on the way back."""

    __slots__ = ("_over", "coroutine", "error", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.result: Any = None
        self.error: BaseException | None = None
        self._over = threading.Lock()  # Held until it is over: the cheapest thing a thread can wait for.
        self._over.acquire()

    async def carry_out(self) -> None:
        """Keep the outcome for the caller. An exit that left this task would end the loop for every waiting thread."""
        try:
            self.result = await self.coroutine
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it.
            self.error = error

    def ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # Before it began.
            self.error = asyncio.CancelledError()
        self._over.release()

    def wait(self) -> Any:
        self._over.acquire()
        if self.error is not None:
            raise self.error
        return self.result


class Portal:
    """Runs coroutines for any thread but its own. The caller that opened it closes it."""

    def __init__(self, name: str = "twophp-portal") -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._errands: deque[_Errand] = deque()
        self._is_awake = False
        # A daemon: a process that forgot to close must still be able to end. Acknowledged changes are durable anyway.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    @property
    def is_parents(self) -> bool:
        """Whether this process was forked since: the loop's thread exists only in the parent, so no call ends here."""
        return self._pid != os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What ``coroutine`` returns or raises. A caller that is interrupted leaves it running to its end."""
        result: T = self._begun(coroutine).wait()
        return result

    def post(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it without waiting for it. It has its own way to tell how it ended, and raises nothing."""
        self._begun(coroutine)

    def _begun(self, coroutine: Coroutine[Any, Any, Any]) -> _Errand:
        if self.is_parents:
            coroutine.close()
            raise StoreUnavailable("it was opened before a fork; open one in the child", code="forked")
        if threading.current_thread() is self._thread:
            coroutine.close()
            message = "a portal cannot wait for itself: await the asynchronous twin instead"
            raise RuntimeError(message)
        if not asyncio.iscoroutine(coroutine):  # Else it would fail in the loop, and its caller would wait for ever.
            raise TypeError(f"a portal runs coroutines, not {type(coroutine).__name__}")
        errand = _Errand(coroutine)
        with self._lock:  # Else an errand could reach a loop that has just stopped.
            if self._closed:
                coroutine.close()
                raise StoreUnavailable("it is closed", code="store_closed")
            self._errands.append(errand)
            if not self._is_awake:
                self._is_awake = True
                self._loop.call_soon_threadsafe(self._begin)
        return errand

    def open(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[], Coroutine[Any, Any, None]]) -> T:
        """As ``run``, for opening the resource that this portal serves. On failure: undo the opening, close the portal.

        An interrupted caller leaves ``coroutine`` running, so ``undo`` waits for its end and undoes what it has made.
        """
        turn = asyncio.Lock()

        async def in_turn(work: Coroutine[Any, Any, T | None]) -> T | None:
            async with turn:
                return await work

        try:
            return cast("T", self.run(in_turn(coroutine)))
        except BaseException:
            try:
                self.run(in_turn(undo()))
            finally:
                self.close()
            raise

    def _begin(self) -> None:
        """Begin every errand in the queue. The next thread to add one wakes the loop again."""
        self._is_awake = False
        while self._errands:
            errand = self._errands.popleft()
            self._loop.create_task(errand.carry_out()).add_done_callback(errand.ended)

    def close(self) -> None:
        """Let what is running finish, then stop. Closing twice is closing once; a child does not close its parent's."""
        if self.is_parents:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finish() -> None:
    """Wait for every other task of the loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    while others:
        await asyncio.wait(others)
        others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.get_running_loop().shutdown_default_executor()


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("it waited")
