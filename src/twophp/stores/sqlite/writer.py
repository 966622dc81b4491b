"""Group commit: everything that waits goes into one transaction, and everybody is answered after its COMMIT.

A commit costs a fixed price (about 200 µs of CPU and an fsync) whatever it holds, so the size of a batch decides the
throughput. Batches grow without a timer: while more work has arrived since the last look, look once more.

The SQL runs on the event loop's thread: from a second thread every statement would fight for the interpreter's lock.
What waits for the disk or for another process goes to a thread of its own: COMMIT, the checkpoint, and BEGIN when
somebody else holds the lock. Meanwhile the loop serves on and the next batch gathers. On a quick disk, with nobody else
waiting, COMMIT stays on the loop: waking a thread and being woken takes longer than the disk.

What goes first and what is refused when too much waits is told in ``kernel.admission``.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import apsw

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.admission import Queue
from twophp.kernel.apply import Failure
from twophp.ports import Load
from twophp.stores.clock import StoreTime, steady_seconds
from twophp.stores.sqlite.batch import Batch
from twophp.stores.sqlite.connection import BUSY_TIMEOUT_MS, is_fsync_failure, is_outside_fault, roll_back, translate
from twophp.stores.sqlite.known import Known, read_head
from twophp.stores.sqlite.sql import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from twophp.core.records import Instant
    from twophp.kernel.apply import Command, Job, Outcome
    from twophp.ports import Clock

log: Final = logging.getLogger("twophp.store")

QUEUE_CAPACITY: Final = 4_096
BATCH_LIMIT: Final = 512
QUICK_COMMIT_S: Final = 0.003  # Slower than that, and the loop must not wait for it.
CHECKPOINT_PAGES: Final = 4_096  # 16 MiB of log; fewer, larger checkpoints write hot pages less often.


class Writer:
    """The only writer of one handle. Several handles, also in several processes, may share a file."""

    def __init__(
        self,
        connection: apsw.Connection,
        clock: Clock,
        *,
        capacity: int,
        batch_limit: int,
        seconds: Callable[[], float] = steady_seconds,
        is_proved: bool = True,
    ) -> None:
        """``seconds`` measures what the background takes; nobody can set it back.

        ``is_proved``: something was written since the database was opened.
        """
        self._connection = connection
        self._seconds = seconds
        self._batch_limit = batch_limit
        self._waiting = Queue(capacity=capacity, batch_limit=batch_limit, seconds=seconds)
        self._alarm: asyncio.TimerHandle | None = None
        self._drain: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twophp-commit")
        self._poison: StorePoisoned | None = None
        self._is_proved = is_proved
        self._log_pages = 0
        self._latest_batch = self._batches = self._changes = 0
        self._commit_took_s = 0.0
        self._closing = False
        self._known = Known(connection)
        self._time = StoreTime(clock, read_head(connection).at)
        connection.set_wal_hook(self._count_log_pages)

    def transact(self, command: Command) -> asyncio.Future[Any]:
        """Queue the command; whoever awaits it waits until it is durable. One that finds no room is refused at once.

        No coroutine: what is awaited is the future that the flush resolves, without a frame in between.
        """
        if self._poison is not None:
            raise _for_a_caller(self._poison)
        if self._closing:
            raise StoreUnavailable("the store is closed", code="store_closed")
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.add((command, done), command.admission)
        if self._drain is None or self._drain.done():  # One that was cancelled before it began has cleared nothing.
            self._drain = loop.create_task(self._work())
        return done

    def load(self) -> Load:
        """See ``Store.load``."""
        return Load(
            waiting=self._waiting.size, latest_batch=self._latest_batch, batches=self._batches, changes=self._changes
        )

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._time.now()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._time.wall_ahead_ms()

    def stop(self, why: str) -> None:
        """From here on this handle writes nothing and says so, until the database was opened anew."""
        self._poison = self._poison or StorePoisoned(f"the store has stopped: {why}")

    async def close(self) -> None:
        """Finish what was accepted, refuse what comes after, stop."""
        self._closing = self._waiting.is_closing = True
        while self._waiting.size or self._drain is not None:
            if self._drain is None or self._drain.done():
                self._drain = asyncio.get_running_loop().create_task(self._work())
            await asyncio.wait([self._drain])
        self._thread.shutdown()

    async def _work(self) -> None:
        waiting = self._waiting
        try:
            while True:
                if waiting:
                    await self._gather()
                    await self._write(waiting.take())
                    waiting.asked()
                if bite := waiting.take_bite():
                    await self._bite(bite)
                elif not waiting:
                    break
        finally:
            self._drain = None
        if waiting.has_background:
            self._come_back(waiting.rest_s())

    async def _bite(self, jobs: list[Job]) -> None:
        """Changes that nobody waits for, in a batch of their own, so that it is known what they take."""
        began = self._seconds()
        await self._write(jobs)
        self._waiting.bitten(began)
        with suppress(asyncio.CancelledError):  # See ``_elsewhere``.
            await asyncio.sleep(0)  # A turn of the loop, so that requests which have come meanwhile are heard.

    def _come_back(self, rest_s: float) -> None:
        """The background goes on after its rest, or with the next request's change if that comes later than it."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = loop.call_later(max(rest_s, 0.0), self._resume, loop)

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = None
        if self._waiting.size and (self._drain is None or self._drain.done()):
            self._drain = loop.create_task(self._work())

    async def _write(self, jobs: list[Job]) -> None:
        """One batch, made durable, and everybody told."""
        self._latest_batch = len(jobs)
        self._batches += 1
        self._changes += len(jobs)
        _tell(jobs, await self._flush(jobs))
        if self._log_pages >= CHECKPOINT_PAGES:
            await self._checkpoint()

    async def _gather(self) -> None:
        seen = 1  # Who is still alone after a turn of the loop needs no second look.
        while seen < len(self._waiting) < self._batch_limit:
            seen = len(self._waiting)
            with suppress(asyncio.CancelledError):  # See ``_elsewhere``.
                await asyncio.sleep(0)

    async def _flush(self, jobs: list[Job]) -> list[Outcome]:
        """One transaction for all; if a change cannot be written, one savepoint for each, so one harms nobody."""
        try:
            await self._begin()
            if self._known.refresh():
                self._waiting.asked()  # Another handle writes: its requests wait while we hold the lock.
            batch = None
            try:
                batch, outcomes = self._run(jobs)
                changed = batch.changed
            except Exception as error:
                if is_outside_fault(error):
                    raise
                await self._begin_again()
                changed, outcomes = await self._run_one_by_one(jobs)
            if not self._is_proved:
                self._connection.execute(sql("prove_durable"))
                changed = True
            if changed:
                await self._commit()
                self._is_proved = True
                if batch is not None:
                    batch.flushed()
            else:
                self._connection.execute(sql("rollback"))
        except Exception as error:  # noqa: BLE001 - every waiting caller must hear of it, whatever it is.
            self._undo(error)
            return self._look(jobs, error) if isinstance(error, apsw.FullError) else _failures(jobs, error)
        except BaseException as error:
            self._undo(error)  # Whoever stops the process may be talked out of it, and then goes on from here.
            _tell(jobs, [Failure(CommitUnknown("the writer was interrupted")) for _job in jobs])
            raise
        return outcomes

    def _look(self, jobs: list[Job], error: Exception) -> list[Outcome]:
        """The disk is full: whoever changes nothing is answered from what is durable, the others hear of it."""
        try:
            self._connection.execute(sql("begin_reading"))
            return Batch(self._connection, self._time, self._known).look(
                _commands(jobs), lambda: Failure(_for_a_caller(error)), must_be_there=not self._is_proved
            )
        except apsw.Error as worse:
            return _failures(jobs, worse)
        finally:
            roll_back(self._connection)
            self._known.forget()  # What was read outside of a write transaction may be out of date by the next.

    async def _begin(self) -> None:
        """Take the write lock: at once if it is free, else wait for it off the loop."""
        if self._poison is not None:
            raise self._poison
        try:
            self._connection.set_busy_timeout(0)
            self._connection.execute(sql("begin"))
        except apsw.BusyError:
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            await self._off_loop(sql("begin"))

    def _run(self, jobs: list[Job]) -> tuple[Batch, list[Outcome]]:
        batch = Batch(self._connection, self._time, self._known)
        return batch, batch.run(_commands(jobs))

    async def _begin_again(self) -> None:
        """A statement that failed may have rolled the transaction back itself (``INSERT OR ROLLBACK``)."""
        self._known.forget()
        if self._connection.in_transaction:
            self._connection.execute(sql("rollback"))
        await self._begin()

    async def _run_one_by_one(self, jobs: list[Job]) -> tuple[bool, list[Outcome]]:
        """Each with a savepoint of its own. One that ends the transaction costs the others another round."""
        refused: dict[int, Outcome] = {}
        while True:
            known_to_fail = len(refused)
            changed, outcomes = self._run_apart(jobs, refused)
            if self._connection.in_transaction:
                return changed, outcomes
            assert len(refused) > known_to_fail, "every round finds one that ends it"
            await self._begin_again()

    def _run_apart(self, jobs: list[Job], refused: dict[int, Outcome]) -> tuple[bool, list[Outcome]]:
        """Nothing of it is kept in what is known: each small batch has a slot of its own for the same record."""
        changed = False
        outcomes: list[Outcome] = []
        for number, job in enumerate(jobs):
            if number in refused:
                outcomes.append(refused[number])
                continue
            self._known.forget()  # The batch that failed, and the one before this, left their marks in what was known.
            self._connection.execute(sql("savepoint"))
            try:
                batch, told = self._run([job])
                changed |= batch.changed
            except Exception as error:
                if is_outside_fault(error):
                    raise
                refused[number] = Failure(_for_a_caller(error))
                if not self._connection.in_transaction:
                    break
                self._connection.execute(sql("rollback_to_savepoint"))
                told = [refused[number]]
            outcomes += told
            self._connection.execute(sql("release_savepoint"))
        self._known.forget()
        return changed, outcomes

    async def _commit(self) -> None:
        """Flush, and know what it means if that fails."""
        try:
            await self._sync()
        except apsw.FullError:
            raise  # The log could not grow, so the commit frame was never written: certain, and nobody is answered.
        except apsw.Error as error:
            message = f"the commit failed and may still be on the disk: {error}"
            self._poison = StorePoisoned(f"a commit failed on {self._connection.filename}: {error}; open it anew")
            raise CommitUnknown(message) from error

    async def _sync(self) -> None:
        """COMMIT; in the thread, unless nobody else waits and the disk is quick: then the hop would cost more."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not self._waiting and self._commit_took_s < QUICK_COMMIT_S:
            self._connection.execute(sql("commit"))
        else:
            await self._off_loop(sql("commit"))
        self._commit_took_s = loop.time() - began

    async def _checkpoint(self) -> None:
        """Fold the log into the database. What was committed is safe in the log whatever happens here."""
        try:
            await self._elsewhere(self._connection.wal_checkpoint)
        except apsw.BusyError:
            pass  # Another handle is at it; the next commit tries again.
        except apsw.Error as error:
            log.warning("checkpoint failed: %s", error)
            if is_fsync_failure(error):
                self._poison = StorePoisoned(f"a checkpoint's fsync failed: {error}; open the database anew")

    async def _off_loop(self, statement: str) -> None:
        await self._elsewhere(self._connection.execute, statement)

    async def _elsewhere(self, function: Callable[..., Any], *args: Any) -> None:
        """In the thread, and to its end, whoever cancels meanwhile.

        A loop that ends cancels its tasks and waits for them. What was accepted is finished first: nobody may use the
        connection before that, or know less than what is on the disk.
        """
        work = asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.result()

    def _undo(self, error: BaseException) -> None:
        """Nobody is told yes. Whatever is half done in the connection is undone, or the handle is given up."""
        self._known.forget()
        try:
            if self._connection.in_transaction:
                self._connection.execute(sql("rollback"))
        except apsw.Error as worse:
            self._poison = self._poison or StorePoisoned(f"a rollback failed: {worse}; open the database anew")
        if not isinstance(error, apsw.Error | TwoPHPError):
            log.error("a batch failed", exc_info=error)

    def _count_log_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK


def _commands(jobs: list[Job]) -> list[Command]:
    return [command for command, _done in jobs]


def _failures(jobs: list[Job], error: Exception) -> list[Outcome]:
    return [Failure(_for_a_caller(error)) for _job in jobs]


def _tell(jobs: list[Job], outcomes: list[Outcome]) -> None:
    for (_command, done), outcome in zip(jobs, outcomes, strict=True):
        if done.done():  # A caller that gave up waiting is no reason to stop.
            continue
        if type(outcome) is Failure:
            done.set_exception(outcome.error)
        else:
            done.set_result(outcome)


def _for_a_caller(error: Exception) -> TwoPHPError:
    """A fresh error for each caller: one that is raised in many tasks would collect all their tracebacks."""
    if isinstance(error, apsw.Error):
        return translate(error)
    if isinstance(error, TwoPHPError):
        return type(error)(str(error), code=error.code)
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")
