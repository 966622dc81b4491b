"""The registrar's rules: a logical request is consumed once, with any nonce and in any attempt.

Theory. Three identities that are usually one "idempotency key" are kept apart, because each answers another question:

    logical_request_key    has this effect been decided?     consumed once, and for the whole horizon
    authorization_nonce    who allowed it, and until when?   consumed once, in the same transaction
    attempt_id             which try was it?                 logged; it keys nothing (REG-1-12)

``replay_key`` (identity.py) is the digest of everything that was requested. It tells a retry from another request under
the same key. 2PHP's Phase 1 has the same question about a Client-Correlation-ID, and uses the same code:
``compare_bindings`` (registration.py) is the one implementation (A-82).

There is no state machine, only an ordered list of rules: T3. The order makes it safe. The rules ask whether the key is
consumed before they ask anything about the nonce (REG-3-03), so no fresh nonce can buy a second effect. ``RULES`` is
that list, and rulebook.py says how a list answers.

Freshness and consumption are independent: no rule reads a time to learn whether a key is consumed (REG-4-02).

The states are those of the contract: S0 nothing there, S1 not committed, S2 consumed with an inert row, S3 rejected by
the verifier, S4 lost a race, and registered-closed. None of them goes back to S0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import msgspec

from twophp.core import rulebook
from twophp.core.errors import Refused
from twophp.core.records import Instant
from twophp.core.registration import (
    DRAFT,
    Binding,
    Nonce,
    Registration,
    RegistrationRequest,
    State,
    VerifyStatus,
    compare_bindings,
)
from twophp.core.rulebook import (
    ABSENT,
    ATTEMPT_COLLISION,
    ATTEMPT_FENCED,
    COMMIT_FAILED,
    COMMIT_UNKNOWN,
    CONSUMED,
    CONSUMED_STATE_ERASED,
    INCOMPLETE_BINDING,
    NONCE_UNBOUND,
    PRIOR_RESULT,
    REGISTERED,
    REPLAY_ATTEMPT_NO_BYPASS,
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


class Facts(rulebook.Facts, frozen=True, kw_only=True):
    """The facts about a registration, beside those that every request needs."""

    raced: bool = False  # The record became durable after this attempt began (S4).
    fenced: bool = False  # Since this attempt began, ``resolve`` has answered ABSENT for the key.
    effect_elsewhere: bool = False  # The same effect is registered under another logical key.


class Decision(Answer[Registration], frozen=True):
    """The outcome of a request to register."""


class Case(rulebook.Case[RegistrationRequest, Facts], frozen=True, kw_only=True):
    """A registration among its facts."""

    binding: Binding

    @property
    def is_free(self) -> bool:
        """Nothing is recorded under the logical key."""
        return self.binding is Binding.FREE

    @property
    def is_same(self) -> bool:
        """The key was consumed before this attempt began, by this very request."""
        return self.binding is Binding.SAME and not self.facts.raced

    @property
    def has_own_nonce(self) -> bool:
        """It presents the nonce that the key was consumed with: a retry, no new authorisation (A-87)."""
        prior = self.facts.consumed
        return prior is not None and prior.authorization_nonce == self.request.authorization_nonce

    @property
    def has_own_attempt(self) -> bool:
        """Even the attempt is the recorded one."""
        return self.facts.consumed is not None and self.facts.consumed.attempt_id == self.request.attempt_id


def _admits(case: Case) -> bool:
    """Every condition for an effect, checked here again and not left to another rule (REG-3-05, REG-3-06)."""
    return case.is_authorised and case.is_free and not case.facts.fenced and not case.facts.effect_elsewhere


RULES: Final[tuple[Rule[Case], ...]] = (
    *entry_rules("T3-0", "V"),
    Rule(
        row="T3-1",
        says="key consumed, any bound field differs",
        when=lambda case: case.binding is Binding.OTHER and not case.facts.raced,
        code=REPLAY_DUPLICATE,
        requirements=("REG-1-04", "A-91"),
    ),
    Rule(
        row="T3-2",
        says="key consumed, same binding, same nonce, request fresh, attempt is new",
        when=lambda case: case.is_same and case.has_own_nonce and case.is_fresh and not case.has_own_attempt,
        code=REPLAY_ATTEMPT_NO_BYPASS,
        discloses=True,
        requirements=("REG-RP-01", "REG-RP-05", "REG-RP-07"),
    ),
    Rule(
        row="T3-2",
        says="key consumed, same binding, same nonce, request fresh, same attempt",
        when=lambda case: case.is_same and case.has_own_nonce and case.is_fresh and case.has_own_attempt,
        code=PRIOR_RESULT,
        discloses=True,
        requirements=("REG-RP-05", "REG-RP-07"),
    ),
    Rule(
        row="T3-3",
        says="key consumed, same binding, same nonce, request stale",
        when=lambda case: case.binding is Binding.SAME and case.has_own_nonce and not case.is_fresh,
        code=REPLAY_STALE_ROW,
        discloses=True,
        requirements=("REG-RP-08", "A-89"),
    ),
    Rule(
        row="T3-4",
        says="key consumed, same binding, any other nonce (its validity is not examined)",
        when=lambda case: case.is_same and not case.has_own_nonce,
        code=REPLAY_DUPLICATE,
        discloses=True,
        requirements=("REG-RP-02", "REG-RP-07", "REG-3-03"),
    ),
    Rule(
        row="A-96",
        says="key free, and resolve has said so since this attempt began",
        when=lambda case: case.is_free and case.facts.fenced,
        code=ATTEMPT_FENCED,
        state=State.S0,
        requirements=("REG-S1", "A-96"),
    ),
    Rule(
        row="T3-5",
        says="key free, request stale",
        when=lambda case: case.is_free and not case.is_fresh,
        code=REPLAY_STALE_ROW,
        state=State.S0,
        requirements=("REG-RP-08", "REG-4-01"),
    ),
    Rule(
        row="T3-6",
        says="key free, nonce already consumed (by any key)",
        when=lambda case: case.is_free and case.nonce_is_spent,
        code=REPLAY_NONCE_CONSUMED,
        state=State.S0,
        requirements=("REG-RP-03", "A-90"),
    ),
    Rule(
        row="T3-7",
        says="key free, nonce unknown, of another envelope or out of its window",
        when=lambda case: case.is_free and not case.nonce_is_bound,
        code=NONCE_UNBOUND,
        state=State.S0,
        requirements=("REG-RP-04",),
    ),
    Rule(
        row="T3-8",
        says="key free, effect already registered under another key",
        when=lambda case: case.is_free and case.facts.effect_elsewhere,
        code=REPLAY_DUPLICATE,
        state=State.S0,
        requirements=("REG-RP-02", "A-91"),
    ),
    Rule(
        row="T3-9",
        says="another attempt won the race, same binding",
        when=lambda case: case.facts.raced and case.binding is Binding.SAME,
        code=ATTEMPT_COLLISION,
        cause=REPLAY_DUPLICATE,
        discloses=True,
        state=State.S4,
        requirements=("REG-RP-09", "A-88"),
    ),
    Rule(
        row="T3-9",
        says="another attempt won the race, another binding",
        when=lambda case: case.facts.raced and case.binding is Binding.OTHER,
        code=REPLAY_DUPLICATE,
        requirements=("REG-RP-09", "A-88"),
    ),
    Rule(
        row="T3-10",
        says="none of the above: consume key and nonce, write the inert row",
        when=_admits,
        code=REGISTERED,
        admits=True,
        state=State.S2,
        requirements=("REG-RP-06", "REG-3-06"),
    ),
)


def decide(request: RegistrationRequest, facts: Facts, now: Instant) -> Decision:
    """T3. Pure: an admitted decision's ``result`` is to be written, with the consumed nonce, in this transaction."""
    replay_key = request.replay_key if request.is_complete else ""
    found = facts.consumed
    binding = compare_bindings(None if found is None else found.replay_key, replay_key)
    rule = first_match(RULES, Case(request=request, facts=facts, now=now, binding=binding))
    prior = found if rule.discloses else None
    result = Registration(*request.meant(), replay_key, now) if rule.admits else prior
    return Decision(rule.code, rule.admits, state_said(rule, found), result, prior, rule.cause, rule.row)


# Around the transaction: before it the validator, after it the outcome of the commit, the verifier, and ``resolve``.


def validate(request: RegistrationRequest, nonce: Nonce | None, now: Instant) -> tuple[str, ...]:
    """Layer V (A-100): every objection that needs no replay state, in T3's order. ``decide`` raises them all again.

    It owns no state (REG-7-04) and does not judge whether a key is consumed.
    """
    bound = nonce is not None and nonce.authorises(request, now)
    objections = (
        (request.is_complete, INCOMPLETE_BINDING),
        (request.is_fresh(now), REPLAY_STALE_ROW),  # REG-RP-08
        (bound, NONCE_UNBOUND),  # REG-RP-04
    )
    return tuple(code for holds, code in objections if not holds)


def uncommitted(decision: Decision, *, known: bool) -> Decision:
    """T3 row 11: the commit of an admitted decision failed (``known``), or its outcome is unknown: ``resolve`` it.

    S1: key, nonce and row were rolled back together, so nothing of the decision's result may be shown (REG-3-08).
    """
    assert decision.admitted, "a refusal commits nothing"
    return Decision(COMMIT_FAILED if known else COMMIT_UNKNOWN, admitted=False, state=State.S1, row="T3-11")


def verified(decision: Decision, status: VerifyStatus) -> Decision:
    """An admitted decision after its verifier: registered-closed, S3, or still S2 (T3 row 10)."""
    assert decision.admitted, "only what was registered is verified"
    assert decision.result is not None, "an admitted decision has a result"
    result = msgspec.structs.replace(decision.result, verify_status=status)
    code = VERIFY_FAILED if status is VerifyStatus.FAIL else decision.code
    return msgspec.structs.replace(decision, code=code, state=result.state, result=result)


def informed(decision: Decision, status: VerifyStatus) -> Decision:
    """An answer from a record that had no verdict when it was found, and has one now (A-92)."""
    assert decision.result is not None, "there is a record to speak of"
    found = msgspec.structs.replace(decision.result, verify_status=status)
    state = decision.state if decision.state is State.S4 else found.state
    return msgspec.structs.replace(decision, state=state, result=found, prior=found)


def resolve(found: Registration | None) -> Decision:
    """The state of a key, at any age (A-96). Only ABSENT permits to issue again, and with the same key (REG-S1)."""
    if found is None:
        return Decision(ABSENT, admitted=False, state=State.S0)
    return Decision(CONSUMED, admitted=False, state=found.state, result=found, prior=found)


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt reads of its key when it begins. A difference when it decides shows a concurrent attempt."""

    is_free: bool
    fence: int
    gate: int


class Readback(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that the verifier's own connection found under a key after the commit."""

    registrations: tuple[Registration, ...]
    nonce_consumed_by: str | None


def verify(readback: Readback | None) -> VerifyStatus:
    """The paired verifier (A-92). None means that it could not read, which proves nothing: PENDING, never PASS."""
    if readback is None:
        return VerifyStatus.PENDING
    if len(readback.registrations) != 1:
        return VerifyStatus.FAIL
    (row,) = readback.registrations
    holds = (
        row.status == DRAFT
        and row.is_complete
        and row.replay_key == row.digest()
        and readback.nonce_consumed_by == row.logical_request_key
    )
    return VerifyStatus.PASS if holds else VerifyStatus.FAIL


def require_kept(consumed: Iterable[str], present: Container[str]) -> None:
    """The invariant behind REG-4-07: a consumed key is still there. Raises with the contract's code for its loss."""
    for key in consumed:
        if key not in present:
            raise Refused(f"the consumed record of {key!r} has disappeared", code=CONSUMED_STATE_ERASED)
