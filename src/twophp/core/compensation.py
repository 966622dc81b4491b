"""When a rejected registration may be made up for: the registrar's second list of rules (A-98).

A key that the verifier rejected (S3) stays consumed. What a new nonce can buy is a compensation: a row of its own,
linked to the key by name, while the registration's row stays as it is. So nothing here can recreate an effect, and the
result's type says so: an admitted decision holds a Compensation and never a Registration (REG-3-15).
"""

from __future__ import annotations

from typing import Final

import msgspec

from twophp.core.records import Instant
from twophp.core.registrar import (
    INCOMPLETE_BINDING,
    NONCE_UNBOUND,
    PRIOR_RESULT,
    REGISTRATION_HOLD,
    REPLAY_DUPLICATE,
    REPLAY_NONCE_CONSUMED,
    REPLAY_STALE_ROW,
    REPLAY_SURFACE_NOT_FIT,
    Rule,
    first_match,
)
from twophp.core.registration import Compensation, CompensationRequest, Nonce, Registration, State

COMPENSATED: Final = "compensated"
NOT_CONSUMED: Final = "not_consumed"
NOT_COMPENSABLE: Final = "not_compensable"


class CompensationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows, read inside the transaction that decides."""

    gate_open: bool = False
    surface_fit: bool = False
    consumed: Registration | None = None  # The record under the logical key.
    nonce: Nonce | None = None  # The record of the presented nonce.
    own: Compensation | None = None  # What this very nonce has compensated before.
    passed: Compensation | None = None  # A compensation of this key that the verifier accepted.


class CompensationDecision(msgspec.Struct, frozen=True):
    """The answer. ``admitted`` means that ``result`` is new and to be written with the consumed nonce."""

    code: str
    admitted: bool
    state: State | None
    result: Compensation | None = None
    prior: Compensation | None = None
    cause: str | None = None
    row: str = ""


class CompensationCase(msgspec.Struct, frozen=True, kw_only=True):
    """A request among its facts."""

    request: CompensationRequest
    facts: CompensationFacts
    now: Instant

    @property
    def may_proceed(self) -> bool:
        """Fit proven and the gate open, as for a registration."""
        return self.facts.gate_open and self.facts.surface_fit

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

    @property
    def nonce_is_spent(self) -> bool:
        """The presented nonce was consumed: by a compensation, or by a registration, be it this one."""
        return self.facts.nonce is not None and self.facts.nonce.consumed_by is not None

    @property
    def nonce_is_bound(self) -> bool:
        """The presented nonce exists, and stands for this envelope now."""
        return self.facts.nonce is not None and self.facts.nonce.authorises(self.request, self.now)


def _admits(case: CompensationCase) -> bool:
    return (
        case.may_proceed
        and case.request.is_complete
        and case.is_rejected
        and case.facts.passed is None
        and case.request.is_fresh(case.now)
        and case.nonce_is_bound
        and not case.nonce_is_spent
    )


RULES: Final[tuple[Rule[CompensationCase], ...]] = (
    Rule(
        row="C-0",
        says="the surface is not proven fit",
        when=lambda case: not case.facts.surface_fit,
        code=REGISTRATION_HOLD,
        cause=REPLAY_SURFACE_NOT_FIT,
        requirements=("REG-RP-10", "REG-7-05"),
    ),
    Rule(
        row="C-0",
        says="the gate is closed",
        when=lambda case: not case.facts.gate_open,
        code=REGISTRATION_HOLD,
        requirements=("REG-7-05", "A-94"),
    ),
    Rule(
        row="C-1",
        says="a field that binds, allows or identifies is empty",
        when=lambda case: not case.request.is_complete,
        code=INCOMPLETE_BINDING,
        requirements=("A-100",),
    ),
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
        when=lambda case: case.facts.passed is not None,
        code=REPLAY_DUPLICATE,
        requirements=("A-98",),
    ),
    Rule(
        row="C-6",
        says="request stale",
        when=lambda case: not case.request.is_fresh(case.now),
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
    state = facts.consumed.state if rule.discloses and facts.consumed is not None else rule.state
    return CompensationDecision(rule.code, rule.admits, state, result, prior, rule.cause, rule.row)


def _compensation(request: CompensationRequest, now: Instant) -> Compensation:
    return Compensation(
        logical_request_key=request.logical_request_key,
        owner_or_approval_binding=request.owner_or_approval_binding,
        authorization_nonce=request.authorization_nonce,
        attempt_id=request.attempt_id,
        compensated_at=now,
    )
