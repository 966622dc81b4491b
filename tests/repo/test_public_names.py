"""What users may import. Changing this table is changing the public API: say so in CHANGELOG.md."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "twophp": [
        "ConstraintViolation",
        "Head",
        "JsonFormatter",
        "KeyRing",
        "Policy",
        "Principal",
        "Quota",
        "RunningIntent",
        "Transaction",
        "TwoPHPError",
        "Unauthenticated",
        "__version__",
        "anonymous",
        "bearer_jwt",
        "current_intent",
        "dev_ephemeral_key",
        "fresh_credential",
        "hmac_guard",
        "late_confirm_signature",
        "mutual_tls",
        "scope_user",
    ],
    "twophp.client": [
        "Advice",
        "AsyncTwoPhaseTransport",
        "CallbackReceiver",
        "Evidence",
        "PhaseError",
        "Reconciliation",
        "Resolved",
        "TwoPhaseTransport",
        "calling",
        "carrying",
        "classify",
    ],
    "twophp.client.requests": ["TwoPhaseAdapter"],
    "twophp.obligations": [
        "ERRORS",
        "EVENTS",
        "FLOWS",
        "AsyncGuard",
        "AsyncObligationTracker",
        "AuditLine",
        "BudgetExhausted",
        "Decision",
        "Effect",
        "Guard",
        "LeakReport",
        "Obligation",
        "ObligationError",
        "ObligationTracker",
        "Scanned",
        "StaleToken",
        "State",
        "Statement",
        "Token",
        "UnknownFlow",
        "as_json_line",
        "check_chain",
    ],
    "twophp.registrar": [
        "AsyncRegistrar",
        "Compensation",
        "CompensationDecision",
        "Decision",
        "Registrar",
        "Registration",
        "RegistrationRequest",
        "State",
        "Status",
        "SurfaceReport",
        "VerifyStatus",
        "evaluate_surface",
        "select_surface",
    ],
    "twophp.asgi": [
        "CORS_ALLOW_HEADERS",
        "CORS_EXPOSE_HEADERS",
        "BoundObligations",
        "EgressRules",
        "ExposeFields",
        "Hooks",
        "Intent",
        "Outgoing",
        "PhaseEvent",
        "ReconcileResult",
        "Tries",
        "TwoPhaseMiddleware",
        "obligation_rules",
        "on_phase",
    ],
}


@pytest.mark.parametrize(("module", "names"), PUBLIC.items())
def test_the_public_names_are_these(module: str, names: list[str]) -> None:
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(names)
    assert [name for name in names if not hasattr(found, name)] == []
