"""Group commit for threads: the first thread writes the changes of all waiting threads.

A thread that has to wait for the disk anyway does the work itself: to hand it to an event loop and be woken again takes
longer than the work, and the longer the busier the machine is. The thread that holds the turn takes every waiting
change into one transaction, and the next batch gathers during that time. The batch is the same as on the event loop
(writer.py); its steps that wait run in place, because a thread may block.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twophp.core.errors import CommitUnknown, StoreOverloaded, StoreUnavailable
from twophp.core.records import Instant
from twophp.ports import Clock, Command, Then
from twophp.stores.clock import system_clock
from twophp.stores.sqlite.connection import migrate, open_connection
from twophp.stores.sqlite.flow import run_here
from twophp.stores.sqlite.writer import BATCH_LIMIT, QUEUE_CAPACITY, Writer

if TYPE_CHECKING:
    from twophp.kernel.apply import Job


class _Ticket:
    """The outcome of one change: for the thread that waits for it, or for the callback ``heard``."""

    __slots__ = ("_heard", "error", "is_over", "result")

    def __init__(self, heard: Then | None = None) -> None:
        self._heard = heard
        self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None

    def __call__(self, result: Any, error: Exception | None) -> None:
        self.result, self.error, self.is_over = result, error, True

    def tell(self) -> None:
        """Call back a caller that does not wait. Call it without the turn: the callback may use this handle."""
        if self._heard is not None:
            self._heard(self.result, self.error)


class BlockingSQLite:
    """A handle of its own on a database that a ``SQLiteStore`` has opened before, for any number of threads."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock = system_clock,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        self._path = path
        self._clock = clock
        self._capacity = capacity
        self._batch_limit = batch_limit
        self._turn = threading.Lock()  # The thread that uses the connection holds it.
        self._waiting: deque[tuple[Command, _Ticket]] = deque()
        self._is_closed = False
        self._open()

    def _open(self, *, again: bool = False) -> None:
        connection = open_connection(self._path, must_exist=True)
        if again:
            migrate(connection, self._path)  # Writes over a failed commit that a recovery would still find.
        self._writer = Writer(connection, self._clock, capacity=0, batch_limit=0, is_blocking=True)
        self._connection = connection
        self._path = connection.filename  # From the root on: the process may change its folder.

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._writer.now()

    def transact(self, command: Command) -> Any:
        """See ``Store.transact``: returns after COMMIT. Changes that were handed over earlier are written first."""
        told = _Ticket()
        self._enqueue(command, told)
        self._write_while(lambda: not told.is_over)  # The thread that had the turn before may have written ours too.
        if told.error is not None:
            raise told.error
        return told.result

    def hand_over(self, command: Command, heard: Then) -> None:
        """As ``transact``, without waiting: the next ``transact`` of any thread, or ``flush``, writes the change."""
        self._enqueue(command, _Ticket(heard))

    def flush(self) -> None:
        """Write every change that was handed over."""
        self._write_while(lambda: bool(self._waiting))

    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._waiting

    def reopen(self) -> None:
        """See ``Store.reopen``. A closed handle stays closed."""
        with self._turn:
            self._connection.close()
            self._refuse_if_closed()
            self._open(again=True)

    def close(self) -> None:
        """Write every accepted change and close the connection; later changes are refused."""
        self._is_closed = True
        self.flush()
        with self._turn:
            self._connection.close()

    def _enqueue(self, command: Command, told: _Ticket) -> None:
        self._refuse_if_closed()
        if len(self._waiting) >= self._capacity:
            raise StoreOverloaded(f"{self._capacity} changes are waiting for the disk")
        self._waiting.append((command, told))

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed", code="store_closed")

    def _write_while(self, wanted: Callable[[], bool]) -> None:
        over: list[_Ticket] = []
        try:
            with self._turn:
                while wanted():
                    self._write_a_batch(over)
        finally:
            for told in over:
                told.tell()

    def _write_a_batch(self, over: list[_Ticket]) -> None:
        """Call it with the turn. A batch leaves the queue when it is over, so an interrupt loses none of it."""
        jobs: list[Job] = [self._waiting[place] for place in range(min(len(self._waiting), self._batch_limit))]
        try:
            run_here(self._writer.write(lambda: jobs))
        except BaseException as error:
            self._give_up(jobs, error)
            raise
        finally:
            while self._waiting and self._waiting[0][1].is_over:
                over.append(self._waiting.popleft()[1])

    def _give_up(self, jobs: list[Job], error: BaseException) -> None:
        """The thread was interrupted in the middle: the outcome is unknown, and each caller may look it up."""
        self._writer.undo(error)
        for _command, told in jobs:
            assert isinstance(told, _Ticket), "only threads wait here"
            if not told.is_over:
                told(None, CommitUnknown("the thread that wrote it was interrupted"))
