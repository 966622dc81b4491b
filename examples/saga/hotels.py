"""Rooms, by trip: there is only one. The second step of the saga, which may fail."""

from fastapi import FastAPI, HTTPException

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

booked: set[str] = set()

app = FastAPI()
app.add_middleware(
    TwoPhaseMiddleware,
    service="hotels",
    store="sqlite:///hotels.db",
    identify=anonymous,
    policies={"/rooms/{trip}": Policy.standard()},
    allow_insecure=True,  # Loopback.
)


@app.put("/rooms/{trip}", status_code=201)
async def book(trip: str) -> dict[str, str]:
    """Book the room."""
    if booked:
        raise HTTPException(409, "the house is full")
    booked.add(trip)
    return {"id": trip}


@app.get("/rooms")
def show() -> list[str]:
    """What is booked."""
    return sorted(booked)
