"""A ``Store`` over the simulated database: batches, trips that take time, commits that fail or stay unknown.

It is written as the drivers of real databases are. Everything that waits is one batch: a trip loads the rows, the
kernel decides, another trip commits under the guards, and everybody is answered after that. Who met somebody quicker
decides again. A commit whose answer is lost has an unknown outcome: the handle stops until it was reopened, which
closes its writer's row, so that a commit that is still on its way comes too late.

``is_local`` is SQLite's situation: all processes stand on one machine, go by its clock, and know which owners live.
Else it is PostgreSQL's: time is the database's as far as a process has heard it, and of other owners nothing is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Final, Self, TypeVar

import msgspec

from tests.simulation.database import Conflict, Database, Taken, WriterRow
from tests.simulation.machine import Process
from tests.simulation.scheduler import Scheduler
from twophp.core.entry import LedgerEntry
from twophp.core.errors import CommitUnknown, ConstraintViolation, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.intent import INTENT, SETTLED
from twophp.core.obligation import Obligation
from twophp.core.records import Instant, Key, Sealed
from twophp.kernel.admission import Queue
from twophp.kernel.apply import Failure, Job, Operations, Outcome, Snapshot, apply
from twophp.kernel.commands import MakeChange
from twophp.kernel.journal import Link
from twophp.ports import (
    Change,
    Command,
    JournalLine,
    Load,
    Obligations,
    OwnerState,
    Part,
    Question,
    Synced,
    Tally,
    Then,
)
from twophp.stores.clock import AnchoredClock, StoreTime
from twophp.stores.database_clock import DatabaseClock

BATCH_LIMIT: Final = 64
TRIES: Final = 8
SLOW_S: Final = 0.5
"""Whoever waits longer than this for the store is not well."""

T = TypeVar("T")


class Faults(msgspec.Struct):
    """What may happen to a trip and to a commit, as parts of one."""

    slow: float = 0.0
    slow_s: float = 3.0
    failed: float = 0.0
    refused: float = 0.0
    unknown: float = 0.0
    away_until: float = 0.0

    def end(self) -> None:
        """From here on all goes well."""
        self.slow = self.failed = self.refused = self.unknown = self.away_until = 0.0


class Place:
    """Where a ledger lies, and how to reach it."""

    def __init__(self, scheduler: Scheduler, database: Database, *, is_local: bool) -> None:
        self.scheduler = scheduler
        self.database = database
        self.is_local = is_local
        self.takes_statements = True  # Of rows alone: what a statement says is not read.
        self.faults = Faults()
        self.waiting: dict[str, list[tuple[Process, asyncio.Future[None]]]] = {}

    def delay_s(self) -> float:
        """How long one way takes."""
        draw, faults = self.scheduler.random.random, self.faults
        if faults.slow and draw() < faults.slow:
            return draw() * faults.slow_s
        return 0.0002 + draw() * 0.002

    def chance(self, part: float) -> bool:
        """Whether something of this probability happens now."""
        return part > 0 and self.scheduler.random.random() < part

    def told(self, ended: Sequence[str]) -> None:
        """News for whoever waits; some of it is lost."""
        for id_ in ended:
            for process, future in self.waiting.get(id_, ()):
                if not process.is_dead and not self.chance(0.2):
                    process.loop.call_later(self.delay_s(), _resolve, future, None)


class Owners:
    """Which processes live, where that can be known."""

    def __init__(self, process: Process, place: Place) -> None:
        self._process = process
        self._known = place.database.owners
        self._is_local = place.is_local

    def register(self, name: str) -> str:
        """See ``ports.Owners``."""
        process = self._process
        process.owner_names.append(name)
        process.world.owners[name] = process
        if self._is_local:
            self._known[name] = True
            process.at_its_end[lambda: self._known.update({name: False})] = None
        return name

    def release(self, owner: str) -> None:
        """See ``ports.Owners``."""
        if owner in self._known and not self._process.is_dead:
            self._known[owner] = False

    def state(self, owner: str, /) -> OwnerState:
        """See ``ports.Owners``."""
        lives = self._known.get(owner)
        return "unknown" if lives is None else "alive" if lives else "dead"


class SimulatedStore:
    """One handle of one process."""

    at_once: Final = None

    def __init__(self, process: Process, place: Place, clock: AnchoredClock) -> None:
        self._process = process
        self._place = place
        self._loop = process.loop
        self._database_clock = (
            None if place.is_local else DatabaseClock(process.machine.wall, process.machine.steady_ns)
        )
        self._time = StoreTime(self._database_clock or clock)
        self._waiting = Queue(capacity=4_096, batch_limit=BATCH_LIMIT, seconds=self._loop.time)
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._poison: StorePoisoned | None = None
        self._is_closed = False
        self._reopening = asyncio.Lock()
        self._writer: WriterRow
        self._seq = 0
        self.owners = Owners(process, place)
        self.takes_statements = place.takes_statements

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    # Trips.

    async def _trip(self, ask: Callable[[Database], T]) -> T:
        """There, and back with the answer."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed", code="store_closed")
        done: asyncio.Future[T] = self._loop.create_future()
        there_s = self._place.delay_s()
        if there_s > SLOW_S:
            self._process.unwell(2 * there_s)
        self._place.scheduler.later(there_s, self._arrives, ask, done)
        return await done

    def _arrives(self, ask: Callable[[Database], T], done: asyncio.Future[T]) -> None:
        place, process = self._place, self._process
        if process.is_dead:
            return
        back_s = place.delay_s()
        if back_s > SLOW_S:
            process.unwell(2 * back_s)
        if place.scheduler.now < place.faults.away_until or place.chance(place.faults.failed):
            process.unwell(1.0)
            self._loop.call_later(back_s, _fail, done, StoreUnavailable("the database does not answer"))
            return
        try:
            answer = ask(place.database)
        except Exception as error:  # noqa: BLE001 - It is the caller's.
            self._loop.call_later(back_s, _fail, done, error)
        else:
            self._loop.call_later(back_s, _resolve, done, answer)

    async def _sent(self, operations: Operations) -> None:
        """The commit on its way. Some never arrive, some answers never come back, some arrive long after that."""
        place, process = self._place, self._process
        if place.chance(place.faults.refused):
            process.unwell(1.0)
            raise StoreUnavailable("the database's disk is full", code="disk_full")
        done: asyncio.Future[None] = self._loop.create_future()
        writer, seq, there_s = self._writer, self._seq, place.delay_s()
        if place.chance(place.faults.unknown):
            process.unwell(2.0)
            fate = int(place.scheduler.random.random() * 3)
            place.scheduler.later(
                there_s + (0.0, 0.0, 1.5)[fate], self._commits, operations, writer, seq, None, fate != 1
            )
            self._loop.call_later(there_s + place.delay_s(), _fail, done, CommitUnknown("the answer to COMMIT is lost"))
        else:
            if there_s > SLOW_S:
                process.unwell(2 * there_s)
            place.scheduler.later(there_s, self._commits, operations, writer, seq, done, True)
        try:
            await done
        except CommitUnknown as error:
            self._poison = StorePoisoned("a commit failed; open the database anew")
            process.world.happened(process.name, "commit unknown", place.database.name)
            raise error from None
        self._seq += 1

    def _commits(
        self, operations: Operations, writer: WriterRow, seq: int, done: asyncio.Future[None] | None, arrives: bool
    ) -> None:
        """It has come to the database; what a dead process sent may have, too."""
        place, process = self._place, self._process
        if not arrives or (process.is_dead and place.chance(0.5)):
            return
        error: Exception | None = None
        if place.scheduler.now < place.faults.away_until:
            error = StoreUnavailable("the database does not answer")
        else:
            try:
                place.database.commit(operations, writer, seq)
            except (Conflict, StoreError) as refused:
                error = refused
        if done is not None and not process.is_dead:
            back_s = place.delay_s()
            if back_s > SLOW_S or error is not None:
                process.unwell(2 * back_s)
            self._loop.call_later(back_s, *((_resolve, done, None) if error is None else (_fail, done, error)))

    # Batches.

    async def open(self) -> None:
        """Connect."""
        await self._begin_writer()

    async def _begin_writer(self) -> None:
        def begin(database: Database) -> tuple[WriterRow, Instant, Instant]:
            return database.new_writer(), database.clock(), database.at

        before_ns = self._process.machine.steady_ns()
        self._writer, at, last = await self._trip(begin)
        self._seq = 0
        self._heard(at, last, before_ns)
        self._time.reach(last)

    def _heard(self, at: Instant, last: Instant, before_ns: int) -> None:
        """What a look at the database says about time: on one machine, when it was written last; else, its own time."""
        if self._database_clock is not None:
            self._database_clock.measured(at, before_ns)
        else:
            self._time.reach(last)

    def transact(self, command: Command) -> asyncio.Future[Any]:
        """See ``Store.transact``."""
        done = self._loop.create_future()
        self._add((command, done))
        return done

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``."""
        self._add((command, then))

    def _add(self, job: Job) -> None:
        self._refuse_if_unsure()
        if self._is_closed:
            raise StoreUnavailable("the store is closed", code="store_closed")
        self._waiting.add(job, job[0].admission)
        self._arrived.set()
        if self._task is None:
            self._task = self._loop.create_task(self._drain(), context=Context())

    def _refuse_if_unsure(self) -> None:
        if self._poison is not None:
            raise StorePoisoned(str(self._poison))

    async def _drain(self) -> None:
        try:
            while self._waiting.size:
                if jobs := self._waiting.take():
                    tell(jobs, await self._flush([command for command, _done in jobs]))
                    self._waiting.asked()
                began = self._loop.time()
                if bite := self._waiting.take_bite():
                    tell(bite, await self._flush([command for command, _done in bite]))
                    self._waiting.bitten(began)
                elif not jobs:
                    self._arrived.clear()
                    self._loop.call_later(max(self._waiting.rest_s(), 0.001), self._arrived.set)
                    await self._arrived.wait()
        finally:
            self._task = None

    async def _flush(self, commands: Sequence[Command]) -> list[Outcome]:
        """All at once; what keeps meeting others is done one half after the other."""
        error: Exception = StoreUnavailable("others hold it", code="store_busy")
        for _try in range(TRIES):
            try:
                return await self._attempt(commands)
            except Taken:
                error = ConstraintViolation("another record holds the key")
            except Conflict:
                continue
            except StoreError as failed:
                return [Failure(_for_a_caller(failed)) for _command in commands]
        if len(commands) == 1:
            return [Failure(error)]
        half = len(commands) // 2
        return [*await self._flush(commands[:half]), *await self._flush(commands[half:])]

    async def _attempt(self, commands: Sequence[Command]) -> list[Outcome]:
        self._refuse_if_unsure()
        keys = [key for command in commands for key in command.keys]
        before_ns = self._process.machine.steady_ns()
        slots, at, last = await self._trip(lambda database: (database.load(keys), database.clock(), database.at))
        self._heard(at, last, before_ns)
        check = self._place.database.check_entry
        snapshot = Snapshot(slots, check=check, takes_statements=self.takes_statements)
        applied = apply(snapshot, commands, self._time.now())
        if not applied.operations.is_empty:
            applied.operations.at = max(applied.operations.at, self._time.now())
            await self._sent(applied.operations)
            self._time.reach(applied.operations.at)
        return applied.answers

    async def reopen(self) -> None:
        """See ``Store.reopen``. What is still on its way finds its writer's row closed."""
        broken = self._poison
        async with self._reopening:
            if self._poison is not broken or broken is None:
                return

            writer = self._writer
            await self._trip(lambda database: database.close_writer(writer))
            await self._begin_writer()
            self._poison = None

    async def close(self) -> None:
        """See ``Store.close``."""
        self._waiting.is_closing = True
        self._arrived.set()
        while self._task is not None:
            await asyncio.wait([self._task])
        self._is_closed = True

    # Looking.

    def load(self) -> Load:
        """See ``Store.load``."""
        return Load(waiting=self._waiting.size)

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._time.now()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._time.wall_ahead_ms()

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``."""
        self._refuse_if_unsure()
        return await self._trip(lambda database: database.read(keys))

    async def news_of(self, correlation_id: str, longest_s: float) -> None:
        """See ``Heralds.news_of``."""
        told, waiting = self._loop.create_future(), self._place.waiting.setdefault(correlation_id, [])
        mine = self._process, told
        waiting.append(mine)
        timer = self._loop.call_later(longest_s, _resolve, told, None)
        try:
            await told
        finally:
            timer.cancel()
            if mine in waiting:
                waiting.remove(mine)

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``."""
        return await self._trip(lambda database: database.due(kind, before, limit))

    async def owners_of(self, kind: str, /) -> Sequence[str]:
        """See ``Store.owners_of``."""
        return await self._trip(lambda database: database.owners_of(kind)) if self._place.is_local else ()

    async def owned(self, kind: str, owner: str, limit: int, /) -> Sequence[Key]:
        """See ``Store.owned``."""
        return await self._trip(lambda database: database.owned(kind, owner, limit))

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        return await self._trip(lambda database: database.unseal(key, part))

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``LedgerQuestions.changes``."""
        return await self._trip(lambda database: [database.entries[id_] for id_ in list(database.unsynced)[:limit]])

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``LedgerQuestions.purgeable``."""
        return await self._trip(lambda database: database.outlived(before, limit))

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``LedgerQuestions.entries``."""
        return await self._trip(lambda database: database.ask(question))

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``LedgerQuestions.history``."""
        return await self._trip(lambda database: database.history(key))

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """See ``LedgerQuestions.journal``."""
        return await self._trip(lambda database: database.journal(after, limit))

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the journal after this line."""
        return await self._trip(lambda database: [link for link in database.links if link.id > after][:limit])

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``ObligationQuestions.obligations``."""
        return await self._trip(lambda database: database.obligations(wanted))

    async def reserved(self) -> int:
        """See ``ObligationQuestions.reserved``."""
        return await self._trip(lambda database: sum(one.due_at is not None for one in database.of("obligation")))

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """See ``ObligationQuestions.settled``."""
        return await self._trip(lambda database: database.settled(before, limit))

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``ObligationQuestions.tally``."""
        return await self._trip(lambda database: database.tally(since))

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Maintenance.synced``."""
        await self.transact(MakeChange(Change(answer=None, synced=(Synced(entries, at),))))

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """See ``Maintenance.get_or_set_meta``."""
        return await self._trip(lambda database: database.meta.setdefault(name, value))

    async def set_meta(self, name: str, value: str) -> None:
        """See ``Maintenance.set_meta``."""
        await self._trip(lambda database: database.meta.update({name: value}))

    async def reassign_ledger_id(self, issued: str) -> None:
        """See ``Maintenance.reassign_ledger_id``."""
        await self._trip(lambda database: database.restamp(issued, self.now()))

    async def prove(self) -> None:
        """See ``Store.prove``."""
        await self._trip(lambda _database: None)


def ended_in(operations: Operations) -> list[str]:
    """Intents that a change has brought to their end."""
    return [event.subject for _slot, event in operations.lines if event.kind == INTENT and event.after in SETTLED]


def tell(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """Answer everybody, in the order of the changes."""
    for (_command, done), outcome in zip(jobs, outcomes, strict=True):
        error = outcome.error if isinstance(outcome, Failure) else None
        if callable(done):
            done(None if error else outcome, error)
        elif not done.done():
            if error is None:
                done.set_result(outcome)
            else:
                done.set_exception(error)


def _for_a_caller(error: Exception) -> Exception:
    return type(error)(str(error), code=error.code) if isinstance(error, StoreError) else error


def _resolve(done: asyncio.Future[Any], answer: Any) -> None:
    if not done.done():
        done.set_result(answer)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
