"""The common parts of the registrar's two lists of rules: how a list answers, and what every request must have.

A list is a tuple of rules in their order. The first rule that holds answers. Only one rule admits, and it checks every
condition itself. So if a rule is removed, a request falls off the end and is refused; it can never be let in by that.

registrar.py holds the list for registrations (T3), compensation.py the one for compensations (A-98).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from twophp.core.errors import Refused
from twophp.core.records import Instant
from twophp.core.registration import CompensationRequest, Nonce, Registration, RegistrationRequest, State

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
ATTEMPT_FENCED: Final = "attempt_fenced"
VERIFY_FAILED: Final = "verify_failed"
COMMIT_FAILED: Final = "commit_failed"
COMMIT_UNKNOWN: Final = "commit_unknown"
CONSUMED: Final = "CONSUMED"  # The two answers of resolve, spelled as A-96 spells them.
ABSENT: Final = "ABSENT"
COMPENSATED: Final = "compensated"
NOT_CONSUMED: Final = "not_consumed"
NOT_COMPENSABLE: Final = "not_compensable"

CODES: Final[Mapping[str, str]] = {
    REGISTERED: "the key is consumed and the inert row written; ``state`` says what the verifier made of it",
    PRIOR_RESULT: "an exact retry: here is what was decided",
    REPLAY_ATTEMPT_NO_BYPASS: "the same request under another attempt: here is what was decided",
    REPLAY_DUPLICATE: "the key was consumed by another request or another nonce, or the effect by another key",
    REPLAY_STALE_ROW: "the request's own window is closed; what was consumed stays consumed",
    REPLAY_NONCE_CONSUMED: "the nonce was used before",
    NONCE_UNBOUND: "the nonce is unknown, of another envelope, or outside its window",
    ATTEMPT_COLLISION: "another attempt won while this one was under way: here is the winner's result",
    ATTEMPT_FENCED: "since this attempt began, resolve has said ABSENT: it lost, and nothing is there",
    INCOMPLETE_BINDING: "a field that binds, allows or identifies is empty or no text",
    REGISTRATION_HOLD: "the gate is closed, or the surface is not proven fit; nothing was written",
    VERIFY_FAILED: "written, and rejected by the verifier (S3): compensation is all that is left",
    COMMIT_FAILED: "the commit failed and everything was rolled back (S1): resolve, then issue again",
    COMMIT_UNKNOWN: "it is unknown whether the commit is durable (S1): resolve before anything else",
    CONSUMED: "resolve: the key is consumed, and this is by what",
    ABSENT: "resolve: nothing is there, and no earlier attempt can come through any more",
    COMPENSATED: "compensate: a compensation was added; the registration stays rejected",
    NOT_CONSUMED: "compensate: nothing stands under the key",
    NOT_COMPENSABLE: "compensate: the registration was not rejected",
    REPLAY_SURFACE_NOT_FIT: "the verdict on a surface, and the cause of a hold",
    CONSUMED_STATE_ERASED: "raised: a consumed record has disappeared, which must never happen",
}
"""Every code, and what it says."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The store's facts, read inside the transaction that decides. The defaults, with no fact known, refuse."""

    gate_open: bool = False
    surface_fit: bool = False
    consumed: Registration | None = None  # The record under the logical key.
    nonce: Nonce | None = None  # The record of the presented nonce.


RequestT = TypeVar("RequestT", bound="RegistrationRequest | CompensationRequest")
FactsT = TypeVar("FactsT", bound=Facts)
ResultT = TypeVar("ResultT")


class Case(msgspec.Struct, Generic[RequestT, FactsT], frozen=True, kw_only=True):
    """A request among its facts, with the comparisons that rules are made of."""

    request: RequestT
    facts: FactsT
    now: Instant

    @property
    def may_proceed(self) -> bool:
        """REGISTRATION_CAN_PROCEED: fit proven and the gate opened on top of it (A-94)."""
        return self.facts.gate_open and self.facts.surface_fit

    @property
    def is_fresh(self) -> bool:
        """The request's own window is open."""
        return self.request.is_fresh(self.now)

    @property
    def nonce_is_spent(self) -> bool:
        """The presented nonce was consumed, by any key and for any purpose."""
        return self.facts.nonce is not None and self.facts.nonce.consumed_by is not None

    @property
    def nonce_is_bound(self) -> bool:
        """The presented nonce exists, and stands for this envelope now."""
        return self.facts.nonce is not None and self.facts.nonce.authorises(self.request, self.now)

    @property
    def is_authorised(self) -> bool:
        """What any effect needs of its request, without trusting that another rule has looked (REG-3-05)."""
        return (
            self.may_proceed
            and self.request.is_complete
            and self.is_fresh
            and self.nonce_is_bound
            and not self.nonce_is_spent
        )


CaseT = TypeVar("CaseT")
CaseT_contra = TypeVar("CaseT_contra", contravariant=True)


class Rule(msgspec.Struct, Generic[CaseT_contra], frozen=True, kw_only=True):
    """One row of a list. ``state`` None means: the record's own state if it is disclosed, else none is given."""

    row: str
    says: str
    when: Callable[[CaseT_contra], bool]
    code: str
    requirements: tuple[str, ...]
    discloses: bool = False  # The prior record is part of the answer.
    admits: bool = False
    state: State | None = None
    cause: str | None = None


class Answer(msgspec.Struct, Generic[ResultT], frozen=True):
    """The answer. ``admitted`` means that this very call has an effect.

    ``result`` is what stands there when the call is over, ``prior`` what stood there before it; both only where the
    rule discloses them.
    """

    code: str
    admitted: bool
    state: State | None  # None where even the state would tell a stranger something.
    result: ResultT | None = None
    prior: ResultT | None = None
    cause: str | None = None  # The constraint behind the code.
    row: str = ""  # The row of the list that answered.


def entry_rules(gate_row: str, shape_row: str) -> tuple[Rule[Case[Any, Any]], ...]:
    """How either list begins: nothing passes while the registrar is on hold, and nothing that is incomplete."""
    return (
        Rule(
            row=gate_row,
            says="the surface is not proven fit",
            when=lambda case: not case.facts.surface_fit,
            code=REGISTRATION_HOLD,
            cause=REPLAY_SURFACE_NOT_FIT,
            requirements=("REG-RP-10", "REG-6-09", "REG-7-05"),
        ),
        Rule(
            row=gate_row,
            says="the gate is closed",
            when=lambda case: not case.facts.gate_open,
            code=REGISTRATION_HOLD,
            requirements=("REG-7-05", "A-94"),
        ),
        Rule(
            row=shape_row,
            says="a field that binds, allows or identifies is empty",
            when=lambda case: not case.request.is_complete,
            code=INCOMPLETE_BINDING,
            requirements=("A-85", "A-100"),
        ),
    )


def first_match(rules: Iterable[Rule[CaseT]], case: CaseT) -> Rule[CaseT]:
    """The rule that answers. Falling off the end is our bug, and refuses."""
    for rule in rules:
        if rule.when(case):
            return rule
    raise Refused("no rule answers this request", code="no_rule")


def state_said(rule: Rule[CaseT], consumed: Registration | None) -> State | None:
    """The rule's own state, or the record's where the record is disclosed."""
    if rule.state is None and rule.discloses and consumed is not None:
        return consumed.state
    return rule.state
