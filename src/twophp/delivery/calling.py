"""Calls what a user gave us: a function in a thread, an async one on the event loop.

A function that never returns keeps its thread for good. So each function has threads of its own, or it would block the
others; and the threads are daemons, or no process could end.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

AT_A_TIME: Final = 8
"""How many calls of one function are made at a time."""


class Caller:
    """Calls one function, or one object, with one argument."""

    def __init__(self, function: Callable[[Any], Any], name: str, most: int = AT_A_TIME) -> None:
        self._function = function
        self._threads = _Threads(most, name)
        self.needs_threads = not inspect.iscoroutinefunction(function)

    async def call(self, given: Any) -> Any:
        """Return or raise as the function does. Even an exit that it raises becomes an ordinary error."""
        try:
            if not self.needs_threads:
                return await self._function(given)
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._in_thread, given)
            # A partial, or an object whose ``__call__`` is async.
            return await found if inspect.isawaitable(found) else found
        except SystemExit as error:  # It would end the event loop, and its caller would wait for ever.
            raise RuntimeError("what is called must not end the process") from error

    def _in_thread(self, given: Any) -> Any:
        try:
            return self._function(given)
        except (StopIteration, asyncio.CancelledError, KeyboardInterrupt) as error:
            # The first is lost between a thread and the loop, and the others would end more than this call.
            raise RuntimeError(f"what is called raised {type(error).__name__}") from error


class _Threads(Executor):
    """Daemon threads that end when there is nothing left to do."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """See ``Executor.submit``."""
        future: Future[Any] = Future()
        with self._lock:
            while self._waiting and self._waiting[0][0].cancelled():
                self._waiting.popleft()  # Threads that never come back would leave them here for good.
            self._waiting.append((future, partial(function, *args, **named)))
            if self._running == self._most:
                return future
            self._running += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except BaseException:
            future.cancel()  # A thread that finds it in the queue skips it.
            with self._lock:
                self._running -= 1
            raise
        return future

    def _work(self) -> None:
        while (errand := self._next()) is not None:
            future, work = errand
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - The caller that waits receives every error.
                future.set_exception(error)
            else:
                future.set_result(result)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
