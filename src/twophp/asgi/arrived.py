"""A request that is about an intent, with the words in which it is refused."""

from __future__ import annotations

import msgspec

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Scope
from twophp.asgi.shapes import Shape
from twophp.core.phase import IntentDecision
from twophp.core.quota import EXCEEDED
from twophp.core.records import Instant
from twophp.identity.head import Head


class Arrived(msgspec.Struct):
    """A request that opted in. Its ``Head`` is made at its first use: most services never use it."""

    scope: Scope
    method: str
    path: str  # Raw: still percent-encoded, without the query.
    shape: Shape
    at: Instant
    head: Head | None = None
    is_keyed: bool = False  # It has an Idempotency-Key and no field of ours.

    def refused(self, code: str, *, retry_after_s: int | None = None) -> Answer:
        """A refusal in the client's own words: of 2PHP, or of the Idempotency-Key."""
        refuse = answers.refused_to_key if self.is_keyed else answers.refused
        return refuse(code, retry_after_s=retry_after_s)

    def refused_by(self, decision: IntentDecision) -> Answer:
        """The refusal of a registration."""
        assert decision.code is not None
        over = decision.verdict is EXCEEDED  # There is room again when the next intent ends or expires.
        return self.refused(decision.code, retry_after_s=answers.RETRY_AFTER_S if over else None)
