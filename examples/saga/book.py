"""Book a trip, once: ``python book.py trip-1``. Without a name, show what is booked."""

import sys

import httpx

from twophp.client import TwoPhaseTransport, calling

FLIGHTS, HOTELS, TRIPS = "http://127.0.0.1:8031", "http://127.0.0.1:8032", "http://127.0.0.1:8033"

transport = TwoPhaseTransport(
    ledger="sqlite:///traveller.db",
    source="traveller",
    targets={TRIPS: "trips"},
    allow_insecure=True,  # Loopback.
)
with httpx.Client(transport=transport, timeout=60) as http:
    for trip in sys.argv[1:]:
        with calling(client_correlation_id=trip):
            answer = http.post(f"{TRIPS}/trips/{trip}")
        print(answer.extensions["twophp"]["phase"], answer.status_code, answer.json())
    if not sys.argv[1:]:
        print("seats:", *http.get(f"{FLIGHTS}/seats").json())
        print("rooms:", *http.get(f"{HOTELS}/rooms").json())
