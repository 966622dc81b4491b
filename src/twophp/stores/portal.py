"""An event loop in a thread of its own, for callers that have none.

The flows are asynchronous; a synchronous edge (a transport, the tracker, the registrar) runs them through a ``Portal``.
There is one loop for any number of threads, so what they ask for at the same time shares one group commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from twophp.core.errors import StoreUnavailable

T = TypeVar("T")


class Portal:
    """Runs coroutines for any thread but its own. Whoever opened it closes it."""

    def __init__(self, name: str = "twophp-portal") -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        # A daemon: a process that forgot to close must still be able to end. What was acknowledged is durable anyway.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What ``coroutine`` returns or raises. A caller that is interrupted leaves it running to its end."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            message = "a portal cannot wait for itself: await the asynchronous twin instead"
            raise RuntimeError(message)
        with self._lock:  # So that nothing is handed to a loop that has just stopped.
            if self._closed:
                coroutine.close()
                raise StoreUnavailable("it is closed", code="store_closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def close(self) -> None:
        """Let what is running finish, then stop. Closing twice is closing once."""
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
