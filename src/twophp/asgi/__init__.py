"""2PHP for any ASGI application: one middleware."""

from twophp.asgi.cors import CORS_ALLOW_HEADERS, CORS_EXPOSE_HEADERS, ExposeFields
from twophp.asgi.middleware import TwoPhaseMiddleware
from twophp.asgi.outgoing import Outgoing
from twophp.asgi.settings import ReconcileResult
from twophp.core.intent import Intent
from twophp.core.job import Tries
from twophp.delivery.egress import Rules as EgressRules
from twophp.delivery.hooks import Hooks, PhaseEvent, on_phase
from twophp.engine.obligations.bound import BoundObligations
from twophp.engine.obligations.rules import rules_for as obligation_rules

__all__ = [
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
]
