"""The server side of 2PHP for WSGI applications: the same middleware, with a thread in place of an event loop.

Here live the bridge from a WSGI request to the ASGI middleware and back, and the factory for Django's ``MIDDLEWARE``.
Every rule, record and answer is the ASGI middleware's. Nothing here knows a phase, a policy or a store.
"""

from twophp.wsgi.middleware import TwoPhaseMiddleware

__all__ = ["TwoPhaseMiddleware"]
