"""Short ways to say what the phase tests say often."""

from __future__ import annotations

from typing import Any

from twophp.core.intent import Intent, Mode, Phase
from twophp.core.intent_commands import Confirm, Register, Settle, Tick
from twophp.core.phase import IntentDecision, decide
from twophp.core.policy import Policy

T0 = 1_000_000
TTL, DELTA = 30_000, 5_000
DEADLINE, ABANDONED = T0 + TTL, T0 + TTL + DELTA

REJECT = Policy.standard()
REUSE = Policy.standard(replay="REUSE")
LITERAL = Policy.standard(literal_ttl_reject=True)


def register(at: int = T0, **changes: Any) -> Register:
    facts: dict[str, Any] = {
        "client_correlation_id": "c1",
        "server_correlation_id": "s1",
        "principal": "alice",
        "replay_key": "what-was-meant",
        "mode": Mode.STANDARD,
        "service_endpoint": "orders/orders",
        "path": "/orders",
        "arrived_at": at,
        "owner": "worker-1",
    }
    return Register(**(facts | changes))


def confirm(at: int, **changes: Any) -> Confirm:
    facts: dict[str, Any] = {
        "client_correlation_id": "c1",
        "server_correlation_id": "s1",
        "principal": "alice",
        "path": "/orders",
        "arrived_at": at,
        "owner": "worker-1",
    }
    return Confirm(**(facts | changes))


def settle(fence: int = 1, *, succeeded: bool = True) -> Settle:
    return Settle(fence=fence, succeeded=succeeded, status=200 if succeeded else 500, resource_id="r1")


def after(decision: IntentDecision) -> Intent:
    assert decision.intent is not None
    return decision.intent


def waiting(policy: Policy = REJECT, **changes: Any) -> Intent:
    return after(decide(None, register(**changes), T0, policy))


def expired(policy: Policy = REJECT) -> Intent:
    return after(decide(waiting(policy), Tick(), DEADLINE, policy))


def abandoned(policy: Policy = REJECT) -> Intent:
    return after(decide(waiting(policy), Tick(), ABANDONED, policy))


def processing(policy: Policy = REJECT) -> Intent:
    return after(decide(waiting(policy), confirm(T0 + 1), T0 + 1, policy))


def committed(policy: Policy = REJECT) -> Intent:
    return after(decide(processing(policy), settle(), T0 + 2, policy))


def failed(policy: Policy = REJECT) -> Intent:
    return after(decide(processing(policy), settle(succeeded=False), T0 + 2, policy))


IN_PHASE = {
    Phase.WAITING_CONFIRM: waiting,
    Phase.TTL_EXPIRED: expired,
    Phase.ABANDONED: abandoned,
    Phase.PROCESSING: processing,
    Phase.COMMITTED: committed,
    Phase.FAILED: failed,
}
