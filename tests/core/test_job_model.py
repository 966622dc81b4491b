"""The job machine against its model."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.core import job_model as model
from tests.core.job_model import World
from tests.core.profile import STATEFUL, WALK_STEPS
from tests.core.recording import reachable, recording
from twophp.core import job
from twophp.core.job import Signal, State
from twophp.core.machine import Cell, Ignore, Replay

PER_WORLD = 200


class Choices:
    """What to do next; ``pick`` is a walk's or Hypothesis's."""

    def __init__(self, world: World, pick: Any) -> None:
        self.world, self.pick = world, pick

    def enqueue(self) -> None:
        self.world.enqueue(self.pick(("a", "b", "c")), started=self.pick((False, True)))

    def attend(self) -> None:
        self.world.attend(self.pick(("a", "b", "c", "nobody")))

    def attempt(self) -> tuple[str, int]:
        """An attempt that may still report: also one that was taken over long ago, or one that was never made."""
        found: tuple[str, int] = self.pick((*self.world.under_way[-6:], ("nobody", 1)))
        return found

    def deliver(self) -> None:
        self.world.deliver(*self.attempt())

    def fail(self) -> None:
        self.world.fail(*self.attempt(), self.pick((0.0, 0.5, 1.0)))

    def time_passes(self) -> None:
        """A plain jump, or right before, at or right after the next thing is due."""
        world, aims = self.world, [self.world.now + self.pick((1, 5))]
        due = [found.due_at for found in world.jobs.values() if found.due_at is not None]
        if due:
            aims.append(min(due) + self.pick((-1, 0, 1)))
        world.now = max(world.now, self.pick(tuple(aims)))

    def anything(self) -> None:
        self.pick(
            (self.enqueue, self.attend, self.attend, self.attend, self.deliver, self.fail, self.fail, self.time_passes)
        )()


class JobMachine(RuleBasedStateMachine):
    """The world under Hypothesis."""

    steps_taken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        Choices(self.world, lambda options: data.draw(st.sampled_from(options))).anything()

    @rule()
    def history(self) -> None:
        model.history_tells_all(self.world)

    def teardown(self) -> None:
        type(self).steps_taken += self.world.steps
        model.ends(self.world)


@pytest.mark.req("A-38", "A-39")
def test_hypothesis_finds_no_quarrel_between_machine_and_model() -> None:
    JobMachine.steps_taken = 0
    run_state_machine_as_test(JobMachine, settings=STATEFUL)
    assert JobMachine.steps_taken > 1_000


def walk_far(pick: Any) -> int:
    steps = 0
    while steps < WALK_STEPS:
        world = World()
        choices = Choices(world, pick)
        while world.steps < PER_WORLD:
            choices.anything()
        model.history_tells_all(world)
        model.ends(world)
        steps += world.steps
    return steps


@pytest.mark.req("A-38", "A-39")
def test_a_long_walk_agrees_with_the_model_and_reaches_every_cell() -> None:
    source = random.Random(4)  # noqa: S311 - A walk must be the same every time.
    with recording(job) as reached:
        assert walk_far(source.choice) >= WALK_STEPS
    assert reached == reachable(job)


@pytest.mark.parametrize(("state", "signal"), sorted(reachable(job)))
def test_the_model_notices_any_cell_that_says_something_else(state: str, signal: str) -> None:
    source = random.Random(5)  # noqa: S311
    row = job.TABLE[State(state)]
    wrong: Cell = Ignore() if not isinstance(row[Signal(signal)], Ignore) else Replay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(row, Signal(signal), wrong)
        with pytest.raises(AssertionError):
            walk_far(source.choice)
