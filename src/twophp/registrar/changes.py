"""What the registrar asks of its store: the keys to read, and the pure function that decides over them.

Each function returns both. Facts are gathered inside the transaction, the rules of ``core`` decide, and what was
admitted is written as rows that belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from twophp.core import compensation, registrar
from twophp.core.compensation import CompensationDecision, CompensationFacts
from twophp.core.errors import Refused
from twophp.core.records import JournalEvent, Key, Record
from twophp.core.registrar import Facts, Look
from twophp.core.registrar_records import (
    GATE,
    Compensated,
    Failure,
    Gate,
    Inert,
    KeyFence,
    NonceIssue,
    NonceUse,
    Unverified,
    Verification,
    by_compensation,
    by_consumed,
    by_effect,
    by_inert,
    by_key_fence,
    by_nonce,
    by_nonce_use,
    by_passed_compensation,
    by_verified,
    compensation_of,
    consumed_from,
    effect_run_id,
    nonce_of,
    registration_of,
)
from twophp.core.registration import CompensationRequest, Nonce, Registration, RegistrationRequest, State, VerifyStatus
from twophp.core.rulebook import CONSUMED_STATE_ERASED
from twophp.ports import Change, Decide, Put, Records

KIND: Final = "registration"

Command: TypeAlias = tuple[tuple[Key, ...], Decide]


def registering(
    request: RegistrationRequest, look: Look, *, was_free: bool, surface_fit: bool, strict: bool
) -> Command:
    """T3, and for row 10 the one transaction: consume row, inert row, nonce (REG-3-01, A-86)."""
    run_id = effect_run_id(request, strict=strict)
    effect = by_effect(request.canonical_operation, request.canonical_target, request.deployed_artifact_hash, run_id)
    keys = (*_keys_of(request.logical_request_key), *_keys_of_nonce(request.authorization_nonce), effect, GATE)

    def decide(records: Records) -> Change:
        found = _found(records, request.logical_request_key)
        elsewhere = records.get(effect)
        facts = Facts(
            gate_open=_is_open(records),
            surface_fit=surface_fit,
            consumed=found,
            raced=was_free,  # Means nothing while the key is free.
            fenced=_is_fenced(records, request.logical_request_key, look),
            nonce=_nonce(records, request.authorization_nonce),
            effect_elsewhere=elsewhere is not None and elsewhere.logical_request_key != request.logical_request_key,
        )
        decision = registrar.decide(request, facts, records.now)
        if not decision.admitted or decision.result is None:
            return Change(answer=decision)
        return Change(answer=decision, puts=_registered(decision.result, run_id))

    return keys, decide


def _registered(row: Registration, run_id: str) -> tuple[Put, ...]:
    key, at = row.logical_request_key, row.registered_at
    line = JournalEvent(KIND, key, "registered", State.S0, State.S2, at, at, detail=row.replay_key)
    return (
        Put(record=consumed_from(row, run_id), journal=(line,)),
        Put(record=Inert(key, row.replay_key, at, row.status)),
        Put(record=NonceUse(row.authorization_nonce, key, "registration", at)),
    )


def verifying(one: Unverified, status: VerifyStatus) -> Command:
    """Write the verdict, unless there is one: the first counts. Answers what counts."""
    passed = by_passed_compensation(one.logical_request_key)
    keys = (by_verified(one.about, one.subject), passed)

    def decide(records: Records) -> Change:
        known = records.get(keys[0])
        if known is not None:
            return Change(answer=known.verdict)
        # of several compensations under way one passes.
        late = one.about == "compensation" and records.get(passed) is not None
        verdict = VerifyStatus.FAIL if late else status
        row = Verification(one.about, one.subject, one.logical_request_key, verdict, records.now)
        return Change(answer=verdict, puts=(Put(record=row, journal=(_verdict_line(row),)),))

    return keys, decide


def _verdict_line(row: Verification) -> JournalEvent:
    after = State.CLOSED if row.verdict is VerifyStatus.PASS else State.S3
    before = State.S2 if row.about == "registration" else State.S3
    after = after if row.about == "registration" else State.S3
    event = f"{row.about}_{row.verdict.lower()}"
    return JournalEvent(KIND, row.logical_request_key, event, before, after, row.verified_at, row.verified_at)


def resolving(key: str) -> Command:
    """Under the write lock: consumed, or absent and fenced, so that no earlier attempt can still come through (A-96).

    On hold nothing is written (REG-7-06), and nothing has to be: no attempt passes, and those under way are fenced by
    the very change of the gate that would let them.
    """
    keys = (*_keys_of(key), GATE)

    def decide(records: Records) -> Change:
        found = _found(records, key)
        answer = registrar.resolve(found)
        if found is not None or not _is_open(records):
            return Change(answer=answer)
        fence: KeyFence | None = records.get(by_key_fence(key))
        version = 1 if fence is None else fence.version + 1
        line = JournalEvent(KIND, key, "resolved_absent", State.S0, State.S0, records.now, records.now, fence=version)
        return Change(answer=answer, puts=(Put(record=KeyFence(key, records.now, version), journal=(line,)),))

    return keys, decide


def compensating(request: CompensationRequest, *, surface_fit: bool) -> Command:
    """A-98, and what it admits: the compensation and its nonce. The registration's rows are not touched."""
    key, nonce = request.logical_request_key, request.authorization_nonce
    own, passed = by_compensation(nonce), by_passed_compensation(key)
    own_verdict = by_verified("compensation", nonce)
    keys = (*_keys_of(key), *_keys_of_nonce(nonce), own, own_verdict, passed, GATE)

    def decide(records: Records) -> Change:
        row: Compensated | None = records.get(own)
        mine = None if row is None else compensation_of(row, records.get(own_verdict))
        facts = CompensationFacts(
            gate_open=_is_open(records),
            surface_fit=surface_fit,
            consumed=_found(records, key),
            nonce=_nonce(records, nonce),
            own=mine,
            has_passed=records.get(passed) is not None,
        )
        decision = compensation.decide(request, facts, records.now)
        return Change(answer=decision, puts=_compensated(decision))

    return keys, decide


def _compensated(decision: CompensationDecision) -> tuple[Put, ...]:
    row = decision.result
    if not decision.admitted or row is None:
        return ()
    key, nonce, at = row.logical_request_key, row.authorization_nonce, row.compensated_at
    line = JournalEvent(KIND, key, "compensated", State.S3, State.S3, at, at)
    record = Compensated(key, row.owner_or_approval_binding, nonce, row.attempt_id, at)
    return Put(record=record, journal=(line,)), Put(record=NonceUse(nonce, key, "compensation", at))


def issuing(value: str, owner_or_approval_binding: str, after_ms: int, valid_for_ms: int) -> Command:
    """A nonce, bound to its envelope and its window from birth (REG-1-08)."""

    def decide(records: Records) -> Change:
        start = records.now + after_ms
        issue = NonceIssue(value, owner_or_approval_binding, start, start + valid_for_ms)
        return Change(answer=value, puts=(Put(record=issue),))

    return (by_nonce(value),), decide


def gating(*, is_open: bool, authority_ref: str, reason: str) -> Command:
    """Open the gate or close it. As it is already: nothing changes. Answers the gate as it is then."""

    def decide(records: Records) -> Change:
        gate: Gate | None = records.get(GATE)
        if gate is None and not is_open:
            return Change(answer=None)  # Closed is how it begins.
        if gate is not None and gate.is_open == is_open and (not is_open or gate.authority_ref == authority_ref):
            return Change(answer=gate)
        after = Gate(is_open, authority_ref, reason, records.now, 1 if gate is None else gate.version + 1)
        line = JournalEvent(
            "gate",
            after.name,
            "opened" if is_open else "held",
            _gate_state(gate),
            _gate_state(after),
            records.now,
            records.now,
            detail=authority_ref or reason,
        )
        return Change(answer=after, puts=(Put(record=after, journal=(line,)),))

    return (GATE,), decide


def _gate_state(gate: Gate | None) -> str:
    return "OPEN" if gate is not None and gate.is_open else "HOLD"


def noting(failure: Callable[[int], Failure]) -> Command:
    """A line of the failure audit, stamped with the store's time."""
    return (), lambda records: Change(answer=None, puts=(Put(record=failure(records.now)),))


# Facts, read inside the transaction.


def _keys_of(key: str) -> tuple[Key, ...]:
    return by_consumed(key), by_inert(key), by_verified("registration", key), by_key_fence(key)


def _keys_of_nonce(nonce: str) -> tuple[Key, ...]:
    return by_nonce(nonce), by_nonce_use(nonce)


def _found(records: Records, key: str) -> Registration | None:
    """The registration under a key. An inert row whose consume row is gone is the fail-open itself (REG-4-07)."""
    consumed = records.get(by_consumed(key))
    if consumed is not None:
        return registration_of(consumed, records.get(by_verified("registration", key)))
    if records.get(by_inert(key)) is not None or records.get(by_verified("registration", key)) is not None:
        raise Refused(f"the consumed record of {key!r} has disappeared", code=CONSUMED_STATE_ERASED)
    return None


def _nonce(records: Records, value: str) -> Nonce | None:
    issue = records.get(by_nonce(value))
    return None if issue is None else nonce_of(issue, records.get(by_nonce_use(value)))


def _is_open(records: Records) -> bool:
    gate: Gate | None = records.get(GATE)
    return gate is not None and gate.is_open


def _is_fenced(records: Records, key: str, look: Look) -> bool:
    """Whether anything stands between this attempt's beginning and now: a resolve, or a gate that closed and opened."""
    now: list[Record | None] = [records.get(by_key_fence(key)), records.get(GATE)]
    versions = [0 if record is None else record.version for record in now]
    return versions != [look.fence, look.gate]
