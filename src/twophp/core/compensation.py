"""When a rejected registration may be made up for: the registrar's second list of rules (A-98).

A key that the verifier rejected (S3) stays consumed. What a new nonce can buy is a compensation: a row of its own,
linked to the key by name, while the registration's row stays as it is. So nothing here can recreate an effect, and the
result's type says so: an admitted decision holds a Compensation and never a Registration (REG-3-15).
"""

from __future__ import annotations

from typing import Final

import msgspec

from twophp.core import rulebook
from twophp.core.records import Instant
from twophp.core.registration import Compensation, CompensationRequest, State, VerifyStatus
from twophp.core.rulebook import (
    COMPENSATED,
    NONCE_UNBOUND,
    NOT_COMPENSABLE,
    NOT_CONSUMED,
    PRIOR_RESULT,
    REPLAY_DUPLICATE,
    REPLAY_NONCE_CONSUMED,
    REPLAY_STALE_ROW,
    VERIFY_FAILED,
    Answer,
    Rule,
    entry_rules,
    first_match,
    state_said,
)


class CompensationFacts(rulebook.Facts, frozen=True, kw_only=True):
    """What is known about a compensation, beside what every request needs."""

    own: Compensation | None = None  # What this very nonce has compensated before.
    has_passed: bool = False  # The verifier has accepted a compensation of this key.


class CompensationDecision(Answer[Compensation], frozen=True):
    """What became of a request to compensate."""


class CompensationCase(rulebook.Case[CompensationRequest, CompensationFacts], frozen=True, kw_only=True):
    """A compensation among its facts."""

    @property
    def is_rejected(self) -> bool:
        """The verifier rejected the registration: the one state that can be compensated."""
        return self.facts.consumed is not None and self.facts.consumed.state is State.S3

    @property
    def is_repeat(self) -> bool:
        """The same nonce, for the same key, under the same authority, once more."""
        own, request = self.facts.own, self.request
        return own is not None and (
            own.logical_request_key,
            own.authorization_nonce,
            own.owner_or_approval_binding,
        ) == (request.logical_request_key, request.authorization_nonce, request.owner_or_approval_binding)


def _admits(case: CompensationCase) -> bool:
    return case.is_authorised and case.is_rejected and not case.facts.has_passed


RULES: Final[tuple[Rule[CompensationCase], ...]] = (
    *entry_rules("C-0", "C-1"),
    Rule(
        row="C-2",
        says="the key is free: there is nothing to make up for",
        when=lambda case: case.facts.consumed is None,
        code=NOT_CONSUMED,
        state=State.S0,
        requirements=("A-98",),
    ),
    Rule(
        row="C-3",
        says="the same nonce again, same key and envelope",
        when=lambda case: case.is_repeat,
        code=PRIOR_RESULT,
        discloses=True,
        requirements=("A-98",),
    ),
    Rule(
        row="C-4",
        says="the registration was not rejected",
        when=lambda case: not case.is_rejected,
        code=NOT_COMPENSABLE,
        requirements=("REG-RP-07", "A-98"),
    ),
    Rule(
        row="C-5",
        says="a compensation of this key has passed",
        when=lambda case: case.facts.has_passed,
        code=REPLAY_DUPLICATE,
        requirements=("A-98",),
    ),
    Rule(
        row="C-6",
        says="request stale",
        when=lambda case: not case.is_fresh,
        code=REPLAY_STALE_ROW,
        requirements=("REG-4-01",),
    ),
    Rule(
        row="C-7",
        says="nonce already consumed (by any key)",
        when=lambda case: case.nonce_is_spent,
        code=REPLAY_NONCE_CONSUMED,
        requirements=("REG-RP-03",),
    ),
    Rule(
        row="C-8",
        says="nonce unknown, of another envelope or out of its window",
        when=lambda case: not case.nonce_is_bound,
        code=NONCE_UNBOUND,
        requirements=("REG-RP-04",),
    ),
    Rule(
        row="C-9",
        says="none of the above: consume the nonce, append the compensation",
        when=_admits,
        code=COMPENSATED,
        admits=True,
        state=State.S3,
        requirements=("REG-RP-07", "REG-3-14", "REG-3-15"),
    ),
)


def decide(request: CompensationRequest, facts: CompensationFacts, now: Instant) -> CompensationDecision:
    """Whether a rejected registration is made up for by this request. Pure."""
    rule = first_match(RULES, CompensationCase(request=request, facts=facts, now=now))
    prior = facts.own if rule.discloses else None
    result = _compensation(request, now) if rule.admits else prior
    state = state_said(rule, facts.consumed)
    return CompensationDecision(rule.code, rule.admits, state, result, prior, rule.cause, rule.row)


def _compensation(request: CompensationRequest, now: Instant) -> Compensation:
    return Compensation(
        logical_request_key=request.logical_request_key,
        owner_or_approval_binding=request.owner_or_approval_binding,
        authorization_nonce=request.authorization_nonce,
        attempt_id=request.attempt_id,
        compensated_at=now,
    )


def verified(decision: CompensationDecision, status: VerifyStatus) -> CompensationDecision:
    """An admitted compensation after its verifier has spoken. The registration stays rejected (S3) in any case."""
    assert decision.result is not None, "an admitted decision has a result"
    code = VERIFY_FAILED if status is VerifyStatus.FAIL else decision.code
    result = msgspec.structs.replace(decision.result, verify_status=status)
    return msgspec.structs.replace(decision, code=code, result=result)


class CompensationReadback(msgspec.Struct, frozen=True, kw_only=True):
    """What the verifier's own connection found of a compensation after the commit."""

    compensation: Compensation
    nonce_consumed_by: str | None
    registrations: int  # How many inert rows stand under the key.


def verify(readback: CompensationReadback | None) -> VerifyStatus:
    """The paired verifier once more: the nonce is spent on it, and the effect was not made a second time (REG-3-15)."""
    if readback is None:
        return VerifyStatus.PENDING
    holds = readback.nonce_consumed_by == readback.compensation.logical_request_key and readback.registrations == 1
    return VerifyStatus.PASS if holds else VerifyStatus.FAIL
