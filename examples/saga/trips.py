"""A trip is a seat and a room, or neither. The saga: book a seat, then a room; without a room, cancel the seat."""

from typing import Any

import httpx
from fastapi import FastAPI, HTTPException

from twophp import Policy, anonymous, current_intent
from twophp.asgi import Hooks, Outgoing, TwoPhaseMiddleware, obligation_rules
from twophp.client import TwoPhaseTransport, calling
from twophp.obligations import Effect

FLIGHTS, HOTELS = "http://127.0.0.1:8031", "http://127.0.0.1:8032"

transport = TwoPhaseTransport(
    ledger="sqlite:///trips.db",  # One ledger for what the service serves and for what it calls.
    source="trips",
    targets={FLIGHTS: "flights", HOTELS: "hotels"},
    allow_insecure=True,  # Loopback.
)
http = httpx.Client(transport=transport, timeout=60)


def cancel_seat(effect: Effect) -> None:
    """Undo the first step. It is called until it does not raise: to cancel again changes nothing."""
    with calling(parent=effect.trace_id):  # Nobody's handler runs here: say what the call belongs to.
        http.delete(f"{FLIGHTS}/seats/{effect.key}").raise_for_status()
    print(f"{effect.key}: the seat is cancelled", flush=True)


hooks = Hooks()


@hooks.on_phase("FAILED")
def tell(event: Any) -> None:
    """Tell the traveller, at least once: ``event.id`` is the same each time."""
    print(f"{event.client_correlation_id}: the traveller is told", flush=True)


app = FastAPI()
app.add_middleware(
    TwoPhaseMiddleware,
    service="trips",
    store="sqlite:///trips.db",
    identify=anonymous,
    policies={"POST /trips/{trip}": Policy.standard(require=True)},
    obligations=obligation_rules(flows=["seat"], releases={"seat": cancel_seat}),
    outgoing=Outgoing(hooks=hooks),
    allow_insecure=True,  # Loopback.
)


@app.post("/trips/{trip}", status_code=201)
def book(trip: str) -> dict[str, str]:
    """Book both. What was reserved is settled with the intent: COMMITTED keeps the seat, FAILED cancels it."""
    intent = current_intent()
    assert intent is not None  # The policy says require=True.
    intent.obligations.blocking.reserve("seat", {"key": trip}, intent.client_correlation_id)
    http.put(f"{FLIGHTS}/seats/{trip}").raise_for_status()
    if http.put(f"{HOTELS}/rooms/{trip}").is_error:
        raise HTTPException(409, "no room, so no trip")
    return {"id": trip}
