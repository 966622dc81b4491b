"""The obligation machine against its model, and the contract's six invariants as named properties."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.core import obligation_model as model
from tests.core.obligation_model import World
from tests.core.profile import STATEFUL, WALK_STEPS
from tests.core.recording import reachable, recording
from twophp.core import obligation
from twophp.core.machine import Cell, Refuse, Replay
from twophp.core.obligation import Reserve, Rollback, Signal, State

FLOWS = ("publish", "fencing")
KEYS = ("", "k1", "k1", "k2")
TIMEOUTS = (10, 30)
PER_WORLD = 100


class Choices:
    """What to do next; ``pick`` is a walk's or Hypothesis's."""

    def __init__(self, world: World, pick: Any) -> None:
        self.world, self.pick = world, pick

    def name(self) -> str:
        """The name of one of the last obligations, or of one that does not exist."""
        names = [*self.world.records][-8:]
        name: str = self.pick((*names, "nobody"))
        return name

    def reserve(self) -> None:
        pick, count = self.pick, len(self.world.records)
        number = count if pick((True, True, True, True, False)) else max(0, count - 1)  # Sometimes the last one again.
        facts = {"flow": pick(FLOWS), "key": pick(KEYS), "timeout_ms": pick(TIMEOUTS)}
        known = self.world.records.get(f"o{number}")
        if known is not None and pick((True, False)):  # The very same reserve, as after an unknown commit.
            facts |= {"flow": known.flow, "key": known.key}
        self.world.reserve(Reserve(obligation_id=f"o{number}", trace_id=f"t{number}", **facts))

    def commit(self) -> None:
        self.world.commit(self.name())

    def rollback(self) -> None:
        who, strict = self.pick(("caller", "guard")), self.pick((False, True))
        self.world.rollback(self.name(), Rollback(trace_id="t", resolution=who, strict=strict))

    def scan(self) -> None:
        self.world.scan(self.name())

    def scan_all(self) -> None:
        self.world.scan_all()

    def time_passes(self) -> None:
        """A plain jump, or right before, at or right after the next timeout."""
        world, aims = self.world, [self.world.now + self.pick((1, 5, 29))]
        due = [record.due_at for record in world.records.values() if record.due_at is not None]
        if due:
            aims.append(min(due) + self.pick((-1, 0, 1)))
        world.now = max(world.now, self.pick(tuple(aims)))

    def commit_races_the_scan(self) -> None:
        """Of two that come at the same instant, whichever is second sees what the first did."""
        name = self.name()
        racers: list[Callable[[str], str]] = [self.world.commit, self.world.scan]
        first, second = racers if self.pick((True, False)) else reversed(racers)
        words = (first(name), second(name))
        assert words.count(model.GO) <= 1

    def anything(self) -> None:
        self.pick(
            (
                self.reserve,
                self.reserve,
                self.commit,
                self.rollback,
                self.scan,
                self.time_passes,
                self.commit_races_the_scan,
            )
        )()


class ObligationMachine(RuleBasedStateMachine):
    """The world under Hypothesis."""

    steps_taken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        Choices(self.world, lambda options: data.draw(st.sampled_from(options))).anything()

    @rule()
    def full_scan(self) -> None:
        model.inv_obl_no_leak(self.world)

    @rule()
    def every_invariant(self) -> None:
        for check in INVARIANTS:
            check(self.world)

    def teardown(self) -> None:
        type(self).steps_taken += self.world.steps


INVARIANTS = (
    model.inv_obl_two_phase,
    model.inv_obl_no_leak,
    model.inv_obl_atomic_commit,
    model.inv_obl_rollback_safe,
    model.inv_obl_audit_complete,
    model.inv_obl_scan_periodic,
)


@pytest.mark.req("OBL-SM-1", "A-70", "A-73", "A-74", "A-75")
def test_hypothesis_finds_no_quarrel_between_machine_and_model() -> None:
    ObligationMachine.steps_taken = 0
    run_state_machine_as_test(ObligationMachine, settings=STATEFUL)
    assert ObligationMachine.steps_taken > 2_000


@pytest.mark.req("OBL-SM-1", "A-70", "A-73", "A-74", "A-75")
def test_a_long_walk_agrees_with_the_model_and_reaches_every_cell() -> None:
    source = random.Random(4)  # noqa: S311 - A walk must be the same every time.
    with recording(obligation) as reached:
        assert walk_far(source.choice) >= WALK_STEPS
    assert reached == reachable(obligation)


def walk(pick: Any) -> World:
    world = World()
    choices = Choices(world, pick)
    while world.steps < PER_WORLD:
        choices.anything()
    return world


def walk_far(pick: Any) -> int:
    steps = 0
    while steps < WALK_STEPS:
        steps += walk(pick).steps
    return steps


def check_on_walks(invariant: Callable[[World], None], seed: int) -> None:
    source = random.Random(seed)  # noqa: S311
    for _ in range(50):
        world = walk(source.choice)
        invariant(world)
        world.now += source.choice((0, 1, 29, 30, 31))
        invariant(world)


# The first, third and sixth are the tracker's to keep as well: here the machine does its part.


def test_INV_OBL_TWO_PHASE() -> None:  # noqa: N802 - The contract's own name.
    check_on_walks(model.inv_obl_two_phase, 11)


@pytest.mark.req("OBL-INV-2")
def test_INV_OBL_NO_LEAK() -> None:  # noqa: N802
    check_on_walks(model.inv_obl_no_leak, 12)


def test_INV_OBL_ATOMIC_COMMIT() -> None:  # noqa: N802
    check_on_walks(model.inv_obl_atomic_commit, 13)


@pytest.mark.req("OBL-INV-4")
def test_INV_OBL_ROLLBACK_SAFE() -> None:  # noqa: N802
    check_on_walks(model.inv_obl_rollback_safe, 14)


@pytest.mark.req("OBL-INV-5")
def test_INV_OBL_AUDIT_COMPLETE() -> None:  # noqa: N802
    check_on_walks(model.inv_obl_audit_complete, 15)


def test_INV_OBL_SCAN_PERIODIC() -> None:  # noqa: N802
    check_on_walks(model.inv_obl_scan_periodic, 16)


@pytest.mark.parametrize(("state", "signal"), sorted(reachable(obligation)))
def test_the_model_notices_any_cell_that_says_something_else(state: str, signal: str) -> None:
    source = random.Random(5)  # noqa: S311
    row = obligation.TABLE[State(state)]
    wrong: Cell = Refuse("wrong") if not isinstance(row[Signal(signal)], Refuse) else Replay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(row, Signal(signal), wrong)
        with pytest.raises(AssertionError):
            walk_far(source.choice)
