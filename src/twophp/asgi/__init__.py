"""2PHP for any ASGI application: one middleware."""

from twophp.asgi.cors import CORS_ALLOW_HEADERS, CORS_EXPOSE_HEADERS, ExposeFields
from twophp.asgi.middleware import TwoPhaseMiddleware
from twophp.asgi.outgoing import Outgoing
from twophp.core.job import Tries
from twophp.delivery.egress import Rules as EgressRules
from twophp.delivery.hooks import Hooks, on_phase
from twophp.engine.obligations.rules import rules_for as obligation_rules

__all__ = [
    "CORS_ALLOW_HEADERS",
    "CORS_EXPOSE_HEADERS",
    "EgressRules",
    "ExposeFields",
    "Hooks",
    "Outgoing",
    "Tries",
    "TwoPhaseMiddleware",
    "obligation_rules",
    "on_phase",
]
