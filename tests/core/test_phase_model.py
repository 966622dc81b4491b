"""The phase machine against its model: Hypothesis looks for the shortest quarrel, a seeded walk covers the ground."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.core.phase_model import World, policies
from tests.core.profile import STATEFUL, WALK_STEPS
from tests.core.recording import reachable, recording
from twophp.core import phase
from twophp.core.intent import Mode, Phase
from twophp.core.intent_commands import Command, Confirm, Register, Renew, Settle, Tick
from twophp.core.machine import Cell, Refuse, Replay
from twophp.core.phase import Signal

NAMES = ("c1", "c2", "c3")
POLICIES = policies()
MODES = (Mode.STANDARD, Mode.STANDARD, Mode.ASYNC, Mode.AUTO_CONFIRM, Mode.TRANSPARENT)
WISHES = (None, None, 1, 40, 250, 10**6, 0)
LAGS = (
    0,
    0,
    1,
    19,
    20,
    21,
    100,
)  # How long a request stood in the server's queue, the grace and its neighbours included.
FENCES = (-1, 0, 0, 0, 1)  # Relative to the newest: the old owner, the holder, one that was never given.
JUMPS = (0, 1, 5, 20, 60, 100, 500)


class Choices:
    """How a step's details are chosen; a walk and Hypothesis each bring their own ``pick``."""

    def __init__(self, world: World, pick: Any) -> None:
        self.world, self.pick = world, pick

    def register(self, name: str) -> Register:
        pick, call = self.pick, self.world.calls.get(name)
        return Register(
            client_correlation_id=name,
            server_correlation_id=f"s-{name}-{self.world.steps}",
            principal="alice",
            replay_key=pick(("this", "this", "this", "that")),
            mode=pick(MODES),
            service_endpoint="orders/orders",
            path="/orders",
            arrived_at=self.world.now - pick(LAGS),
            requested_ttl_ms=pick(WISHES),
            callback=pick(("", "", "", "elsewhere")),
            owner="w1",
            follows=pick(("", call.server_id if call is not None else "")),
        )

    def confirm(self, name: str) -> Confirm:
        pick = self.pick
        return Confirm(
            client_correlation_id=pick((name, name, name, name, "nobody")),
            server_correlation_id="s",
            principal=pick(("alice", "alice", "alice", "alice", "eve")),
            path=pick(("/orders", "/orders", "/orders", "/orders", "/refunds")),
            arrived_at=self.world.now - pick(LAGS),
            owner=pick(("w1", "w2")),
            guard_passed=pick((True, False)),
        )

    def worker(self, name: str) -> Settle | Renew:
        call = self.world.calls.get(name)
        fence = (call.fence if call else 1) + self.pick(FENCES)
        if self.pick((True, False, False)):
            return Renew(fence=fence)
        outcome = self.pick(("COMMITTED", "COMMITTED", "FAILED", "indeterminate"))
        succeeded = outcome == "COMMITTED"
        indeterminate = outcome == "indeterminate"
        status = 200 if succeeded else 500 if indeterminate else self.pick((307, 500))
        return Settle(fence=fence, succeeded=succeeded, status=status, indeterminate=indeterminate)

    def command(self, name: str) -> Command:
        kind = self.pick(("register", "confirm", "confirm", "worker", "worker", "attend", "attend"))
        command: Command = getattr(self, kind)(name)
        return command

    def attend(self, _name: str) -> Tick:
        """The sweeper knows no owner's state, or that one owner is dead, or that one lives."""
        dead, live = self.pick(((None, None), (None, None), ("w1", None), (None, "w1"), ("w2", "w1"), (None, "w9")))
        return Tick(owner="w9", dead_owner=dead, live_owner=live)

    def instant(self, name: str) -> int:
        """A later time: a plain jump, or right before, at or right after the next thing that is due."""
        call = self.world.calls.get(name)
        aims = [self.world.now + self.pick(JUMPS)]
        if call is not None and call.due_at is not None:
            aims += [call.due_at + self.pick((-1, 0, 1)), call.deadline + self.pick((-1, 0)), call.end_of_grace]
        aim: int = self.pick(tuple(aims))
        return max(self.world.now, aim)

    def do(self, name: str, *commands: Command) -> None:
        for command in commands:
            self.world.do(name, command, self.pick(POLICIES))


class PhaseMachine(RuleBasedStateMachine):
    """The world under Hypothesis."""

    steps_taken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def choices(self, data: st.DataObject) -> Choices:
        return Choices(self.world, lambda options: data.draw(st.sampled_from(options)))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def something(self, name: str, data: st.DataObject) -> None:
        choices = self.choices(data)
        choices.do(name, choices.command(name))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def time_passes(self, name: str, data: st.DataObject) -> None:
        self.world.now = self.choices(data).instant(name)

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def confirm_races_the_sweeper(self, name: str, data: st.DataObject) -> None:
        choices = self.choices(data)
        racers = [choices.confirm(name), Tick(owner="w9")]
        choices.do(name, *(racers if data.draw(st.booleans()) else reversed(racers)))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def two_confirms(self, name: str, data: st.DataObject) -> None:
        choices = self.choices(data)
        choices.do(name, choices.confirm(name), choices.confirm(name))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def recovery_races_the_old_owner(self, name: str, data: st.DataObject) -> None:
        choices = self.choices(data)
        racers = [choices.worker(name), choices.attend(name)]
        choices.do(name, *(racers if data.draw(st.booleans()) else reversed(racers)))

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert all(call.runs <= 1 for call in self.world.calls.values())

    def teardown(self) -> None:
        type(self).steps_taken += self.world.steps


@pytest.mark.req("P-6-g", "A-20", "A-22", "A-27", "A-30", "A-32")
def test_hypothesis_finds_no_quarrel_between_machine_and_model() -> None:
    PhaseMachine.steps_taken = 0
    run_state_machine_as_test(PhaseMachine, settings=STATEFUL)
    assert PhaseMachine.steps_taken > 3_000


@pytest.mark.req("P-2-c", "P-6-g", "A-20", "A-22", "A-26", "A-27", "A-30", "A-32")
def test_a_long_walk_agrees_with_the_model_and_reaches_every_cell() -> None:
    source = random.Random(2)  # noqa: S311 - A walk must be the same every time.
    with recording(phase) as reached:
        assert walk_far(source.choice) >= WALK_STEPS
    assert reached == reachable(phase)  # Each cell that is possible, and none that is marked Never.


def walk(world: World, pick: Any) -> int:
    """A thousand steps through one world."""
    choices = Choices(world, pick)
    while world.steps < 1_000:
        name = pick(NAMES)
        choices.do(name, choices.command(name))
        if pick((True, False, False)):
            world.now = choices.instant(name)
    return world.steps


def walk_far(pick: Any) -> int:
    """Through as many worlds as it takes, and how many steps that were."""
    steps = 0
    while steps < WALK_STEPS:
        steps += walk(World(), pick)
    return steps


def mutants() -> list[tuple[str, str]]:
    return sorted(reachable(phase))


@pytest.mark.parametrize(("state", "signal"), mutants())
def test_the_model_notices_any_cell_that_says_something_else(state: str, signal: str) -> None:
    """A model that agreed with a wrong table would show nothing."""
    source = random.Random(3)  # noqa: S311
    row = phase.TABLE[Phase(state)]
    wrong: Cell = Refuse("wrong") if not isinstance(row[Signal(signal)], Refuse) else Replay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(row, Signal(signal), wrong)
        with pytest.raises(AssertionError):
            walk_far(source.choice)
