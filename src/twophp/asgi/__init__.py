"""2PHP for any ASGI application: one middleware."""

from twophp.asgi.middleware import TwoPhaseMiddleware
from twophp.asgi.outgoing import Outgoing
from twophp.engine.hooks import Hooks, on_phase

__all__ = ["Hooks", "Outgoing", "TwoPhaseMiddleware", "on_phase"]
