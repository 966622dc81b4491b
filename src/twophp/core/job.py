"""The job machine: every rule about work that is owed to others outside the store, and nothing else.

Theory. Work that a transition owes to others (the acknowledgement of a callback, a compensation hook, the effect of a
committed obligation) becomes durable in the same change as the transition, as a *job*. A job is delivered in attempts,
and the process may die in any of them. Three things follow.

* An attempt has a lease. A RUNNING job is due at the lease's end: the next visit of the outbox takes it over, so an
  attempt that has no recorded end is made again. Delivery is at least once; the receiver drops repeats by the job's id
  (A-39).
* ``attempts`` is the fence as well. A failure counts only from the attempt that runs now. A success counts from any
  attempt and in any state, because a delivery cannot be undone.
* A job whose maker begins the first attempt at once is RUNNING from the start (A-38). The request that waits for the
  attempt to begin then pays for no second flush.

Only the number of attempts ends a job, no deadline: a job that a crash delayed is delivered later, as a past fact.

    maker     ENQUEUE, ENQUEUE_STARTED
    time      START, TAKE_OVER, EXHAUST, FORGET, IDLE
    attempt   DELIVER, FAIL, FAIL_LAST, STALE
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.machine import Cell, Goto, Ignore, Never, Replay
from twophp.core.policy import DAY_MS, SECOND_MS
from twophp.core.records import Instant, JournalEvent, Key
from twophp.core.settings import SettingsStruct, check_kinds

JOB: Final = "job"
BY_JOB_ID: Final = "job.job_id"

LEASE_EXPIRED: Final = "lease_expired"
"""The error of an attempt whose end nobody recorded: its process is gone."""

Work: TypeAlias = Literal["callback", "hook", "effect", "release"]


class State(StrEnum):
    """What is still to be done about a job."""

    ABSENT = "ABSENT"
    PENDING = "PENDING"  # An attempt is to be made at ``due_at``.
    RUNNING = "RUNNING"  # An attempt is being made; its lease ends at ``due_at``.
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"  # The last attempt failed. Kept for a while, with its payload, for operators.

    __hash__ = str.__hash__


class Signal(StrEnum):
    """What a command amounts to, once its guards have been weighed."""

    ENQUEUE = "ENQUEUE"  # Made, for the outbox's next visit.
    ENQUEUE_STARTED = "ENQUEUE_STARTED"  # Made by a process that begins the first attempt as soon as it is durable.
    START = "START"  # Its time has come.
    TAKE_OVER = "TAKE_OVER"  # The lease of an attempt ran out, and there are attempts left.
    EXHAUST = "EXHAUST"  # The lease of the last attempt ran out.
    FORGET = "FORGET"  # It was kept long enough.
    IDLE = "IDLE"  # Looked at, and nothing was due.
    DELIVER = "DELIVER"  # An attempt succeeded, whichever it was.
    FAIL = "FAIL"  # The running attempt failed, and there are attempts left.
    FAIL_LAST = "FAIL_LAST"  # The running attempt failed, and it was the last.
    STALE = "STALE"  # An attempt failed that is not the running one.

    __hash__ = str.__hash__


_S, _J = Signal, State
_REPLAY, _IGNORE = Replay(), Ignore()
_DELIVERED: Final = Goto((_J.DELIVERED,))


def _never(why: str, *signals: Signal) -> dict[Signal, Cell]:
    return dict.fromkeys(signals, Never(why))


_ENQUEUED_AGAIN: Final[dict[Signal, Cell]] = dict.fromkeys((_S.ENQUEUE, _S.ENQUEUE_STARTED), _REPLAY)  # One job per id.
_NOT_RUNNING: Final = _never("only a running attempt has a lease or an end", _S.TAKE_OVER, _S.EXHAUST) | _never(
    "only a running attempt can fail; the guards call any other stale", _S.FAIL, _S.FAIL_LAST
)

TABLE: Final[dict[State, dict[Signal, Cell]]] = {
    _J.ABSENT: {
        _S.ENQUEUE: Goto((_J.PENDING,)),
        _S.ENQUEUE_STARTED: Goto((_J.RUNNING,)),
        _S.IDLE: _IGNORE,
        _S.DELIVER: _IGNORE,  # It was forgotten during the attempt.
        _S.STALE: _IGNORE,
        **_NOT_RUNNING,
        **_never("there is no time", _S.START, _S.FORGET),
    },
    _J.PENDING: {
        **_ENQUEUED_AGAIN,
        **_NOT_RUNNING,
        _S.START: Goto((_J.RUNNING,)),
        _S.IDLE: _IGNORE,
        _S.DELIVER: _DELIVERED,  # By an attempt that was counted as failed too early.
        _S.STALE: _IGNORE,
        **_never("it is still owed", _S.FORGET),
    },
    _J.RUNNING: {
        **_ENQUEUED_AGAIN,
        _S.TAKE_OVER: Goto((_J.RUNNING,), "taken_over"),
        _S.EXHAUST: Goto((_J.DEAD,)),
        _S.IDLE: _IGNORE,
        _S.DELIVER: _DELIVERED,
        _S.FAIL: Goto((_J.PENDING,), "attempt_failed"),
        _S.FAIL_LAST: Goto((_J.DEAD,)),
        _S.STALE: _IGNORE,
        **_never("it is started already", _S.START),
        **_never("it is still owed", _S.FORGET),
    },
    _J.DELIVERED: {
        **_ENQUEUED_AGAIN,
        **_NOT_RUNNING,
        _S.FORGET: Goto((_J.ABSENT,), "forgotten"),
        _S.IDLE: _IGNORE,
        _S.DELIVER: _REPLAY,
        _S.STALE: _IGNORE,
        **_never("there is nothing left to do", _S.START),
    },
    _J.DEAD: {
        **_ENQUEUED_AGAIN,
        **_NOT_RUNNING,
        _S.FORGET: Goto((_J.ABSENT,), "forgotten"),
        _S.IDLE: _IGNORE,
        _S.DELIVER: _DELIVERED,
        _S.STALE: _IGNORE,
        **_never("there are no attempts left", _S.START),
    },
}


class Tries(SettingsStruct, frozen=True, kw_only=True):
    """The number, length and spacing of attempts. By default five attempts that end within ten minutes (A-39)."""

    bad_code: ClassVar[str] = "bad_tries"

    attempts: int = 5
    first_delay_ms: int = 5 * SECOND_MS
    factor: int = 4
    attempt_ms: int = 25 * SECOND_MS  # An attempt is cut off here ...
    lease_ms: int = 30 * SECOND_MS  # ... and counts as dead from here on.
    delivered_kept_ms: int = DAY_MS
    dead_kept_ms: int = 7 * DAY_MS

    def __post_init__(self) -> None:
        check_kinds(self, ((self.__struct_fields__, (int,), "a whole number"),), self.bad_code)
        if min(self.attempts, self.first_delay_ms, self.factor, self.attempt_ms) < 1:
            raise ConfigError("attempts, delays and times of a job must be positive", code="bad_tries")
        if self.lease_ms <= self.attempt_ms:  # Else a second attempt begins while the first still runs.
            raise ConfigError("lease_ms must be above attempt_ms", code="bad_tries")

    def delay_ms(self, failed: int, jitter: float) -> int:
        """How long to wait after so many failures. ``jitter`` in 0..1 spreads it over the upper half of the wait."""
        assert 0 <= jitter <= 1
        longest = self.first_delay_ms * int(self.factor ** (failed - 1))
        return longest // 2 + round(longest / 2 * jitter)

    @property
    def within_ms(self) -> int:
        """The time after which the last attempt has ended, if a process is always there to make the attempts."""
        waits = sum(self.delay_ms(failed, 1.0) for failed in range(1, self.attempts))
        return waits + self.attempts * self.lease_ms


DEFAULT_TRIES: Final = Tries()


class Job(msgspec.Struct, frozen=True, gc=False):
    """One piece of owed work. Fields stand in the order of the store's columns."""

    job_id: str  # Derived from the work and its subject, so the same work is never owed twice.
    work: Work
    subject: str  # Id of the intent or the obligation whose transition made it.
    name: str  # Of the hook, or the obligation's flow; empty for a callback.
    created_at: Instant
    # The fields below change; those above never do.
    state: State = State.ABSENT
    version: int = 0
    attempts: int = 0  # Begun so far, and the fence of the one that runs.
    due_at: Instant | None = None
    last_error: str = ""  # A code, never a text: texts may quote what must not be quoted.

    def keys(self) -> tuple[Key, ...]:
        """Found by its id alone."""
        return (by_job_id(self.job_id),)


def by_job_id(job_id: str) -> Key:
    """The key of a job."""
    return Key(BY_JOB_ID, (job_id,))


class Enqueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make a job. ``started``: the maker begins the first attempt itself, as soon as this is durable."""

    job_id: str
    work: Work
    subject: str
    name: str = ""
    started: bool = False


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The outbox's visit: do what is due. If the job is RUNNING and changed, the visitor has to deliver."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt succeeded."""

    attempt: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt failed, with the code of its error."""

    attempt: int
    error: str


Command: TypeAlias = Enqueue | Tick | Delivered | Failed


class JobDecision(msgspec.Struct, frozen=True, gc=False):
    """What ``decide`` found: the verdict, the job as it is to be stored, and the history to write with it."""

    verdict: Cell
    job: Job | None
    steps: tuple[JournalEvent, ...] = ()
    changed: bool = False

    @property
    def begins_attempt(self) -> bool:
        """Whether the caller of ``decide`` now holds the lease and has to deliver."""
        return self.changed and self.job is not None and self.job.state is State.RUNNING


def decide(
    job: Job | None, command: Command, now: Instant, tries: Tries = DEFAULT_TRIES, *, jitter: float = 1.0
) -> JobDecision:
    """What ``command`` means for ``job`` at ``now``. Pure: the jitter of a retry is drawn by the caller."""
    state = State.ABSENT if job is None else job.state
    cell = TABLE[state][_signal_of(job, command, now, tries)]
    assert type(cell) is not Never, cell.why
    if type(cell) is not Goto:
        return JobDecision(cell, job)
    if job is None:
        assert isinstance(command, Enqueue)
        job = Job(command.job_id, command.work, command.subject, command.name, now)
    after = State(cell.path[-1])
    news = _news(job, after, command, now, tries, jitter)
    changed = msgspec.structs.replace(job, state=after, version=job.version + 1, **news)
    return JobDecision(cell, changed, (_step(changed, cell, state, now),), changed=True)


def _signal_of(job: Job | None, command: Command, now: Instant, tries: Tries) -> Signal:
    match command:
        case Enqueue():
            return Signal.ENQUEUE_STARTED if command.started else Signal.ENQUEUE
        case Delivered():
            return Signal.DELIVER
        case Failed():
            return _signal_of_failure(job, command, tries)
    return _signal_of_attend(job, now, tries)


def _signal_of_failure(job: Job | None, command: Failed, tries: Tries) -> Signal:
    if job is None or job.state is not State.RUNNING or job.attempts != command.attempt:
        return Signal.STALE
    return Signal.FAIL if job.attempts < tries.attempts else Signal.FAIL_LAST


def _signal_of_attend(job: Job | None, now: Instant, tries: Tries) -> Signal:
    if job is None or job.due_at is None or now < job.due_at:
        return Signal.IDLE
    if job.state is State.PENDING:
        return Signal.START
    if job.state is State.RUNNING:
        return Signal.TAKE_OVER if job.attempts < tries.attempts else Signal.EXHAUST
    return Signal.FORGET


def _news(job: Job, after: State, command: Command, now: Instant, tries: Tries, jitter: float) -> dict[str, Any]:
    """The fields that entering a state changes, beside the state."""
    error = command.error if isinstance(command, Failed) else LEASE_EXPIRED
    match after:
        case State.RUNNING:
            news = {"attempts": job.attempts + 1, "due_at": now + tries.lease_ms}
            return news | {"last_error": LEASE_EXPIRED} if job.state is State.RUNNING else news
        case State.PENDING if job.attempts:
            return {"last_error": error, "due_at": now + tries.delay_ms(job.attempts, jitter)}
        case State.PENDING:
            return {"due_at": now}
        case State.DELIVERED:
            return {"last_error": "", "due_at": now + tries.delivered_kept_ms}
        case State.DEAD:
            return {"last_error": error, "due_at": now + tries.dead_kept_ms}
    return {"due_at": None}


def _step(job: Job, goto: Goto, before: State, now: Instant) -> JournalEvent:
    event = goto.event or job.state.value
    return JournalEvent(
        JOB, job.job_id, event, before.value, job.state.value, now, now, job.attempts, detail=job.last_error
    )
