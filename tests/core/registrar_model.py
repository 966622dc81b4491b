"""The registrar's contract once more: a ledger that compares what was meant field by field and never hashes.

``World`` is a registrar small enough to read: it gathers the facts, asks ``decide``, and writes what was admitted. The
model beside it answers from the prose of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from twophp.core.registrar import Decision, Facts, decide, require_kept, resolve, uncommitted
from twophp.core.registration import Nonce, Registration, RegistrationRequest, VerifyStatus


@dataclass
class Known:
    """What the model remembers of a consumed key."""

    meant: tuple[str, ...]
    nonce: str
    attempt: str
    since: int  # A running number: who came before whom.


@dataclass
class World:
    now: int = 1_000
    steps: int = 0
    gate_open: bool = True
    surface_fit: bool = True
    rows: dict[str, Registration] = field(default_factory=dict)
    nonces: dict[str, Nonce] = field(default_factory=dict)
    effects: dict[tuple[str, ...], str] = field(default_factory=dict)
    model: dict[str, Known] = field(default_factory=dict)
    answered: set[tuple[str, str]] = field(default_factory=set)

    def issue_nonce(self, owner: str, valid_for: int) -> str:
        name = f"n{len(self.nonces)}"
        self.nonces[name] = Nonce(name, owner, self.now, self.now + valid_for)
        return name

    def register(
        self, request: RegistrationRequest, *, began: int, crashes: bool = False, fenced: bool = False
    ) -> Decision:
        """One attempt that began at step ``began`` and decides now; ``crashes`` loses it before its commit."""
        self.steps += 1
        known = self.model.get(request.logical_request_key)
        raced = known is not None and known.since > began
        decision = decide(request, self.facts(request, raced=raced, fenced=fenced), self.now)
        code, shown = self.expected(request, raced=raced, fenced=fenced)
        assert (decision.code, decision.admitted) == (code, code == "registered"), request
        assert decision.prior == (self.rows[request.logical_request_key] if shown else None)
        self.answered.add((decision.row, decision.code))
        if decision.admitted and crashes:
            assert uncommitted(decision, known=False).state == "S1"
            assert resolve(self.rows.get(request.logical_request_key)).code == "ABSENT"
        elif decision.admitted:
            self.write(request, decision)
        self.check()
        return decision

    def facts(self, request: RegistrationRequest, *, raced: bool, fenced: bool) -> Facts:
        return Facts(
            gate_open=self.gate_open,
            surface_fit=self.surface_fit,
            consumed=self.rows.get(request.logical_request_key),
            raced=raced,
            fenced=fenced,
            nonce=self.nonces.get(request.authorization_nonce),
            effect_elsewhere=self.effects.get(effect_of(request), request.logical_request_key)
            != request.logical_request_key,
        )

    def write(self, request: RegistrationRequest, decision: Decision) -> None:
        """The transaction: consume row, inert row and nonce, each under its own unique constraint."""
        key, nonce = request.logical_request_key, request.authorization_nonce
        assert decision.result is not None
        assert key not in self.rows, "the logical key was consumed twice"
        assert all(row.replay_key != decision.result.replay_key for row in self.rows.values())
        assert self.nonces[nonce].consumed_by is None, "the nonce was consumed twice"
        assert effect_of(request) not in self.effects, "the effect was made twice"
        self.rows[key] = decision.result
        self.nonces[nonce] = msgspec.structs.replace(self.nonces[nonce], consumed_by=key)
        self.effects[effect_of(request)] = key
        self.model[key] = Known(meant_by(request), nonce, request.attempt_id, self.steps)

    def verified(self, key: str, status: VerifyStatus) -> None:
        if self.rows[key].verify_status is VerifyStatus.PENDING:
            self.rows[key] = msgspec.structs.replace(self.rows[key], verify_status=status)

    def expected(self, request: RegistrationRequest, *, raced: bool, fenced: bool) -> tuple[str, bool]:
        """The contract's answer, and whether the prior result goes with it."""
        if not (self.gate_open and self.surface_fit):
            return "REGISTRATION_HOLD", False
        if "" in (*meant_by(request), request.authorization_nonce, request.attempt_id):
            return "incomplete_binding", False
        known = self.model.get(request.logical_request_key)
        fresh = (request.issued_at or 0) <= self.now < (request.valid_until or 10**15)
        if known is None:
            return "attempt_fenced" if fenced else self.expected_of_new(request, fresh=fresh), False
        if known.meant != meant_by(request):
            return "REPLAY_DUPLICATE", False
        return expected_of_known(known, request, fresh=fresh, raced=raced), True

    def expected_of_new(self, request: RegistrationRequest, *, fresh: bool) -> str:
        nonce = self.nonces.get(request.authorization_nonce)
        if not fresh:
            return "REPLAY_STALE_ROW"
        if nonce is not None and any(known.nonce == nonce.authorization_nonce for known in self.model.values()):
            return "REPLAY_NONCE_CONSUMED"
        if nonce is None or nonce.owner_or_approval_binding != request.owner_or_approval_binding:
            return "NONCE_UNBOUND"
        if not nonce.valid_from <= self.now < nonce.valid_until:
            return "NONCE_UNBOUND"
        return "REPLAY_DUPLICATE" if effect_of(request) in self.effects else "registered"

    def check(self) -> None:
        """What was consumed stays consumed, once per key, per effect and per nonce."""
        require_kept(self.model, self.rows)
        spent = [nonce.consumed_by for nonce in self.nonces.values() if nonce.consumed_by is not None]
        assert sorted(spent) == sorted(self.rows) == sorted(self.effects.values())
        assert all(resolve(row).state in {"S2", "S3", "registered-closed"} for row in self.rows.values())


def expected_of_known(known: Known, request: RegistrationRequest, *, fresh: bool, raced: bool) -> str:
    """The key was consumed by this very request: every answer carries the prior result."""
    own_nonce = known.nonce == request.authorization_nonce
    if own_nonce and not fresh:
        return "REPLAY_STALE_ROW"
    if raced:
        return "ATTEMPT_COLLISION"
    if not own_nonce:
        return "REPLAY_DUPLICATE"
    return "prior_result" if known.attempt == request.attempt_id else "REPLAY_ATTEMPT_NO_BYPASS"


def effect_of(request: RegistrationRequest) -> tuple[str, ...]:
    """The effect of a request, independent of its logical key (A-91)."""
    return request.canonical_operation, request.canonical_target, request.deployed_artifact_hash, request.run_id


def meant_by(request: RegistrationRequest) -> tuple[str, ...]:
    """The seven fields of REG-1-14, as they are."""
    return (
        request.protocol_version,
        request.logical_request_key,
        request.canonical_operation,
        request.canonical_target,
        request.deployed_artifact_hash,
        request.owner_or_approval_binding,
        request.run_id,
    )
