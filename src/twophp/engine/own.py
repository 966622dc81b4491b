"""The handler's block around a transaction of the application's own, which settles its intent (ADR 44).

    async with intent.transaction(engine) as session: ...    # SQLAlchemy, psycopg, asyncpg
    with intent.transaction(engine) as session: ...          # the blocking ones, and Django, in a ``def`` handler

The end of the block commits nothing: the transaction stays open until the handler has answered, and is then committed
together with the phase, the answer, the obligations and the journal. A block that ends badly is rolled back at once.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

from twophp.core.errors import ConfigError
from twophp.ports import OwnTransaction

if TYPE_CHECKING:
    from twophp.engine.current import RunningIntent


class OwnScope:
    """One block. What it is entered with is the library's own session or connection."""

    def __init__(self, running: RunningIntent, own: OwnTransaction, loop: asyncio.AbstractEventLoop | None) -> None:
        self._running = running
        self._own = own
        self._loop = loop

    async def __aenter__(self) -> Any:
        if self._own.is_blocking:
            raise ConfigError("this connection blocks: use `with` in a `def` handler", code="wrong_with")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError("a transaction belongs to the loop that serves the service", code="wrong_with")
        self._running.entered(own=True)
        try:
            return await self._own.begin()
        except BaseException:
            self._running.left([], well=False)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        own = self._own
        try:
            if kind is None:
                await own.flush()
        except BaseException:
            await own.undo()
            self._running.left([], well=False)
            raise
        if kind is not None:
            await own.undo()
            self._running.left([], well=False)
            return
        try:
            self._running.left([], well=True, own=own)
        except BaseException:
            await own.undo()
            raise

    def __enter__(self) -> Any:
        if not self._own.is_blocking:
            raise ConfigError("this connection is asynchronous: use `async with`", code="wrong_with")
        self._running.entered(own=True)
        try:
            return self._own.run(self._own.begin())
        except BaseException:
            self._running.left([], well=False)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._own.run(self.__aexit__(kind, error, traceback))
