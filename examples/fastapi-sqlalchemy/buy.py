"""Buy something, once: ``python buy.py order-1 tea``. Whoever says it again is told how the same order went."""

import sys

import httpx

from twophp.client import TwoPhaseTransport, calling

SHOP = "http://127.0.0.1:8000"

name, sku = sys.argv[1:]
transport = TwoPhaseTransport(
    ledger="sqlite:///buyer.db",
    source="buyer",
    targets={SHOP: "shop"},
    allow_insecure=True,  # Loopback.
)
with httpx.Client(transport=transport, timeout=60) as http:
    with calling(client_correlation_id=name):
        answer = http.post(f"{SHOP}/orders", json={"customer": "alice", "sku": sku})
    print(answer.extensions["twophp"]["phase"], answer.status_code, answer.json())
    print("balance:", http.get(f"{SHOP}/accounts/alice").json()["balance"])
