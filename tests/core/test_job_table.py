"""The job machine cell by cell, and the bounds of its waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from twophp.core.errors import ConfigError
from twophp.core.job import (
    DEFAULT_TRIES,
    JOB,
    TABLE,
    Command,
    Delivered,
    Enqueue,
    Failed,
    Job,
    JobDecision,
    Signal,
    State,
    Tick,
    Tries,
    by_job_id,
    decide,
)
from twophp.core.machine import Goto, Ignore, Replay, missing_cells

T0 = 5_000
ID = "s1/callback"
TRIES = Tries(attempts=2)
LEASE_END = T0 + TRIES.lease_ms
TEN_MINUTES_MS = 600_000


def enqueue(**changes: Any) -> Enqueue:
    return Enqueue(**({"job_id": ID, "work": "callback", "subject": "s1"} | changes))


def after(*commands: tuple[Command, int]) -> Job:
    """The job that these commands, each at its time, lead to."""
    job: Job | None = None
    for command, now in commands:
        job = decide(job, command, now, TRIES).job
    assert job is not None
    return job


def made(decision: JobDecision) -> Job:
    assert decision.job is not None
    return decision.job


PENDING = after((enqueue(), T0))
RUNNING = after((enqueue(started=True), T0))
AGAIN = after((enqueue(started=True), T0), (Tick(), LEASE_END))
DELIVERED = after((enqueue(started=True), T0), (Delivered(attempt=1), T0 + 1))
DEAD = after((enqueue(started=True), T0), (Tick(), LEASE_END), (Failed(attempt=2, error="timeout"), LEASE_END + 1))
ALL = [PENDING, RUNNING, AGAIN, DELIVERED, DEAD]


def test_the_table_is_total() -> None:
    assert missing_cells(TABLE, State, Signal) == []


def test_only_what_is_over_is_forgotten_and_a_delivered_job_is_never_owed_again() -> None:
    edges = {(state, cell.path[-1]) for state, row in TABLE.items() for cell in row.values() if isinstance(cell, Goto)}
    assert edges == {
        (State.ABSENT, State.PENDING),
        (State.ABSENT, State.RUNNING),
        (State.PENDING, State.RUNNING),
        (State.PENDING, State.DELIVERED),
        (State.RUNNING, State.RUNNING),
        (State.RUNNING, State.PENDING),
        (State.RUNNING, State.DELIVERED),
        (State.RUNNING, State.DEAD),
        (State.DELIVERED, State.ABSENT),
        (State.DEAD, State.DELIVERED),
        (State.DEAD, State.ABSENT),
    }


def test_a_job_is_made_due_at_once() -> None:
    decision = decide(None, enqueue(work="hook", name="release"), T0)
    assert made(decision) == Job(ID, "hook", "s1", "release", T0, State.PENDING, 1, 0, T0, "")
    assert made(decision).keys() == (by_job_id(ID),)
    (step,) = decision.steps
    assert (step.kind, step.subject, step.event, step.before, step.after) == (JOB, ID, "PENDING", "ABSENT", "PENDING")
    assert not decision.begins_attempt


@pytest.mark.req("A-38")
def test_a_job_whose_maker_starts_it_is_leased_from_the_beginning() -> None:
    decision = decide(None, enqueue(started=True), T0)
    assert made(decision) == Job(ID, "callback", "s1", "", T0, State.RUNNING, 1, 1, T0 + DEFAULT_TRIES.lease_ms, "")
    assert decision.begins_attempt


@pytest.mark.parametrize("found", ALL, ids=lambda job: job.state)
@pytest.mark.parametrize("started", [False, True])
def test_the_same_thing_is_owed_once(found: Job, started: bool) -> None:
    decision = decide(found, enqueue(started=started), T0 + 9, TRIES)
    assert (decision.verdict, decision.job, decision.changed) == (Replay(), found, False)
    assert not decision.begins_attempt


@pytest.mark.parametrize("found", [*ALL, None], ids=lambda job: getattr(job, "state", "ABSENT"))
def test_nothing_happens_before_its_time(found: Job | None) -> None:
    now = T0 - 1 if found is None or found.due_at is None else found.due_at - 1
    assert decide(found, Tick(), now, TRIES) == JobDecision(Ignore(), found)


def test_an_attempt_begins_with_its_lease() -> None:
    decision = decide(PENDING, Tick(), T0 + 7, TRIES)
    job = made(decision)
    assert (job.state, job.version, job.attempts, job.due_at) == (State.RUNNING, 2, 1, T0 + 7 + TRIES.lease_ms)
    assert decision.begins_attempt
    assert decision.steps[0].fence == 1


@pytest.mark.req("A-39")
def test_an_attempt_without_an_end_is_made_again_and_the_last_one_is_the_last() -> None:
    decision = decide(RUNNING, Tick(), LEASE_END, TRIES)
    job = made(decision)
    assert (job.state, job.attempts, job.last_error) == (State.RUNNING, 2, "lease_expired")
    assert (decision.begins_attempt, decision.steps[0].event) == (True, "taken_over")
    dead = decide(job, Tick(), LEASE_END + TRIES.lease_ms, TRIES)
    assert (made(dead).state, made(dead).last_error, dead.begins_attempt) == (State.DEAD, "lease_expired", False)


@pytest.mark.req("A-39")
def test_a_failure_is_tried_again_later_and_the_last_failure_is_the_end() -> None:
    failed = decide(RUNNING, Failed(attempt=1, error="status_503"), T0 + 3, TRIES, jitter=1.0)
    job = made(failed)
    assert (job.state, job.attempts, job.last_error) == (State.PENDING, 1, "status_503")
    assert job.due_at == T0 + 3 + TRIES.first_delay_ms
    assert (failed.steps[0].event, failed.steps[0].detail) == ("attempt_failed", "status_503")
    dead = made(decide(AGAIN, Failed(attempt=2, error="timeout"), LEASE_END + 3, TRIES))
    assert (dead.state, dead.last_error, dead.due_at) == (State.DEAD, "timeout", LEASE_END + 3 + TRIES.dead_kept_ms)


@pytest.mark.parametrize("found", [PENDING, AGAIN, DELIVERED, DEAD, None])
def test_the_failure_of_an_attempt_that_was_taken_over_means_nothing(found: Job | None) -> None:
    assert decide(found, Failed(attempt=1, error="timeout"), LEASE_END, TRIES) == JobDecision(Ignore(), found)


@pytest.mark.parametrize("found", [PENDING, RUNNING, AGAIN, DEAD], ids=lambda job: job.state)
def test_a_success_counts_from_any_attempt(found: Job) -> None:
    decision = decide(found, Delivered(attempt=1), LEASE_END + 9, TRIES)
    job = made(decision)
    assert (job.state, job.last_error) == (State.DELIVERED, "")
    assert job.due_at == LEASE_END + 9 + TRIES.delivered_kept_ms
    assert decide(job, Delivered(attempt=2), LEASE_END + 10, TRIES) == JobDecision(Replay(), job)
    assert decide(None, Delivered(attempt=1), LEASE_END, TRIES) == JobDecision(Ignore(), None)


@pytest.mark.parametrize("found", [DELIVERED, DEAD], ids=lambda job: job.state)
def test_what_is_over_is_forgotten_in_time(found: Job) -> None:
    assert found.due_at is not None
    decision = decide(found, Tick(), found.due_at, TRIES)
    assert (made(decision).state, made(decision).due_at) == (State.ABSENT, None)
    assert decision.steps[0].event == "forgotten"


@pytest.mark.req("A-39")
def test_by_default_five_attempts_end_within_ten_minutes() -> None:
    assert DEFAULT_TRIES.attempts == 5
    assert DEFAULT_TRIES.within_ms <= TEN_MINUTES_MS
    assert [DEFAULT_TRIES.delay_ms(failed, 1.0) for failed in (1, 2, 3, 4)] == [5_000, 20_000, 80_000, 320_000]


@pytest.mark.req("A-39")
@STEADY
@given(st.integers(1, 6), st.integers(1, 60_000), st.integers(1, 5), st.floats(0, 1))
def test_a_wait_lies_in_the_upper_half_and_grows(attempts: int, first_ms: int, factor: int, jitter: float) -> None:
    tries = Tries(attempts=attempts, first_delay_ms=first_ms, factor=factor)
    for failed in range(1, attempts):
        longest = first_ms * factor ** (failed - 1)
        assert longest // 2 <= tries.delay_ms(failed, jitter) <= longest
        assert tries.delay_ms(failed, jitter) <= tries.delay_ms(failed + 1, jitter)
        assert tries.delay_ms(failed, 0.0) <= tries.delay_ms(failed, jitter) <= tries.delay_ms(failed, 1.0)


@STEADY
@given(st.floats(0, 1), st.booleans())
def test_a_job_ends_in_time_at_every_failure(jitter: float, crashes: bool) -> None:
    """Each attempt fails at the end of its time, or its process dies and a visit comes when the lease ends."""
    job, now, begun = made(decide(None, enqueue(started=True), T0)), T0, 1
    while job.state is not State.DEAD:
        if crashes or job.state is State.PENDING:
            assert job.due_at is not None
            now = job.due_at
            decision = decide(job, Tick(), now)
            begun += decision.begins_attempt
        else:
            now += DEFAULT_TRIES.attempt_ms
            decision = decide(job, Failed(attempt=job.attempts, error="timeout"), now, jitter=jitter)
        job = made(decision)
    assert begun == job.attempts == DEFAULT_TRIES.attempts
    assert now - T0 <= DEFAULT_TRIES.within_ms


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"first_delay_ms": 0}, {"factor": 0}, {"lease_ms": 25_000}])
def test_tries_that_cannot_work_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Tries(**bad)
    assert refusal.value.code == "bad_tries"
