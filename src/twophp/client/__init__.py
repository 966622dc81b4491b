"""The client's side: one transport, and every mutation is registered by both sides before it runs.

    http = httpx.Client(transport=TwoPhaseTransport(ledger="sqlite:///checkout.db", source="checkout"))

The same class serves httpx and httpx2; ``twophp.client.requests`` has the adapter for requests.
"""

from twophp.client.options import calling, carrying
from twophp.client.receiver import CallbackReceiver
from twophp.client.reconciler import Reconciliation, Resolved
from twophp.client.transports import AsyncTwoPhaseTransport, TwoPhaseTransport
from twophp.core.call import Evidence, classify
from twophp.core.errors import Advice, PhaseError

__all__ = [
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
]
