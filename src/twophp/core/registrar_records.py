"""What the registrar makes durable, as records of a store.

Nearly all of them are written once: no later version exists, and no store drops them. What changes about a
registration is said by a further record (a verdict, a compensation), never by the old one. Two records have versions,
because they are not facts about a request but the registrar's own condition: the gate, and the fence that ``resolve``
puts before attempts that began earlier. What they were before is in the journal.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from twophp.core import identity
from twophp.core.records import Instant, Key
from twophp.core.registration import (
    DRAFT,
    Compensation,
    Meant,
    Nonce,
    Registration,
    RegistrationRequest,
    VerifyStatus,
)

BY_CONSUMED_KEY: Final = "consumed.logical_request_key"
BY_CONSUMED_REPLAY_KEY: Final = "consumed.replay_key"
BY_CONSUMED_NONCE: Final = "consumed.authorization_nonce"
BY_EFFECT: Final = "consumed.effect"
BY_INERT_KEY: Final = "inert.logical_request_key"
BY_NONCE: Final = "nonce.authorization_nonce"
BY_NONCE_USE: Final = "nonce_use.authorization_nonce"
BY_VERIFIED: Final = "verification.subject"
BY_PASSED_COMPENSATION: Final = "verification.compensated"
BY_COMPENSATION_NONCE: Final = "compensation.authorization_nonce"
BY_GATE: Final = "registrar_gate.name"
BY_KEY_FENCE: Final = "key_fence.logical_request_key"
BY_FAILURE: Final = "failure.id"

DOMAIN: Final = "registration"
NONCE_TAG: Final = b"twophp:nonce:1"

Purpose: TypeAlias = Literal["registration", "compensation"]


class WrittenOnce(msgspec.Struct, frozen=True, gc=False):
    """A record without a second version. Stores refuse to drop one; nothing makes it due."""

    @property
    def version(self) -> int:
        """The first and the last."""
        return 1

    @property
    def due_at(self) -> Instant | None:
        """Never."""
        return None


class Unverified(msgspec.Struct, frozen=True):
    """What waits for a verdict."""

    about: Purpose
    subject: str
    logical_request_key: str


class Consumed(Meant, WrittenOnce, frozen=True, gc=False):
    """The logical key is used up, by whom and for what. The replay surface: one row for each logical effect."""

    replay_key: str
    effect_run_id: str  # The run as far as it belongs to the effect.
    consumed_at: Instant
    domain: str = DOMAIN

    def keys(self) -> tuple[Key, ...]:
        """Each axis of uniqueness by itself (A-85, A-86, A-91)."""
        return (
            by_consumed(self.logical_request_key),
            Key(BY_CONSUMED_REPLAY_KEY, (self.replay_key,)),
            Key(BY_CONSUMED_NONCE, (self.authorization_nonce,)),
            by_effect(self.canonical_operation, self.canonical_target, self.deployed_artifact_hash, self.effect_run_id),
        )


class Inert(WrittenOnce, frozen=True, gc=False):
    """The registration's result: a draft that nothing reads as active (A-97)."""

    logical_request_key: str
    replay_key: str
    registered_at: Instant
    status: str = DRAFT

    def keys(self) -> tuple[Key, ...]:
        """One for each logical key."""
        return (by_inert(self.logical_request_key),)


class NonceIssue(WrittenOnce, frozen=True, gc=False):
    """A nonce as its authority issued it."""

    authorization_nonce: str
    owner_or_approval_binding: str
    valid_from: Instant
    valid_until: Instant

    def keys(self) -> tuple[Key, ...]:
        """By its value."""
        return (by_nonce(self.authorization_nonce),)


class NonceUse(WrittenOnce, frozen=True, gc=False):
    """A nonce is used up, by which key and for what (A-86)."""

    authorization_nonce: str
    logical_request_key: str
    used_for: Purpose
    used_at: Instant

    def keys(self) -> tuple[Key, ...]:
        """By its value: there is no second use."""
        return (by_nonce_use(self.authorization_nonce),)


class Verification(WrittenOnce, frozen=True, gc=False):
    """The paired verifier's verdict. While there is none, it is PENDING."""

    about: Purpose
    subject: str  # The logical key of a registration, the nonce of a compensation.
    logical_request_key: str
    verdict: VerifyStatus
    verified_at: Instant

    def keys(self) -> tuple[Key, ...]:
        """One verdict for each subject, and one passed compensation for each key (A-98)."""
        key = by_verified(self.about, self.subject)
        if self.about == "compensation" and self.verdict is VerifyStatus.PASS:
            return key, by_passed_compensation(self.logical_request_key)
        return (key,)


class Compensated(WrittenOnce, frozen=True, gc=False):
    """A compensation, linked to its registration by the logical key alone (REG-3-15)."""

    logical_request_key: str
    owner_or_approval_binding: str
    authorization_nonce: str
    attempt_id: str
    compensated_at: Instant

    def keys(self) -> tuple[Key, ...]:
        """By the nonce that bought it."""
        return (by_compensation(self.authorization_nonce),)


class Failure(WrittenOnce, frozen=True, gc=False):
    """A line of the failure audit: ids, codes and digests, no payload and no credential (A-93)."""

    failure_id: str
    at: Instant
    code: str
    cause: str
    row: str
    logical_request_key: str
    replay_key: str
    attempt_id: str
    nonce_digest: str

    def keys(self) -> tuple[Key, ...]:
        """By its id; it collides with nothing."""
        return (Key(BY_FAILURE, (self.failure_id,)),)


class Gate(msgspec.Struct, frozen=True, gc=False):
    """Whether anything may be registered at all, on whose word, and why not."""

    is_open: bool
    authority_ref: str
    reason: str
    changed_at: Instant
    version: int
    name: str = "registrar"

    @property
    def due_at(self) -> Instant | None:
        """Never."""
        return None

    def keys(self) -> tuple[Key, ...]:
        """There is one."""
        return (GATE,)


class KeyFence(msgspec.Struct, frozen=True, gc=False):
    """How often ``resolve`` has said that a key is absent. Attempts that began before the last time lose (A-96)."""

    logical_request_key: str
    fenced_at: Instant
    version: int

    @property
    def due_at(self) -> Instant | None:
        """Never."""
        return None

    def keys(self) -> tuple[Key, ...]:
        """One for each key that was asked about."""
        return (by_key_fence(self.logical_request_key),)


GATE: Final = Key(BY_GATE, ("registrar",))


def by_consumed(logical_request_key: str) -> Key:
    """Where a consumed key is found."""
    return Key(BY_CONSUMED_KEY, (logical_request_key,))


def by_effect(operation: str, target: str, artifact_hash: str, run_id: str) -> Key:
    """The key of an effect, under which it is found for every logical key."""
    return Key(BY_EFFECT, (operation, target, artifact_hash, run_id))


def by_inert(logical_request_key: str) -> Key:
    """Where a registration's inert row is found."""
    return Key(BY_INERT_KEY, (logical_request_key,))


def by_nonce(value: str) -> Key:
    """Where a nonce is found."""
    return Key(BY_NONCE, (value,))


def by_nonce_use(value: str) -> Key:
    """Where the use of a nonce is found."""
    return Key(BY_NONCE_USE, (value,))


def by_verified(about: Purpose, subject: str) -> Key:
    """Where a verdict is found."""
    return Key(BY_VERIFIED, (about, subject))


def by_passed_compensation(logical_request_key: str) -> Key:
    """Where the verdict on the one compensation that passed is found."""
    return Key(BY_PASSED_COMPENSATION, (logical_request_key,))


def by_compensation(nonce: str) -> Key:
    """Where a compensation is found."""
    return Key(BY_COMPENSATION_NONCE, (nonce,))


def by_key_fence(logical_request_key: str) -> Key:
    """Where a key's fence is found."""
    return Key(BY_KEY_FENCE, (logical_request_key,))


def effect_run_id(request: RegistrationRequest, *, strict: bool) -> str:
    """The run, unless the effect is meant to be the same in every run (A-91)."""
    return "" if strict else request.run_id


def consumed_from(registration: Registration, effect_run: str) -> Consumed:
    """The consume row of an admitted registration."""
    return Consumed(*registration.meant(), registration.replay_key, effect_run, registration.registered_at)


def registration_of(row: Consumed, verdict: Verification | None, status: str = DRAFT) -> Registration:
    """A consumed key as the rules see it: the row, and the verifier's word if there is one."""
    return Registration(*row.meant(), row.replay_key, row.consumed_at, status, _status(verdict))


def compensation_of(row: Compensated, verdict: Verification | None) -> Compensation:
    """A compensation as the rules see it."""
    return Compensation(
        logical_request_key=row.logical_request_key,
        owner_or_approval_binding=row.owner_or_approval_binding,
        authorization_nonce=row.authorization_nonce,
        attempt_id=row.attempt_id,
        compensated_at=row.compensated_at,
        verify_status=_status(verdict),
    )


def nonce_of(issue: NonceIssue, use: NonceUse | None) -> Nonce:
    """A nonce as the rules see it."""
    return Nonce(
        authorization_nonce=issue.authorization_nonce,
        owner_or_approval_binding=issue.owner_or_approval_binding,
        valid_from=issue.valid_from,
        valid_until=issue.valid_until,
        consumed_by=None if use is None else use.logical_request_key,
    )


def nonce_digest(value: str) -> str:
    """What is kept of a nonce that was refused: enough to see that two were the same."""
    return identity.digest(NONCE_TAG, value.encode(errors="surrogatepass"))


def _status(verdict: Verification | None) -> VerifyStatus:
    return VerifyStatus.PENDING if verdict is None else verdict.verdict
