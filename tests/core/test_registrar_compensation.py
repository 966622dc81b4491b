"""A-98: what a new nonce can buy after the verifier said no, and what it cannot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.registrations import registered
from twophp.core.compensation import (
    RULES,
    CompensationDecision,
    CompensationFacts,
    CompensationReadback,
    decide,
    verified,
    verify,
)
from twophp.core.registrar import informed, resolve
from twophp.core.registration import Compensation, CompensationRequest, Nonce, State, VerifyStatus
from twophp.core.rulebook import VERIFY_FAILED

T0 = 20_000
REQUEST = CompensationRequest("lrk-1", "owner-1/approval-8", "n-8", "a-8", T0, T0 + 100)
NONCE = Nonce("n-8", "owner-1/approval-8", T0, T0 + 100)
REJECTED = CompensationFacts(gate_open=True, surface_fit=True, consumed=registered(VerifyStatus.FAIL), nonce=NONCE)
DONE = Compensation("lrk-1", "owner-1/approval-8", "n-8", "a-8", T0)


def knows(**changes: Any) -> CompensationFacts:
    return msgspec.structs.replace(REJECTED, **changes)


def asks(**changes: Any) -> CompensationRequest:
    return msgspec.structs.replace(REQUEST, **changes)


@pytest.mark.req("A-98", "REG-3-14", "REG-3-15")
def test_a_rejected_registration_is_compensated_by_a_row_of_its_own() -> None:
    decision = decide(REQUEST, REJECTED, T0)
    assert decision == CompensationDecision("compensated", True, State.S3, DONE, row="C-9")
    assert isinstance(decision.result, Compensation)  # Never a registration: the effect is not recreated.


@pytest.mark.req("A-98")
def test_the_same_nonce_again_returns_the_prior_compensation() -> None:
    spent = msgspec.structs.replace(NONCE, consumed_by="lrk-1")
    again = knows(own=DONE, nonce=spent)
    assert decide(asks(attempt_id="a-9"), again, T0 + 500) == CompensationDecision(
        "prior_result", False, State.S3, DONE, DONE, row="C-3"
    )
    stranger = decide(asks(owner_or_approval_binding="owner-2"), again, T0)
    assert (stranger.code, stranger.result) == ("REPLAY_NONCE_CONSUMED", None)


@pytest.mark.req("A-98", "REG-RP-07")
@pytest.mark.parametrize(
    ("known", "request_", "at", "code"),
    [
        (knows(surface_fit=False), REQUEST, T0, "REGISTRATION_HOLD"),
        (knows(gate_open=False), REQUEST, T0, "REGISTRATION_HOLD"),
        (REJECTED, asks(attempt_id=""), T0, "incomplete_binding"),
        (knows(consumed=None), REQUEST, T0, "not_consumed"),
        (knows(consumed=registered(VerifyStatus.PASS)), REQUEST, T0, "not_compensable"),
        (knows(consumed=registered(VerifyStatus.PENDING)), REQUEST, T0, "not_compensable"),
        (knows(has_passed=True), asks(authorization_nonce="n-9"), T0, "REPLAY_DUPLICATE"),
        (REJECTED, REQUEST, T0 + 100, "REPLAY_STALE_ROW"),
        (knows(nonce=msgspec.structs.replace(NONCE, consumed_by="lrk-1")), REQUEST, T0, "REPLAY_NONCE_CONSUMED"),
        (knows(nonce=None), REQUEST, T0, "NONCE_UNBOUND"),
        (knows(nonce=msgspec.structs.replace(NONCE, valid_until=T0)), REQUEST, T0, "NONCE_UNBOUND"),
        (REJECTED, asks(owner_or_approval_binding="owner-2"), T0, "NONCE_UNBOUND"),
    ],
)
def test_everything_else_is_refused(
    known: CompensationFacts, request_: CompensationRequest, at: int, code: str
) -> None:
    decision = decide(request_, known, at)
    assert (decision.code, decision.admitted, decision.result) == (code, False, None)


@pytest.mark.req("A-98")
def test_a_second_compensation_takes_a_second_nonce_while_none_has_passed() -> None:
    second = Nonce("n-9", "owner-1/approval-8", T0, T0 + 100)
    assert decide(asks(authorization_nonce="n-9"), knows(nonce=second), T0).admitted


@pytest.mark.req("A-98", "REG-3-15")
@pytest.mark.parametrize(
    ("readback", "status"),
    [
        (None, VerifyStatus.PENDING),
        (CompensationReadback(compensation=DONE, nonce_consumed_by="lrk-1", registrations=1), VerifyStatus.PASS),
        (CompensationReadback(compensation=DONE, nonce_consumed_by=None, registrations=1), VerifyStatus.FAIL),
        (CompensationReadback(compensation=DONE, nonce_consumed_by="lrk-2", registrations=1), VerifyStatus.FAIL),
        (CompensationReadback(compensation=DONE, nonce_consumed_by="lrk-1", registrations=2), VerifyStatus.FAIL),
    ],
)
def test_a_compensation_passes_if_its_nonce_is_spent_and_the_effect_stands_once(
    readback: CompensationReadback | None, status: VerifyStatus
) -> None:
    assert verify(readback) is status


def test_one_rule_admits_and_it_is_the_last() -> None:
    assert [rule.admits for rule in RULES] == [False] * (len(RULES) - 1) + [True]


@pytest.mark.req("A-98")
@pytest.mark.parametrize(
    ("status", "refused"), [(VerifyStatus.PASS, False), (VerifyStatus.PENDING, False), (VerifyStatus.FAIL, True)]
)
def test_a_compensation_carries_the_verdict_and_is_told_when_it_failed(status: VerifyStatus, refused: bool) -> None:
    admitted = decide(REQUEST, REJECTED, T0)
    assert admitted.result is not None
    told = verified(admitted, status)
    assert told.result == msgspec.structs.replace(admitted.result, verify_status=status)
    assert told.code == (VERIFY_FAILED if refused else admitted.code)
    assert told.admitted is admitted.admitted


@pytest.mark.req("A-92")
@pytest.mark.parametrize("status", [VerifyStatus.PASS, VerifyStatus.FAIL])
def test_an_answer_from_a_record_is_told_with_the_verdict_that_came_meanwhile(status: VerifyStatus) -> None:
    known = registered(VerifyStatus.PENDING)
    told = informed(resolve(known), status)
    now = msgspec.structs.replace(known, verify_status=status)
    assert (told.result, told.prior, told.state) == (now, now, now.state)
    assert told.state is (State.CLOSED if status is VerifyStatus.PASS else State.S3)
