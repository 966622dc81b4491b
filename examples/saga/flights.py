"""Seats, by trip. The first step of the saga, which can be undone."""

from fastapi import FastAPI, HTTPException

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

booked: set[str] = set()
cancelled: set[str] = set()

app = FastAPI()
app.add_middleware(
    TwoPhaseMiddleware,
    service="flights",
    store="sqlite:///flights.db",
    identify=anonymous,
    policies={"/seats/{trip}": Policy.standard()},
    allow_insecure=True,  # Loopback.
)


@app.put("/seats/{trip}", status_code=201)
def book(trip: str) -> dict[str, str]:
    """Book a seat."""
    if trip in cancelled:  # A booking that was under way for long must not undo its cancellation.
        raise HTTPException(409, "the trip was cancelled")
    booked.add(trip)
    return {"id": trip}


@app.delete("/seats/{trip}")
def cancel(trip: str) -> dict[str, str]:
    """Cancel a seat, also one that was never booked: who undoes a step does not know how far it came."""
    booked.discard(trip)
    cancelled.add(trip)
    return {"id": trip}


@app.get("/seats")
def show() -> list[str]:
    """What is booked."""
    return sorted(booked)
