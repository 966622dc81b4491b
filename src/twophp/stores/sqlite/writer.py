"""Group commit: every waiting change goes into one transaction, and every caller is answered after its COMMIT.

A commit costs a fixed price (about 200 µs of CPU and an fsync) for any number of changes, so the size of a batch
decides the throughput. Batches grow without a timer: while more work has arrived since the last look, the writer looks
once more.

The SQL runs on the event loop's thread: from a second thread every statement would fight for the interpreter's lock.
A batch is a generator that yields each step that has to wait for the disk or for another process: BEGIN while another
connection holds the lock, COMMIT unless it runs on the loop (``commit_place`` decides), the checkpoint. A batch that
waits for nothing is written inside the loop's callback, without a task. Any other batch goes on in a task, and the
steps that it yields run in a thread; the loop serves requests during that time, and the next batch gathers. A caller
without a loop runs the steps in place (``blocking``).

``kernel.admission`` decides which changes go first, and which are refused when too many wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import apsw

from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.kernel.admission import Queue
from twophp.kernel.apply import Failure
from twophp.kernel.commands import ReadRecords
from twophp.ports import Load
from twophp.stores.clock import StoreTime, seconds_without_cpu, steady_seconds
from twophp.stores.sqlite.batch import Batch
from twophp.stores.sqlite.commit_place import CommitPlace
from twophp.stores.sqlite.connection import BUSY_TIMEOUT_MS, is_fsync_failure, is_outside_fault, roll_back, translate
from twophp.stores.sqlite.flow import Flow, Wait, resumed, run_here, tell
from twophp.stores.sqlite.lock import begin_when_free
from twophp.stores.sqlite.record_cache import RecordCache, read_head
from twophp.stores.sqlite.sql import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twophp.core.records import Instant, Key
    from twophp.kernel.apply import Job, Outcome
    from twophp.ports import Clock, Command, Then

log: Final = logging.getLogger("twophp.store")

QUEUE_CAPACITY: Final = 4_096
BATCH_LIMIT: Final = 512
CHECKPOINT_PAGES: Final = 4_096  # 16 MiB of log; fewer, larger checkpoints write hot pages less often.
ALONE: Final = 1  # A change that is still alone after a turn of the loop needs no second look.

_BEGIN: Final = sql("begin")
_COMMIT: Final = sql("commit")


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
        is_blocking: bool = False,
    ) -> None:
        """``seconds`` measures what the background and the disk take; it is a clock that cannot be set back.

        ``is_proved``: something was written since the database was opened. ``is_blocking``: the writing thread may wait
        for the disk, so there is no place to choose and nothing to measure.
        """
        self._connection = connection
        self._seconds = seconds
        self._batch_limit = batch_limit
        self._waiting = Queue(capacity=capacity, batch_limit=batch_limit, seconds=seconds)
        self._awake: asyncio.AbstractEventLoop | None = None  # The loop on which a look or a batch is under way.
        self._context = Context()  # Empty: a batch must not run in the context of the request that woke it.
        self._idle: list[asyncio.Future[None]] = []  # Resolved when nothing is under way: ``close`` waits for that.
        self._alarm: asyncio.TimerHandle | None = None
        # The task of a batch that has to wait. It is kept here because the loop holds only a weak reference to it.
        self._task: asyncio.Task[None] | None = None
        self._handed_over: tuple[Flow, Wait] | None = None  # Such a batch, until its task has begun.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twophp-commit")
        self._place = None if is_blocking else CommitPlace()
        self._commit_took_s = 0.0
        self._poison: StorePoisoned | None = None
        self._is_proved = is_proved
        self._log_pages = 0
        self._latest_batch = self._batches = self._changes = 0
        self._closing = False
        self._known = RecordCache(connection)
        self._time = StoreTime(clock, read_head(connection).at)
        connection.set_wal_hook(self._count_log_pages)

    def transact(self, command: Command) -> asyncio.Future[Any]:
        """Queue the command; awaiting the future waits until the change is durable. A full queue refuses at once.

        This is no coroutine: the caller awaits the future that the flush resolves, without a frame in between.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._add((command, done), loop)
        return done

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``."""
        self._add((command, then), asyncio.get_running_loop())

    def _add(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        if self._poison is not None:
            raise _for_a_caller(self._poison)
        if self._closing:
            raise StoreUnavailable("the store is closed", code="store_closed")
        self._waiting.add(job, job[0].admission)
        if self._awake is not loop:  # A loop that has ended took what it had under way with it.
            self._awake = loop
            loop.call_soon(self._look, ALONE, context=self._context)

    def read(self, connection: apsw.Connection, keys: Sequence[Key]) -> Sequence[Any]:
        """The records under these keys as of one moment, read through a connection that does not write."""
        try:
            connection.execute(sql("begin_reading"))
            batch = Batch(connection, self._time, RecordCache(connection))
            (answer,) = batch.look([ReadRecords(keys)], _nothing_to_refuse, must_be_there=False)
        except apsw.Error as error:
            raise translate(error) from error
        finally:
            roll_back(connection)
        if isinstance(answer, Failure):
            raise answer.error
        records: Sequence[Any] = answer
        return records

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

    @property
    def is_sure(self) -> bool:
        """Whether everything that can be read is durable. If not, a read has to take its turn in the queue."""
        return self._poison is None and self._is_proved and not self._closing

    def stop(self, why: str) -> None:
        """Refuse every further change of this handle, until the database is opened anew."""
        self._poison = self._poison or StorePoisoned(f"the store has stopped: {why}")

    async def close(self) -> None:
        """Finish every accepted change, refuse later ones, stop."""
        self._closing = self._waiting.is_closing = True
        loop = asyncio.get_running_loop()
        while self._waiting.size or self._awake is loop:
            if self._awake is not loop:
                self._awake = loop
                loop.call_soon(self._look, ALONE, context=self._context)
            idle = loop.create_future()
            self._idle.append(idle)
            await idle
        self._thread.shutdown()

    # What the loop calls. From ``_look`` on, until ``_go_to_sleep``, exactly one of these is scheduled or running.

    def _look(self, seen: int) -> None:
        """Write the waiting changes, once no more have come since the last look."""
        count = len(self._waiting)
        if seen < count < self._batch_limit:
            self._soon(self._look, count)
        elif count:
            self._start(self._requests(), is_bite=False)
        else:
            self._look_behind()

    def _look_behind(self) -> None:
        """Write some of the background's changes, if it is their turn."""
        bite = self._waiting.take_bite()
        if bite:
            self._start(self._bite(bite), is_bite=True)
        elif self._waiting:
            self._soon(self._look, ALONE)
        else:
            self._go_to_sleep()

    def _start(self, flow: Flow, *, is_bite: bool) -> None:
        """Write a batch here, or in a task if it has to wait."""
        loop = self._awake
        assert loop is not None, "something is under way"
        work: Wait | None = None
        try:
            work = next(flow, None)
        finally:  # Also after any exception: without this the next batch would wait for ever.
            if work is None:
                self._go_on(is_bite=is_bite)
        if work is not None:
            self._handed_over = flow, work
            self._task = loop.create_task(self._in_turns())
            self._task.add_done_callback(partial(self._ended, is_bite=is_bite))

    async def _in_turns(self) -> None:
        """Run the rest of a batch, with each step that waits in the thread."""
        assert self._handed_over is not None
        (flow, work), self._handed_over = self._handed_over, None
        wait: Wait | None = work
        while wait is not None:
            wait = resumed(flow, await self._elsewhere(wait))

    def _ended(self, _task: asyncio.Task[None], *, is_bite: bool) -> None:
        self._task = None
        if self._handed_over is not None:  # The ending loop has cancelled the task before it began.
            (flow, work), self._handed_over = self._handed_over, None
            run_here(flow, work)
        self._go_on(is_bite=is_bite)

    def _go_on(self, *, is_bite: bool) -> None:
        """Requests and the background take turns, so neither waits for the end of the other."""
        if is_bite and self._waiting:
            self._soon(self._look, ALONE)
        elif self._waiting.has_background and self._waiting.rest_s() <= 0:
            self._soon(self._look_behind)
        elif self._waiting:
            self._soon(self._look, ALONE)
        else:
            self._go_to_sleep()

    def _soon(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._awake is not None, "something is under way"
        self._awake.call_soon(callback, *args, context=self._context)

    def _go_to_sleep(self) -> None:
        loop, self._awake = self._awake, None
        assert loop is not None, "something was under way"
        if self._waiting.has_background:
            self._come_back(loop, self._waiting.rest_s())
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()

    def _come_back(self, loop: asyncio.AbstractEventLoop, rest_s: float) -> None:
        """Resume the background after its rest, or with the next request's change if that comes later."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = loop.call_later(max(rest_s, 0.0), self._resume, loop, context=self._context)

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = None
        if self._waiting.size and self._awake is not loop:
            self._awake = loop
            self._look(ALONE)

    async def _elsewhere(self, work: Wait) -> Exception | None:
        """Run ``work`` in the thread, to its end even if this task is cancelled, and return what it raised.

        A loop that ends cancels its tasks and waits for them. The accepted changes are finished first: before that no
        other code may use the connection, and the cache would lag behind the disk.
        """
        working = asyncio.get_running_loop().run_in_executor(self._thread, work)
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        error = working.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    # One batch.

    def _requests(self) -> Flow:
        """One batch of changes that callers wait for."""
        yield from self.write(self._waiting.take)
        self._waiting.asked()

    def _bite(self, jobs: list[Job]) -> Flow:
        """The background's changes in a batch of their own, so that their time can be measured."""
        began = self._seconds()
        yield from self.write(lambda: jobs)
        self._waiting.bitten(began)

    def write(self, take: Callable[[], list[Job]]) -> Flow:
        """Make one batch durable, then answer every caller in it.

        ``take`` returns the batch. It is called while this handle holds the lock, so changes that come while another
        process holds it share this commit.
        """
        trouble: Exception | None = None
        try:
            yield from self._begin()
        except Exception as error:  # noqa: BLE001 - every waiting caller must receive the error.
            trouble = error
        jobs = take()
        self._latest_batch = len(jobs)
        self._batches += 1
        self._changes += len(jobs)
        tell(jobs, (yield from self._flush(jobs)) if trouble is None else self._failed(jobs, trouble))
        if self._log_pages >= CHECKPOINT_PAGES:
            yield from self._checkpoint()

    def _flush(self, jobs: list[Job]) -> Generator[Wait, None, list[Outcome]]:
        """One transaction for all changes; if one cannot be written, a savepoint for each, so the others succeed."""
        try:
            if self._known.refresh():
                self._waiting.asked()  # Another handle writes: its requests wait while we hold the lock.
            batch = None
            try:
                batch, outcomes = self._run(jobs)
                changed = batch.changed
            except Exception as error:
                if is_outside_fault(error):
                    raise
                yield from self._begin_again()
                changed, outcomes = yield from self._run_one_by_one(jobs)
            if not self._is_proved:
                self._connection.execute(sql("prove_durable"))
                changed = True
            if changed:
                yield from self._commit()
                self._is_proved = True
                if batch is not None:
                    batch.flushed()
            else:
                self._connection.execute(sql("rollback"))
        except Exception as error:  # noqa: BLE001 - every waiting caller must receive the error.
            return self._failed(jobs, error)
        except BaseException as error:
            self.undo(error)  # The application may catch the exit and go on with this handle.
            tell(jobs, [Failure(CommitUnknown("the writer was interrupted")) for _job in jobs])
            raise
        return outcomes

    def _failed(self, jobs: list[Job], error: Exception) -> list[Outcome]:
        self.undo(error)
        return self._look_up(jobs, error) if isinstance(error, apsw.FullError) else _failures(jobs, error)

    def _look_up(self, jobs: list[Job], error: Exception) -> list[Outcome]:
        """The disk is full: a command that changes nothing is answered from durable records, the others are refused."""
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

    def _begin(self) -> Flow:
        """Take the write lock at once if it is free, else wait for it off the loop."""
        if self._poison is not None:
            raise self._poison
        try:
            self._connection.set_busy_timeout(0)
            self._connection.execute(_BEGIN)
        except apsw.BusyError:
            yield partial(begin_when_free, self._connection, self._seconds, BUSY_TIMEOUT_MS / 1_000)

    def _run(self, jobs: list[Job]) -> tuple[Batch, list[Outcome]]:
        batch = Batch(self._connection, self._time, self._known)
        return batch, batch.run(_commands(jobs))

    def _begin_again(self) -> Flow:
        """A statement that failed may have rolled the transaction back itself (``INSERT OR ROLLBACK``)."""
        self._known.forget()
        if self._connection.in_transaction:
            self._connection.execute(sql("rollback"))
        yield from self._begin()

    def _run_one_by_one(self, jobs: list[Job]) -> Generator[Wait, None, tuple[bool, list[Outcome]]]:
        """Run each change in a savepoint of its own. One that ends the transaction costs the others another round."""
        refused: dict[int, Outcome] = {}
        while True:
            known_to_fail = len(refused)
            changed, outcomes = self._run_apart(jobs, refused)
            if self._connection.in_transaction:
                return changed, outcomes
            assert len(refused) > known_to_fail, "every round finds one that ends it"
            yield from self._begin_again()

    def _run_apart(self, jobs: list[Job], refused: dict[int, Outcome]) -> tuple[bool, list[Outcome]]:
        """Run one round. The cache keeps nothing of it: each small batch has a slot of its own for the same record."""
        changed = False
        outcomes: list[Outcome] = []
        for number, job in enumerate(jobs):
            if number in refused:
                outcomes.append(refused[number])
                continue
            self._known.forget()  # The batch that failed, and the one before this, have changed the cached slots.
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

    def _commit(self) -> Flow:
        """Make the batch durable, and tell a certain failure from an unknown outcome."""
        place = self._place
        on_loop = place is None or place.is_on_loop(self._seconds())
        try:
            if on_loop:
                self._sync()
            else:
                yield self._sync
        except apsw.FullError:
            raise  # Certain: the log could not grow, so the commit frame was never written, and no caller is answered.
        except apsw.Error as error:
            message = f"the commit failed and may still be on the disk: {error}"
            self._poison = StorePoisoned(f"a commit failed on {self._connection.filename}: {error}; open it anew")
            raise CommitUnknown(message) from error
        if place is not None:
            place.took(self._seconds(), self._commit_took_s, on_loop=on_loop)

    def _sync(self) -> None:
        """COMMIT, on the loop or in the thread.

        Time without a processor is subtracted, so only the disk is measured: on an overloaded machine a thread would
        wait for a processor as long as the loop does.
        """
        if self._place is None:
            self._connection.execute(_COMMIT)
            return
        began, without_cpu = self._seconds(), seconds_without_cpu()
        self._connection.execute(_COMMIT)
        self._commit_took_s = self._seconds() - began - (seconds_without_cpu() - without_cpu)

    def _checkpoint(self) -> Flow:
        """Fold the log into the database. Committed changes are safe in the log even if this fails."""
        try:
            yield self._connection.wal_checkpoint
        except apsw.BusyError:
            pass  # Another handle checkpoints; the next commit tries again.
        except apsw.Error as error:
            log.warning("checkpoint failed: %s", error)
            if is_fsync_failure(error):
                self._poison = StorePoisoned(f"a checkpoint's fsync failed: {error}; open the database anew")

    def undo(self, error: BaseException) -> None:
        """Roll back a batch that failed, or give up the handle. No caller of the batch has been answered."""
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


def _nothing_to_refuse() -> Failure:
    raise AssertionError("a look writes nothing")


def _commands(jobs: list[Job]) -> list[Command]:
    return [command for command, _done in jobs]


def _failures(jobs: list[Job], error: Exception) -> list[Outcome]:
    return [Failure(_for_a_caller(error)) for _job in jobs]


def _for_a_caller(error: Exception) -> TwoPHPError:
    """A fresh error for each caller: one that is raised in many tasks would collect all their tracebacks."""
    if isinstance(error, apsw.Error):
        return translate(error)
    if isinstance(error, TwoPHPError):
        return type(error)(error.message, code=error.code)
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")
