"""Order a book, once: ``python order.py order-1 "Emma"``. Its settings are TWOPHP_* variables, too."""

import sys

import httpx

from twophp.client import TwoPhaseTransport, calling

SHOP = "http://127.0.0.1:8010"

name, title = sys.argv[1:]
with httpx.Client(transport=TwoPhaseTransport(targets={SHOP: "bookshop"}), timeout=60) as http:
    with calling(client_correlation_id=name):
        answer = http.post(f"{SHOP}/orders", json={"title": title})
    print(answer.extensions["twophp"]["phase"], answer.extensions["twophp"]["resource_id"], answer.text)
