"""Outcomes on their way to the disk, behind the answers that brought them (ADR 19).

The server remembers how a call ended. The client's row is durable before Phase 2, so a reconciler that finds it open
asks with the same ids and gets the same answer. No caller therefore has to wait for the second write: it goes to the
disk with the next row that a caller does wait for, or by itself a moment later. A caller in a loop pays for one flush a
call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from twophp.core.call_commands import ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.errors import TwoPHPError

log: Final = logging.getLogger("twophp.client")

DELAY_S: Final = 0.05
MOST: Final = 1_024


class WriteBehindQueue(ABC):
    """Outcomes that are not durable yet, at most ``MOST``. ``add`` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[str, ServerReply] = {}
        self._ids: set[str] = set()  # With those that are being written.
        self._is_watched = False  # The loop looks every DELAY_S at what waits.
        self._has_news = False
        self._is_closed = False

    def add(self, client_correlation_id: str, told: ServerReply) -> bool:
        """Queue an outcome. False if there is no room, or one of the same call waits: then the caller writes it."""
        with self._lock:
            if self._is_closed or len(self._ids) >= MOST or client_correlation_id in self._ids:
                return False
            self._ids.add(client_correlation_id)
            self._waiting[client_correlation_id] = told
            self._has_news = True
            if not self._is_watched:  # To wake the loop costs more than all the rest, so it is done once for many.
                self._is_watched = True
                self._loop.call_soon_threadsafe(self._loop.call_later, DELAY_S, self._look)
        return True

    def hurry(self) -> None:
        """Begin to write all that waits, because another writer flushes anyway: one flush serves both."""
        if not self._waiting:
            return
        with self._lock:
            begun = [(id_, told, self._begin(id_, told)) for id_, told in self._waiting.items()]
            self._waiting.clear()  # After their writes began: a thread that finds it empty is ordered behind them.
        for id_, told, refusal in begun:
            if refusal is not None:
                self._ended(id_, told, None, refusal)

    @abstractmethod
    def _begin(self, client_correlation_id: str, told: ServerReply) -> TwoPHPError | None:
        """Begin to write one, or say why not. Called with the lock, so it waits for nothing."""

    def _look(self) -> None:
        """Write what no other write has taken along. Look again every DELAY_S, until nothing new has come."""
        with self._lock:
            self._is_watched, self._has_news = self._has_news, False
        if self._is_watched:
            self._loop.call_later(DELAY_S, self._look)
        self.hurry()

    def _refuse(self) -> None:
        with self._lock:
            self._is_closed = True

    def _ended(self, id_: str, told: ServerReply, decision: CallDecision | None, error: TwoPHPError | None) -> None:
        """Log an outcome that could not be written: its row stays open, and the reconciler asks the server."""
        with self._lock:
            self._ids.discard(id_)
        ids = {"client_correlation_id": id_, "server_correlation_id": told.server_correlation_id}
        if error is not None:
            message = "a call is %s, and its ledger could not record it (%s): %s"
            log.warning(message, told.phase, error.code, error, extra=ids)
        elif decision is not None and decision.code is not None:
            log.warning("a call is %s, and its ledger says otherwise (%s)", told.phase, decision.code, extra=ids)


class BehindOnLoop(WriteBehindQueue):
    """Written by tasks of the event loop. All but ``add`` belongs to its thread."""

    def __init__(self, write: Callable[[str, ServerReply], Awaitable[CallDecision]]) -> None:
        super().__init__()
        self._write = write
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def caught_up(self, client_correlation_id: str) -> None:
        """Return when no outcome of this call is on its way: then the store holds all that is known of it."""
        self.hurry()
        if (writing := self._writing.get(client_correlation_id)) is not None:
            await asyncio.wait([writing])

    async def flush(self) -> None:
        """Return when every queued outcome is written, or its failure is logged."""
        self.hurry()
        if self._writing:
            await asyncio.wait(list(self._writing.values()))

    async def close(self) -> None:
        """Take nothing more, and flush."""
        self._refuse()
        await self.flush()

    def _begin(self, client_correlation_id: str, told: ServerReply) -> None:  # The task receives a refusal.
        self._writing[client_correlation_id] = self._loop.create_task(self._written(client_correlation_id, told))

    async def _written(self, client_correlation_id: str, told: ServerReply) -> None:
        decision, error = None, None
        try:
            decision = await self._write(client_correlation_id, told)
        except TwoPHPError as failure:
            error = failure
        finally:
            del self._writing[client_correlation_id]
            self._ended(client_correlation_id, told, decision, error)
