"""A model of the outbox, written from its prose: debts, workers who may die, and receivers who count.

The model has no table: a debt knows how many attempts were begun, whether one was received, and when the lease of the
running one ends. ``World`` plays the surroundings and compares after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twophp.core.job import Delivered, Enqueue, Failed, Job, JobDecision, State, Tick, Tries, decide
from twophp.core.machine import Goto, Ignore, Replay
from twophp.core.records import JournalEvent

GO, SAME, NOTHING = "go", "replay", "nothing"
TRIES = Tries(attempts=3, first_delay_ms=10, factor=2, attempt_ms=5, lease_ms=7, delivered_kept_ms=40, dead_kept_ms=60)


@dataclass
class Debt:
    """One piece of owed work."""

    until: int  # When the next visit is due.
    tries: int = 0
    out: bool = False  # An attempt runs.
    arrived: bool = False
    given_up: bool = False

    @property
    def state(self) -> str:
        if self.arrived:
            return "DELIVERED"
        return "DEAD" if self.given_up else "RUNNING" if self.out else "PENDING"

    def set_out(self, now: int) -> str:
        self.tries, self.out, self.until = self.tries + 1, True, now + TRIES.lease_ms
        return GO

    def give_up(self, now: int) -> str:
        self.out, self.given_up, self.until = False, True, now + TRIES.dead_kept_ms
        return GO

    def arrive(self, now: int) -> str:
        if self.arrived:
            return SAME
        self.arrived, self.until = True, now + TRIES.delivered_kept_ms
        return GO

    def come_back(self, attempt: int, now: int, jitter: float) -> str:
        """An attempt reports its failure. Only the running one counts."""
        if self.arrived or not self.out or attempt != self.tries:
            return NOTHING
        if self.tries == TRIES.attempts:
            return self.give_up(now)
        longest = 10 * 2 ** (self.tries - 1)
        self.out, self.until = False, now + longest // 2 + round(longest / 2 * jitter)
        return GO


@dataclass
class World:
    """Jobs, attempts under way and history around the machine; debts beside it."""

    now: int = 1_000
    steps: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    debts: dict[str, Debt] = field(default_factory=dict)
    under_way: list[tuple[str, int]] = field(default_factory=list)  # Attempts that may still speak.
    begun: dict[str, int] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    log: list[JournalEvent] = field(default_factory=list)

    def enqueue(self, name: str, *, started: bool) -> None:
        command = Enqueue(job_id=name, work="callback", subject=name, started=started)
        word = SAME
        if name not in self.debts:
            debt = self.debts[name] = Debt(self.now)
            word = debt.set_out(self.now) if started else GO
        self._take(name, decide(self.jobs.get(name), command, self.now, TRIES), word)

    def attend(self, name: str) -> None:
        decision = decide(self.jobs.get(name), Tick(), self.now, TRIES)
        self._take(name, decision, self._time_for(name))

    def deliver(self, name: str, attempt: int) -> None:
        decision = decide(self.jobs.get(name), Delivered(attempt=attempt), self.now, TRIES)
        debt = self.debts.get(name)
        if debt:
            self.received.add(name)
        self._take(name, decision, debt.arrive(self.now) if debt else NOTHING)

    def fail(self, name: str, attempt: int, jitter: float) -> None:
        command = Failed(attempt=attempt, error="timeout")
        decision = decide(self.jobs.get(name), command, self.now, TRIES, jitter=jitter)
        debt = self.debts.get(name)
        self._take(name, decision, debt.come_back(attempt, self.now, jitter) if debt else NOTHING)

    def _time_for(self, name: str) -> str:
        debt = self.debts.get(name)
        if debt is None or self.now < debt.until:
            return NOTHING
        if debt.arrived or debt.given_up:
            del self.debts[name]
            self.received.discard(name)
            return GO
        return debt.give_up(self.now) if debt.tries == TRIES.attempts else debt.set_out(self.now)

    def _take(self, name: str, decision: JobDecision, word: str) -> None:
        self.steps += 1
        assert {Goto: GO, Replay: SAME, Ignore: NOTHING}[type(decision.verdict)] == word, decision
        assert decision.changed == (word == GO) == bool(decision.steps)
        self.log.extend(decision.steps)
        if decision.changed:
            self._store(name, decision)
        self._compare()

    def _store(self, name: str, decision: JobDecision) -> None:
        job, before = decision.job, self.jobs.get(name)
        assert job is not None
        assert job.version == (before.version if before else 0) + 1
        if job.state is State.ABSENT:
            del self.jobs[name], self.begun[name]
            return
        self.jobs[name] = job
        self.begun[name] = self.begun.get(name, 0) + decision.begins_attempt
        if decision.begins_attempt:
            self.under_way.append((name, job.attempts))

    def _compare(self) -> None:
        assert self.jobs.keys() == self.debts.keys()
        for name, debt in self.debts.items():
            job = self.jobs[name]
            assert (job.state.value, job.attempts, job.due_at) == (debt.state, debt.tries, debt.until)
            assert self.begun[name] == job.attempts <= TRIES.attempts
            assert (job.state is State.DELIVERED) == (name in self.received)


def history_tells_all(world: World) -> None:
    """The journal alone reproduces every state."""
    states: dict[str, str] = {}
    for event in world.log:
        assert states.get(event.subject, "ABSENT") == event.before
        states[event.subject] = event.after
    alive = {name: state for name, state in states.items() if state != "ABSENT"}
    assert alive == {name: job.state.value for name, job in world.jobs.items()}


def ends(world: World) -> None:
    """If every due job is visited, every job comes to its end and is forgotten."""
    for _ in range(100):
        if not world.jobs:
            return
        world.now = max(world.now, min(job.due_at for job in world.jobs.values() if job.due_at is not None))
        for name in list(world.jobs):
            world.attend(name)
    raise AssertionError("a job that never ends")
