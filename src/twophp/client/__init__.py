"""The client's side: one transport, and every mutation is registered by both sides before it runs."""

from twophp.client.options import calling, carrying
from twophp.client.transports import AsyncTwoPhaseTransport, TwoPhaseTransport
from twophp.core.errors import Advice, PhaseError

__all__ = [
    "Advice",
    "AsyncTwoPhaseTransport",
    "PhaseError",
    "TwoPhaseTransport",
    "calling",
    "carrying",
]
