"""The registrar's rules: a logical request is consumed once, whatever nonce or attempt comes.

Theory. Three identities that are usually one "idempotency key" are kept apart, because each answers another question:

    logical_request_key    has this effect been decided?     consumed once, and for the whole horizon
    authorization_nonce    who allowed it, and until when?   consumed once, in the same transaction
    attempt_id             which try was it?                 logged; it keys nothing (REG-1-12)

``replay_key`` (identity.py) is the digest of everything that was meant. It tells a retry from another request that
comes under the same key. 2PHP's Phase 1 asks that very question about a Client-Correlation-ID, and asks it here:
``compare_bindings`` (registration.py) is the one implementation (A-82).

There is no state machine to walk, only a question with an order: T3, and it is the order that makes it safe. Whether
the key is consumed comes before anything about the nonce (REG-3-03), so no fresh nonce can buy a second effect.
``RULES`` is that list. The first rule that holds answers, and one rule alone admits. It states everything it needs by
itself, so taking any other rule away refuses by falling off the end, and can never let a request in.

Freshness and consumption never meet: no rule reads a time to learn whether a key is consumed (REG-4-02).

The states are those of the contract: S0 nothing there, S1 not committed, S2 consumed with an inert row, S3 rejected by
the verifier, S4 lost a race, and registered-closed. None of them goes back to S0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final, Generic, TypeVar

import msgspec

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

# Codes spelled as the contract spells them.
REGISTRATION_HOLD: Final = "REGISTRATION_HOLD"
REPLAY_SURFACE_NOT_FIT: Final = "REPLAY_SURFACE_NOT_FIT"
REPLAY_DUPLICATE: Final = "REPLAY_DUPLICATE"
REPLAY_ATTEMPT_NO_BYPASS: Final = "REPLAY_ATTEMPT_NO_BYPASS"
REPLAY_STALE_ROW: Final = "REPLAY_STALE_ROW"
REPLAY_NONCE_CONSUMED: Final = "REPLAY_NONCE_CONSUMED"
NONCE_UNBOUND: Final = "NONCE_UNBOUND"
ATTEMPT_COLLISION: Final = "ATTEMPT_COLLISION"
CONSUMED_STATE_ERASED: Final = "CONSUMED_STATE_ERASED_BY_STALE_REQUEST"

# Our own, for what the contract describes and does not name.
REGISTERED: Final = "registered"
PRIOR_RESULT: Final = "prior_result"
INCOMPLETE_BINDING: Final = "incomplete_binding"
COMMIT_FAILED: Final = "commit_failed"
COMMIT_UNKNOWN: Final = "commit_unknown"
CONSUMED: Final = "CONSUMED"  # The two answers of resolve, spelled as A-96 spells them.
ABSENT: Final = "ABSENT"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows, read inside the transaction that decides. Whoever knows nothing is refused."""

    gate_open: bool = False
    surface_fit: bool = False
    consumed: Registration | None = None  # The record under the logical key.
    raced: bool = False  # It became durable after this attempt began (S4).
    nonce: Nonce | None = None  # The record of the presented nonce.
    effect_elsewhere: bool = False  # The same effect stands under another logical key.


class Decision(msgspec.Struct, frozen=True):
    """The answer. ``admitted`` means that this very call has an effect.

    ``result`` is what stands under the key when the call is over, ``prior`` what stood there before it; both only where
    the rule discloses them.
    """

    code: str
    admitted: bool
    state: State | None  # None where even the state would tell a stranger something.
    result: Registration | None = None
    prior: Registration | None = None
    cause: str | None = None  # The constraint behind the code.
    row: str = ""  # The row of T3 that answered.


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A request among its facts, with the comparisons that rules are made of."""

    request: RegistrationRequest
    facts: Facts
    now: Instant
    binding: Binding

    @property
    def may_proceed(self) -> bool:
        """REGISTRATION_CAN_PROCEED: fit proven and the gate opened on top of it (A-94)."""
        return self.facts.gate_open and self.facts.surface_fit

    @property
    def is_free(self) -> bool:
        """Nothing is recorded under the logical key."""
        return self.binding is Binding.FREE

    @property
    def is_same(self) -> bool:
        """The key was consumed before this attempt began, by this very request."""
        return self.binding is Binding.SAME and not self.facts.raced

    @property
    def is_fresh(self) -> bool:
        """The request's own window is open."""
        return self.request.is_fresh(self.now)

    @property
    def has_own_nonce(self) -> bool:
        """It presents the nonce that the key was consumed with: a retry, no new authorisation (A-87)."""
        prior = self.facts.consumed
        return prior is not None and prior.authorization_nonce == self.request.authorization_nonce

    @property
    def has_own_attempt(self) -> bool:
        """Even the attempt is the recorded one."""
        return self.facts.consumed is not None and self.facts.consumed.attempt_id == self.request.attempt_id

    @property
    def nonce_is_spent(self) -> bool:
        """The presented nonce was consumed, by whichever key."""
        return self.facts.nonce is not None and self.facts.nonce.consumed_by is not None

    @property
    def nonce_is_bound(self) -> bool:
        """The presented nonce exists, and stands for this envelope now."""
        return self.facts.nonce is not None and self.facts.nonce.authorises(self.request, self.now)


CaseT = TypeVar("CaseT")


class Rule(msgspec.Struct, Generic[CaseT], frozen=True, kw_only=True):
    """One row of a decision list. ``state`` None means: the record's own if it is disclosed, else nobody's business."""

    row: str
    says: str
    when: Callable[[CaseT], bool]
    code: str
    requirements: tuple[str, ...]
    discloses: bool = False  # The prior record is part of the answer.
    admits: bool = False
    state: State | None = None
    cause: str | None = None


def _admits(case: Case) -> bool:
    """Everything an effect needs, without trusting that another rule has looked (REG-3-05, REG-3-06)."""
    return (
        case.may_proceed
        and case.request.is_complete
        and case.is_free
        and case.is_fresh
        and case.nonce_is_bound
        and not case.nonce_is_spent
        and not case.facts.effect_elsewhere
    )


RULES: Final[tuple[Rule[Case], ...]] = (
    Rule(
        row="T3-0",
        says="the surface is not proven fit",
        when=lambda case: not case.facts.surface_fit,
        code=REGISTRATION_HOLD,
        cause=REPLAY_SURFACE_NOT_FIT,
        requirements=("REG-RP-10", "REG-6-09", "REG-7-05"),
    ),
    Rule(
        row="T3-0",
        says="the gate is closed",
        when=lambda case: not case.facts.gate_open,
        code=REGISTRATION_HOLD,
        requirements=("REG-7-05", "A-94"),
    ),
    Rule(
        row="V",
        says="a field that binds, allows or identifies is empty",
        when=lambda case: not case.request.is_complete,
        code=INCOMPLETE_BINDING,
        requirements=("A-85", "A-100"),
    ),
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
    result = _registration(request, replay_key, now) if rule.admits else prior
    state = result.state if result is not None and rule.state is None else rule.state
    return Decision(rule.code, rule.admits, state, result, prior, rule.cause, rule.row)


def first_match(rules: Iterable[Rule[CaseT]], case: CaseT) -> Rule[CaseT]:
    """The rule that answers. Falling off the end is our bug, and refuses."""
    for rule in rules:
        if rule.when(case):
            return rule
    raise Refused("no rule answers this request", code="no_rule")


def _registration(request: RegistrationRequest, replay_key: str, now: Instant) -> Registration:
    return Registration(
        logical_request_key=request.logical_request_key,
        replay_key=replay_key,
        canonical_operation=request.canonical_operation,
        canonical_target=request.canonical_target,
        deployed_artifact_hash=request.deployed_artifact_hash,
        owner_or_approval_binding=request.owner_or_approval_binding,
        run_id=request.run_id,
        authorization_nonce=request.authorization_nonce,
        attempt_id=request.attempt_id,
        registered_at=now,
        protocol_version=request.protocol_version,
    )


def _request_of(row: Registration) -> RegistrationRequest:
    """The request that the row claims to come from, to compute its digest once more."""
    return RegistrationRequest(
        protocol_version=row.protocol_version,
        logical_request_key=row.logical_request_key,
        canonical_operation=row.canonical_operation,
        canonical_target=row.canonical_target,
        deployed_artifact_hash=row.deployed_artifact_hash,
        owner_or_approval_binding=row.owner_or_approval_binding,
        run_id=row.run_id,
        authorization_nonce=row.authorization_nonce,
        attempt_id=row.attempt_id,
    )


# Around the transaction: before it the validator, after it the commit's fate, the verifier, and whoever asks later.


def validate(request: RegistrationRequest, nonce: Nonce | None, now: Instant) -> tuple[str, ...]:
    """Layer V (A-100): every objection that needs no replay state, in T3's order. ``decide`` raises them all again.

    It owns nothing and remembers nothing (REG-7-04): whether anything is consumed is not its business.
    """
    bound = nonce is not None and nonce.authorises(request, now)
    objections = (
        (request.is_complete, INCOMPLETE_BINDING),
        (request.is_fresh(now), REPLAY_STALE_ROW),  # REG-RP-08
        (bound, NONCE_UNBOUND),  # REG-RP-04
    )
    return tuple(code for holds, code in objections if not holds)


def uncommitted(decision: Decision, *, known: bool) -> Decision:
    """T3 row 11: the commit of an admitted decision failed (``known``), or nobody can tell. ``resolve`` comes next.

    S1: key, nonce and row were rolled back together, so nothing of the decision's result may be shown (REG-3-08).
    """
    assert decision.admitted, "a refusal commits nothing"
    return Decision(COMMIT_FAILED if known else COMMIT_UNKNOWN, admitted=False, state=State.S1, row="T3-11")


def resolve(found: Registration | None) -> Decision:
    """What became of a key, at any age (A-96). Only ABSENT permits to issue again, and with the same key (REG-S1)."""
    if found is None:
        return Decision(ABSENT, admitted=False, state=State.S0)
    return Decision(CONSUMED, admitted=False, state=found.state, result=found, prior=found)


class Readback(msgspec.Struct, frozen=True, kw_only=True):
    """What the verifier's own connection found under a key after the commit."""

    registrations: tuple[Registration, ...]
    nonce_consumed_by: str | None


def verify(readback: Readback | None) -> VerifyStatus:
    """The paired verifier (A-92). None means that it could not read, which proves nothing: PENDING, never PASS."""
    if readback is None:
        return VerifyStatus.PENDING
    if len(readback.registrations) != 1:
        return VerifyStatus.FAIL
    (row,) = readback.registrations
    request = _request_of(row)
    holds = (
        row.status == DRAFT
        and request.is_complete
        and row.replay_key == request.replay_key
        and readback.nonce_consumed_by == row.logical_request_key
    )
    return VerifyStatus.PASS if holds else VerifyStatus.FAIL


def require_kept(consumed: Iterable[str], present: Container[str]) -> None:
    """The invariant behind REG-4-07: a key that was consumed is still there. Raises the fail-open's own name."""
    for key in consumed:
        if key not in present:
            raise Refused(f"the consumed record of {key!r} has disappeared", code=CONSUMED_STATE_ERASED)
