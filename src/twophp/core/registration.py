"""The registrar's values: a consumed logical request with its inert row, the nonces, the compensations.

The rules about them are in registrar.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from twophp.core import identity
from twophp.core.records import Instant

DRAFT: Final = "draft"
"""The one status a registration row may have: inert. Nothing reads it as active (A-97)."""


class Binding(StrEnum):
    """How a presented replay key compares with the one that is recorded under the same logical key."""

    FREE = "FREE"
    SAME = "SAME"
    OTHER = "OTHER"


def compare_bindings(prior: str | None, presented: str) -> Binding:
    """Whether a logical key is free, used by this very request, or used by another (REG-1-04, A-82)."""
    if prior is None:
        return Binding.FREE
    return Binding.SAME if prior == presented else Binding.OTHER


class State(StrEnum):
    """The state of a logical key (the registrar contract, section 3)."""

    S0 = "S0"  # Nothing is recorded.
    S1 = "S1"  # The commit failed, or its outcome is unknown: resolve before doing anything else.
    S2 = "S2"  # Consumed, with its inert row; there is no verdict of the verifier yet.
    S3 = "S3"  # The verifier rejected it: consumed all the same, and only compensation is left.
    S4 = "S4"  # Another attempt won.
    CLOSED = "registered-closed"


class VerifyStatus(StrEnum):
    """The paired verifier's verdict. An error of the verifier leaves PENDING and never makes PASS (A-92)."""

    PENDING = "PENDING"
    PASS = "PASS"  # noqa: S105 - A verdict, not a secret.
    FAIL = "FAIL"


class Step(StrEnum):
    """What may happen to a logical key."""

    COMMIT = "commit"
    COMMIT_FAILS = "commit fails, or nobody knows"
    COLLIDE = "another attempt wins"
    READ_WINNER = "read the winner's result"
    RESOLVE_ABSENT = "resolve says ABSENT"
    RESOLVE_CONSUMED = "resolve says CONSUMED"
    VERIFY_PASS = "verify PASS"  # noqa: S105 - A verdict, not a secret.
    VERIFY_FAIL = "verify FAIL"
    COMPENSATE = "compensate"


STEPS: Final[Mapping[State, Mapping[Step, State]]] = {
    State.S0: {Step.COMMIT: State.S2, Step.COMMIT_FAILS: State.S1, Step.COLLIDE: State.S4},
    State.S1: {Step.RESOLVE_ABSENT: State.S0, Step.RESOLVE_CONSUMED: State.S2},
    State.S2: {Step.VERIFY_PASS: State.CLOSED, Step.VERIFY_FAIL: State.S3},
    State.S3: {Step.COMPENSATE: State.S3},
    State.S4: {Step.READ_WINNER: State.S2},
    State.CLOSED: {},
}
"""Every step there is. None leads from a consumed key back to S0: consumed is for ever within the horizon."""

_STATE_AFTER_VERIFY: Final[Mapping[VerifyStatus, State]] = {
    VerifyStatus.PENDING: State.S2,
    VerifyStatus.PASS: STEPS[State.S2][Step.VERIFY_PASS],
    VerifyStatus.FAIL: STEPS[State.S2][Step.VERIFY_FAIL],
}


class Meant(msgspec.Struct, frozen=True):
    """What a registration is about. A request brings these nine fields, and every row that follows from it has them."""

    protocol_version: str
    logical_request_key: str
    canonical_operation: str
    canonical_target: str
    deployed_artifact_hash: str
    owner_or_approval_binding: str
    run_id: str
    authorization_nonce: str
    attempt_id: str  # Noted; it is in no key (REG-1-12).

    def meant(self) -> tuple[str, str, str, str, str, str, str, str, str]:
        """The nine, in order, for the next row."""
        return (
            self.protocol_version,
            self.logical_request_key,
            self.canonical_operation,
            self.canonical_target,
            self.deployed_artifact_hash,
            self.owner_or_approval_binding,
            self.run_id,
            self.authorization_nonce,
            self.attempt_id,
        )

    def digest(self) -> str:
        """The replay key as it must be: neither nonce nor attempt enters it. Raises Refused when a field is empty."""
        return identity.replay_key(**{name: getattr(self, name) for name in Meant.__struct_fields__[:7]})

    @property
    def is_complete(self) -> bool:
        """Whether every field that binds, allows or identifies has a value (A-85)."""
        return all(map(is_text, self.meant()))


class RegistrationRequest(Meant, frozen=True):
    """What a client asks for. ``issued_at`` and ``valid_until`` bound its freshness; None sets no bound."""

    issued_at: Instant | None = None
    valid_until: Instant | None = None

    @property
    def replay_key(self) -> str:
        """The digest of what is meant; raises Refused when a bound field is empty."""
        return self.digest()

    @property
    def is_complete(self) -> bool:
        """Whether every field has a value that can be judged: those that bind, allow or identify, and the window."""
        return all(map(is_text, self.meant())) and _is_window(self.issued_at, self.valid_until)

    def is_fresh(self, now: Instant) -> bool:
        """Whether a *new* request may enter now. It says nothing about a key that is consumed (REG-4-01)."""
        return _within(self.issued_at, now, self.valid_until)


class Registration(Meant, frozen=True):
    """The consumed record and its inert row, written together and never changed; only the verifier adds its word."""

    replay_key: str
    registered_at: Instant
    status: str = DRAFT
    verify_status: VerifyStatus = VerifyStatus.PENDING

    @property
    def state(self) -> State:
        """S2, registered-closed or S3: a consumed key is never in another state."""
        return _STATE_AFTER_VERIFY[self.verify_status]


class CompensationRequest(msgspec.Struct, frozen=True):
    """A wish to make up for a registration that the verifier rejected. It needs a nonce of its own (REG-3-14)."""

    logical_request_key: str
    owner_or_approval_binding: str
    authorization_nonce: str
    attempt_id: str
    issued_at: Instant | None = None
    valid_until: Instant | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every field that binds, allows or identifies has a value."""
        texts = all(is_text(getattr(self, field)) for field in self.__struct_fields__[:4])
        return texts and _is_window(self.issued_at, self.valid_until)

    def is_fresh(self, now: Instant) -> bool:
        """Whether the request's own window is open."""
        return _within(self.issued_at, now, self.valid_until)


class Nonce(msgspec.Struct, frozen=True):
    """An authority's credential, bound to its envelope and its window from birth (REG-1-08)."""

    authorization_nonce: str
    owner_or_approval_binding: str
    valid_from: Instant
    valid_until: Instant
    consumed_by: str | None = None  # The logical key that used it.

    def authorises(self, request: RegistrationRequest | CompensationRequest, now: Instant) -> bool:
        """Whether it stands for this very envelope at this very time. Whether it was used before is another matter."""
        return (
            self.authorization_nonce == request.authorization_nonce
            and self.owner_or_approval_binding == request.owner_or_approval_binding
            and _within(self.valid_from, now, self.valid_until)
        )


def _within(start: Instant | None, now: Instant, end: Instant | None) -> bool:
    """Half-open, as every window is here (A-26)."""
    return (start is None or start <= now) and (end is None or now < end)


def _is_window(*ends: object) -> bool:
    """None sets no bound. What is no number has no place in time."""
    return all(end is None or (isinstance(end, int | float) and not isinstance(end, bool)) for end in ends)


def is_text(value: object) -> bool:
    """Text that can be hashed and stored: not empty, and no half of a surrogate pair."""
    if not isinstance(value, str) or not value:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


class Compensation(msgspec.Struct, frozen=True):
    """One compensation, linked to its key by name alone: the registration's row is never touched (REG-3-15)."""

    logical_request_key: str
    owner_or_approval_binding: str
    authorization_nonce: str
    attempt_id: str
    compensated_at: Instant
    verify_status: VerifyStatus = VerifyStatus.PENDING
