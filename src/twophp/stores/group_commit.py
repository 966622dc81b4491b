"""Group commit to a server: everything that waits goes into one batch, and everybody is answered once it is durable.

A batch is some trips to the server and a commit, whatever it holds, and while one is under way the next gathers. A
handle writes one batch after the other: changes are made in their order, and its journal is one chain. How a batch is
written is the driver's own part.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.admission import Queue
from twophp.kernel.apply import Failure, Job, Operations, Outcome
from twophp.ports import Command, Load, Then
from twophp.stores.clock import steady_seconds
from twophp.stores.sqlite.flow import tell

log: Final = logging.getLogger("twophp.store")

QUEUE_CAPACITY: Final = 4_096
BATCH_LIMIT: Final = 512
MOST_BYTES: Final = 64 * 1024 * 1024
"""Sealed bytes in one batch: all of it is one message, and twice in memory."""


def refuse_too_large(operations: Operations, commands: int) -> None:
    """Raise if it is more than one message should hold, and of several commands: their halves are written apart."""
    parts = (sealed or b"" for slot in operations.changed if slot.seals for sealed in slot.seals.values())
    if commands > 1 and sum(map(len, parts)) > MOST_BYTES:
        raise StoreError("too much for one batch", code="batch_too_large")


class GroupCommit(ABC):
    """The only writer of one handle. Any number of handles, also in other processes, share a database."""

    def __init__(
        self,
        *,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
        seconds: Callable[[], float] = steady_seconds,
    ) -> None:
        self._seconds = seconds
        self._batch_limit = batch_limit
        self._waiting = Queue(capacity=capacity, batch_limit=batch_limit, seconds=seconds)
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._poison: StorePoisoned | None = None
        self._closing = False
        self._latest_batch = self._batches = self._changes = 0

    @abstractmethod
    async def _written(self, commands: Sequence[Command]) -> list[Outcome]:
        """Decide the commands and make durable what they change, all or nothing; the answers."""

    @abstractmethod
    def _is_everybodys(self, error: Exception) -> bool:
        """Whether no part of the batch would fare better by itself."""

    @abstractmethod
    def _for_a_caller(self, error: Exception) -> TwoPHPError:
        """A fresh error for each caller: one that is raised in many tasks would collect all their tracebacks."""

    @abstractmethod
    async def _let_go(self) -> None:
        """Nothing more will be written."""

    def transact(self, command: Command) -> asyncio.Future[Any]:
        """Queue the command; whoever awaits it waits until it is durable. One that finds no room is refused at once."""
        done = asyncio.get_running_loop().create_future()
        self._add((command, done))
        return done

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``."""
        self._add((command, then))

    def _add(self, job: Job) -> None:
        self.refuse_if_unsure()
        if self._closing:
            raise StoreUnavailable("the store is closed", code="store_closed")
        self._waiting.add(job, job[0].admission)
        self._arrived.set()
        if self._task is None:
            self._start()

    def _start(self) -> None:
        # Nobody's context: what a batch does is not the affair of the request that woke it.
        self._task = asyncio.get_running_loop().create_task(self._drain(), context=Context())

    def refuse_if_unsure(self) -> None:
        """Raise StorePoisoned while nobody can tell what is durable."""
        if self._poison is not None:
            raise StorePoisoned(self._poison.message)

    def load(self) -> Load:
        """See ``Store.load``."""
        return Load(
            waiting=self._waiting.size, latest_batch=self._latest_batch, batches=self._batches, changes=self._changes
        )

    def stop(self, why: str) -> None:
        """From here on this handle writes nothing and says so, until the database was opened anew."""
        self._poison = self._poison or StorePoisoned(f"the store has stopped: {why}")

    async def close(self) -> None:
        """Finish what was accepted, refuse what comes after, stop."""
        self._closing = self._waiting.is_closing = True
        self._arrived.set()
        while self._task is not None:
            await asyncio.wait([self._task])
        await self._let_go()

    async def _drain(self) -> None:
        try:
            while self._waiting.size:
                await self._gather()
                if jobs := self._waiting.take():
                    await self._write(jobs)
                    self._waiting.asked()
                began = self._seconds()
                if bite := self._waiting.take_bite():
                    await self._write(bite)
                    self._waiting.bitten(began)
                elif not jobs:
                    self._arrived.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._arrived.wait(), max(self._waiting.rest_s(), 0.001))
        finally:
            self._task = None

    async def _gather(self) -> None:
        """While more has come since the last look, look once more."""
        seen = 0
        while seen < len(self._waiting) < self._batch_limit:
            seen = len(self._waiting)
            await asyncio.sleep(0)

    async def _write(self, jobs: list[Job]) -> None:
        """One batch, made durable, and everybody told."""
        self._latest_batch = len(jobs)
        self._batches += 1
        self._changes += len(jobs)
        try:
            outcomes = await self._flush([command for command, _done in jobs])
        except BaseException as error:
            self.stop("the writer was interrupted")
            tell(jobs, [Failure(CommitUnknown("the writer was interrupted")) for _job in jobs])
            if isinstance(error, Exception):
                log.exception("a batch failed")
                return
            raise
        tell(jobs, outcomes)

    async def _flush(self, commands: Sequence[Command]) -> list[Outcome]:
        """All at once; if that cannot be written, one half after the other, so that one change harms nobody else."""
        try:
            if self._poison is not None:
                raise self._poison  # noqa: TRY301 - a half of the batch has found out.
            return await self._written(commands)
        except Exception as error:  # noqa: BLE001 - every waiting caller must hear of it, whatever it is.
            if len(commands) == 1 or isinstance(error, CommitUnknown | StorePoisoned) or self._is_everybodys(error):
                return [Failure(self._for_a_caller(error)) for _command in commands]
        half = len(commands) // 2
        return [*await self._flush(commands[:half]), *await self._flush(commands[half:])]
