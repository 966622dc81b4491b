"""Group commit: everything that waits goes into one transaction, and everybody is answered after its COMMIT.

A batch is some trips to the server and a commit, whatever it holds, and while one is under way the next gathers. A
handle writes one batch after the other: changes are made in their order, and its journal is one chain. What another
replica's batch holds is waited for; whoever was slower to make a record is decided again on what is there then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.admission import Queue
from twophp.kernel.apply import Failure, Job, Outcome
from twophp.ports import Command, Load, Then
from twophp.stores.clock import steady_seconds
from twophp.stores.postgres import driver
from twophp.stores.postgres.batch import Batch, TransactionEnded
from twophp.stores.postgres.chain import Chain, Supply
from twophp.stores.postgres.news import News
from twophp.stores.postgres.opening import insist_on_durability
from twophp.stores.postgres.script import Script
from twophp.stores.sqlite.flow import tell

log: Final = logging.getLogger("twophp.store")

QUEUE_CAPACITY: Final = 4_096
BATCH_LIMIT: Final = 512
TRIES: Final = 8
"""So often a batch that met others is decided again, before each of its halves is by itself."""
MEETINGS: Final = 3
"""The same where a key was taken: what is decided on it once more seldom takes it again."""
PAUSE_S: Final = 0.002
UNEVEN: Final = 5


class Writer:
    """The only writer of one handle. Any number of handles, also in other processes, share a database."""

    def __init__(
        self,
        pool: Any,
        script: Script,
        supply: Supply,
        chain: Chain,
        news: News,
        *,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
        seconds: Callable[[], float] = steady_seconds,
    ) -> None:
        self._pool = pool
        self._script = script
        self._supply = supply
        self.chain = chain
        self._news = news
        self._seconds = seconds
        self._batch_limit = batch_limit
        self._waiting = Queue(capacity=capacity, batch_limit=batch_limit, seconds=seconds)
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._has_settings = False
        self._has_begun = False  # Whether the latest attempt has come so far.
        self._poison: StorePoisoned | None = None
        self._closing = False
        self._latest_batch = self._batches = self._changes = 0

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
            raise StorePoisoned(str(self._poison))

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
        error: Exception
        has_reconnected = False
        for attempt in range(TRIES):
            try:
                return await self._attempt(commands)
            except Exception as raised:  # noqa: BLE001 - every waiting caller must hear of it, whatever it is.
                error = raised
            if isinstance(error, CommitUnknown | StorePoisoned):
                break
            if driver.may_be_decided_again(error) and attempt < (MEETINGS if driver.is_taken(error) else TRIES):
                if attempt:
                    await asyncio.sleep(
                        PAUSE_S * (attempt + self.chain.id % UNEVEN)
                    )  # So that two do not meet for ever.
            elif (self._is_cut_off() or driver.is_cut(error)) and not has_reconnected:
                has_reconnected = True  # COMMIT was not sent, so nothing was written; an idle session may have ended.
            else:
                break
        serves_nobody = not self._has_begun or self._is_cut_off() or driver.is_outage(error)
        if len(commands) == 1 or serves_nobody or isinstance(error, CommitUnknown | StorePoisoned):
            return [Failure(_for_a_caller(error)) for _command in commands]
        half = len(commands) // 2
        return [*await self._flush(commands[:half]), *await self._flush(commands[half:])]

    async def _attempt(self, commands: Sequence[Command]) -> list[Outcome]:
        if self._poison is not None:
            raise self._poison
        self._has_begun = False
        connection = await self._connected()
        batch = Batch(connection, self._script, self._supply, self.chain, has_settings=self._has_settings)
        try:
            await self._begin(connection)
            outcomes = await batch.run(commands)
        except BaseException as error:
            await self._undo(error)
            if isinstance(error, TransactionEnded):
                raise self._ended_by_a_statement(error, len(commands)) from error
            if isinstance(error, Exception) and driver.is_of_the_chain(error, self._script.schema):
                message = f"somebody has written in this writer's name: {error}; open the database anew"
                self._poison = StorePoisoned(message)
                raise self._poison from error
            if isinstance(error, StorePoisoned):
                self._poison = error
            raise
        if not batch.changed:
            await self._roll_back(connection)
            return outcomes
        await self._commit(connection)
        self.chain, self._has_settings = batch.chain, batch.has_settings
        self._news.tell(batch.ended)
        return outcomes

    def _ended_by_a_statement(self, error: TransactionEnded, waiting: int) -> StoreError:
        """The handle stops, for some of the batch may be durable. Whoever shared it has to look."""
        self._poison = StorePoisoned("a caller's statement has ended the transaction; open the database anew")
        if waiting == 1:
            return StoreError(error.message, code=error.code)
        return CommitUnknown("a caller's statement has ended the batch's transaction, which may be durable in part")

    async def _begin(self, connection: Any) -> None:
        try:
            await connection.execute(self._script.begin)
        except driver.THEIRS as error:
            if driver.is_standby(error):
                raise StoreUnavailable("the database can only be read", code="store_read_only") from error
            raise
        self._has_begun = True

    def _is_cut_off(self) -> bool:
        return self._connection is None or driver.is_gone(self._connection)

    async def _commit(self, connection: Any) -> None:
        """Make it durable, and know what it means if that fails."""
        commit = self._script.named("commit")
        try:
            said = await connection.execute(commit)
        except driver.THEIRS as error:
            if driver.is_certain(error) and not driver.is_gone(connection):
                raise  # What was deferred until now has refused it.
            self._poison = StorePoisoned(f"a commit failed: {error}; open the database anew")
            await self._let_go()
            message = f"the commit failed and may still have happened: {error}"
            raise CommitUnknown(message) from error
        if said != commit:  # It was rolled back.
            raise StoreError(f"the database did not commit, but said {said}", code="bad_change")

    async def _connected(self) -> Any:
        if self._connection is not None and driver.is_gone(self._connection):
            await self._let_go()
        if self._connection is None:
            connection = await self._pool.acquire(timeout=driver.CONNECT_S)
            try:  # It may be another server by now, or one that was set up anew.
                async with connection.transaction():
                    await insist_on_durability(connection, self._script)
            except BaseException:
                connection.terminate()
                with suppress(*driver.THEIRS):
                    await self._pool.release(connection)
                raise
            self._connection = connection
        return self._connection

    async def _undo(self, error: BaseException) -> None:
        """The server rolls back what is lost with its session, so a session that is in doubt is ended."""
        connection = self._connection
        if driver.is_gone(connection):
            await self._let_go()
        elif driver.is_cut(error) or not isinstance(error, Exception):
            connection.terminate()
            await self._let_go()
        else:
            await self._roll_back(connection)

    async def _roll_back(self, connection: Any) -> None:
        """What is lost with its connection is rolled back by the server."""
        with suppress(*driver.THEIRS):
            await connection.execute(self._script.named("rollback"))

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*driver.THEIRS):
                await self._pool.release(connection)


def _for_a_caller(error: Exception) -> TwoPHPError:
    """A fresh error for each caller: one that is raised in many tasks would collect all their tracebacks."""
    ours = driver.translate(error)
    return type(ours)(str(ours), code=ours.code)
