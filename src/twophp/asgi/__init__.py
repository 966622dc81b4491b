"""2PHP for any ASGI application: one middleware."""

from twophp.asgi.middleware import TwoPhaseMiddleware

__all__ = ["TwoPhaseMiddleware"]
