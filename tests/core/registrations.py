"""Short ways to say what the registrar's tests say often."""

from __future__ import annotations

from typing import Any

import msgspec

from twophp.core.registrar import Facts, decide
from twophp.core.registration import Nonce, Registration, RegistrationRequest, VerifyStatus

T0 = 10_000
STALE_AT = T0 + 1_000
NONCE_ENDS_AT = T0 + 5_000

REQUEST = RegistrationRequest(
    protocol_version="RS/1",
    logical_request_key="lrk-1",
    canonical_operation="register",
    canonical_target="dot/artifact-1",
    deployed_artifact_hash="sha256:aa",
    owner_or_approval_binding="owner-1/approval-7",
    run_id="run-1",
    authorization_nonce="n-1",
    attempt_id="a-1",
    issued_at=T0,
    valid_until=STALE_AT,
)
NONCE = Nonce("n-1", "owner-1/approval-7", T0, NONCE_ENDS_AT)
SPENT = Nonce("n-1", "owner-1/approval-7", T0, NONCE_ENDS_AT, consumed_by="lrk-1")
READY = Facts(gate_open=True, surface_fit=True, nonce=NONCE)

BOUND_FIELDS = (
    "protocol_version",
    "canonical_operation",
    "canonical_target",
    "deployed_artifact_hash",
    "owner_or_approval_binding",
    "run_id",
)


def asks(**changes: Any) -> RegistrationRequest:
    return msgspec.structs.replace(REQUEST, **changes)


def knows(**changes: Any) -> Facts:
    return msgspec.structs.replace(READY, **changes)


def registered(verify_status: VerifyStatus = VerifyStatus.PENDING) -> Registration:
    result = decide(REQUEST, READY, T0).result
    assert result is not None
    return msgspec.structs.replace(result, verify_status=verify_status)


def consumed(verify_status: VerifyStatus = VerifyStatus.PASS, **changes: Any) -> Facts:
    """The facts after REQUEST was admitted, its nonce spent with it."""
    return knows(consumed=registered(verify_status), nonce=SPENT, **changes)
