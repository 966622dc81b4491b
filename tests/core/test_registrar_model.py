"""The registrar against its model, and the forbidden fail-opens over all facts there can be."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.core.profile import STATEFUL, STEADY, WALK_STEPS
from tests.core.registrar_model import World
from tests.core.registrations import NONCE_ENDS_AT, REQUEST, STALE_AT, T0, asks, registered
from twophp.core import registrar
from twophp.core.errors import Refused
from twophp.core.registrar import RULES, Facts, decide
from twophp.core.registration import Nonce, RegistrationRequest, VerifyStatus

OWNERS = ("owner-1", "owner-1", "owner-2")
PER_WORLD = 100


class Choices:
    """What to do next; ``pick`` is a walk's or Hypothesis's."""

    def __init__(self, world: World, pick: Any) -> None:
        self.world, self.pick = world, pick

    def request(self) -> RegistrationRequest:
        pick, now = self.pick, self.world.now
        nonces = [*self.world.nonces][-4:]
        start, length = pick((0, 0, 0, -50, 5)), pick((1, 40, 100))
        return RegistrationRequest(
            protocol_version="RS/1",
            logical_request_key=pick(("k1", "k2", "k3", "k4", "k5", "k6")),
            canonical_operation="register",
            canonical_target=pick(("dot/1", "dot/1", "dot/1", "dot/2")),
            deployed_artifact_hash="sha256:aa",
            owner_or_approval_binding=pick(OWNERS),
            run_id=pick(("r1", "r1", "r1", "r1", "r2", "r3", "")),
            authorization_nonce=pick((*nonces, *nonces, "made-up")),
            attempt_id=pick(("a1", "a1", "a2")),
            issued_at=pick((None, now + start)),
            valid_until=pick((None, now + start + length)),
        )

    def register(self) -> None:
        began = self.world.steps + 1 - self.pick((0, 0, 0, 1, 3))
        crashes, fenced = (self.pick((False, False, False, True)) for _ in range(2))
        self.world.register(self.request(), began=began, crashes=crashes, fenced=fenced)

    def race(self) -> None:
        """Two attempts that began at the same time; the second decides when the first is durable."""
        began, request = self.world.steps + 1, self.request()
        other = msgspec.structs.replace(request, attempt_id="a9") if self.pick((True, False)) else self.request()
        decisions = [self.world.register(one, began=began) for one in (request, other)]
        same_key = request.logical_request_key == other.logical_request_key
        assert sum(decision.admitted for decision in decisions) <= (1 if same_key else 2)

    def issue(self) -> None:
        self.world.issue_nonce(self.pick(OWNERS), self.pick((1, 30, 200)))

    def verify(self) -> None:
        if self.world.rows:
            self.world.verified(self.pick(tuple(self.world.rows)), self.pick(tuple(VerifyStatus)))

    def time_passes(self) -> None:
        self.world.now += self.pick((1, 30, 10**6))

    def gate(self) -> None:
        self.world.gate_open = self.pick((True, True, True, False))
        self.world.surface_fit = self.pick((True, True, True, False))

    def anything(self) -> None:
        many = (self.register,) * 5 + (self.issue,) * 3
        self.pick((*many, self.race, self.verify, self.time_passes, self.gate, self.gate))()


class RegistrarMachine(RuleBasedStateMachine):
    """The world under Hypothesis."""

    steps_taken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        Choices(self.world, lambda options: data.draw(st.sampled_from(options))).anything()

    def teardown(self) -> None:
        type(self).steps_taken += self.world.steps


@pytest.mark.req("T3-1", "T3-2", "T3-3", "T3-4", "T3-5", "T3-6", "T3-7", "T3-8", "T3-9", "T3-10", "REG-1-16")
def test_hypothesis_finds_no_quarrel_between_rules_and_model() -> None:
    RegistrarMachine.steps_taken = 0
    run_state_machine_as_test(RegistrarMachine, settings=STATEFUL)
    assert RegistrarMachine.steps_taken > 1_500


@pytest.mark.req("T3-0", "T3-1", "T3-2", "T3-3", "T3-4", "T3-5", "T3-6", "T3-7", "T3-8", "T3-9", "T3-10", "T3-11")
def test_a_long_walk_agrees_with_the_model_and_every_rule_answers() -> None:
    source = random.Random(6)  # noqa: S311 - A walk must be the same every time.
    steps, answered = walk_far(source.choice)
    assert steps >= WALK_STEPS
    assert answered == {(rule_.row, rule_.code) for rule_ in RULES}


def walk_far(pick: Any) -> tuple[int, set[tuple[str, str]]]:
    steps, answered = 0, set[tuple[str, str]]()
    while steps < WALK_STEPS:
        world = World()
        choices = Choices(world, pick)
        while world.steps < PER_WORLD:
            choices.anything()
        steps += world.steps
        answered |= world.answered
    return steps, answered


@pytest.mark.parametrize("index", range(len(RULES)))
def test_the_model_notices_any_rule_that_is_missing(index: int) -> None:
    source = random.Random(7)  # noqa: S311
    without = RULES[:index] + RULES[index + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registrar, "RULES", without)
        with pytest.raises((AssertionError, Refused)):
            walk_far(source.choice)


# Over all facts.

nonces = st.builds(
    Nonce,
    st.sampled_from(["n-1", "n-2"]),
    st.sampled_from(["owner-1/approval-7", "owner-2"]),
    st.sampled_from([T0 - 5, T0, T0 + 5]),
    st.sampled_from([T0, T0 + 1, NONCE_ENDS_AT]),
    st.sampled_from([None, None, "lrk-1", "lrk-2"]),
)
facts = st.builds(
    Facts,
    gate_open=st.sampled_from([True, True, True, False]),
    surface_fit=st.sampled_from([True, True, True, False]),
    consumed=st.none() | st.sampled_from([registered(status) for status in VerifyStatus]),
    raced=st.booleans(),
    fenced=st.sampled_from([False, False, False, True]),
    nonce=st.none() | nonces | nonces | nonces,
    effect_elsewhere=st.sampled_from([False, False, True]),
)
requests = st.builds(
    asks,
    run_id=st.sampled_from(["run-1", "run-1", "run-2", ""]),
    authorization_nonce=st.sampled_from(["n-1", "n-1", "n-2"]),
    attempt_id=st.sampled_from(["a-1", "a-2"]),
    valid_until=st.sampled_from([None, STALE_AT, T0]),
)
instants = st.sampled_from([T0 - 1, T0, T0 + 1, STALE_AT - 1, STALE_AT, NONCE_ENDS_AT, 10**12])


@given(requests, facts, instants)
@STEADY
def test_an_effect_needs_everything_at_once(request_: RegistrationRequest, known: Facts, now: int) -> None:
    decision = decide(request_, known, now)
    if not decision.admitted:
        assert decision.result == decision.prior
        return
    nonce = known.nonce
    assert known.gate_open
    assert known.surface_fit
    assert known.consumed is None
    assert not known.fenced
    assert not known.effect_elsewhere
    assert request_.is_fresh(now)
    assert nonce is not None
    assert nonce.consumed_by is None
    assert nonce.owner_or_approval_binding == request_.owner_or_approval_binding
    assert nonce.valid_from <= now < nonce.valid_until


@given(requests, facts, instants)
@STEADY
@pytest.mark.req("REG-1-12", "REG-1-15")
def test_the_attempt_never_decides(request_: RegistrationRequest, known: Facts, now: int) -> None:
    other = msgspec.structs.replace(request_, attempt_id="a-999")
    one, two = decide(request_, known, now), decide(other, known, now)
    assert (one.admitted, one.state, one.prior) == (two.admitted, two.state, two.prior)
    assert request_.run_id == "" or request_.replay_key == other.replay_key


@given(facts, instants, st.sampled_from(["n-1", "n-2", "n-3"]))
@STEADY
@pytest.mark.req("REG-4-02")
def test_no_time_and_no_nonce_frees_a_consumed_key(known: Facts, now: int, nonce: str) -> None:
    taken = msgspec.structs.replace(known, consumed=registered())
    assert not decide(asks(authorization_nonce=nonce, issued_at=None, valid_until=None), taken, now).admitted


@given(requests, facts, instants, st.integers(0, len(RULES) - 1))
@STEADY
def test_taking_a_rule_away_lets_no_request_in(
    request_: RegistrationRequest, known: Facts, now: int, index: int
) -> None:
    allowed = decide(request_, known, now).admitted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registrar, "RULES", RULES[:index] + RULES[index + 1 :])
        try:
            admitted = decide(request_, known, now).admitted
        except Refused:  # It fell off the end of the list.
            admitted = False
    assert not admitted or allowed


@given(requests, facts, instants)
@STEADY
def test_the_same_facts_give_the_same_decision(request_: RegistrationRequest, known: Facts, now: int) -> None:
    assert decide(request_, known, now) == decide(request_, known, now)
    assert asks() == REQUEST
