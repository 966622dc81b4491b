"""Send letters with requests, each once: ``python letters.py ann ben``. First, finish what an earlier run began."""

import sys

import requests

from twophp.client import calling
from twophp.client.requests import TwoPhaseAdapter

OFFICE = "http://127.0.0.1:8020"


def main(people: list[str]) -> None:
    """Reconcile, then send."""
    adapter = TwoPhaseAdapter(
        ledger="sqlite:///letters.db",
        source="writer",
        targets={OFFICE: "office"},
        reconcile_every_s=None,  # Only here, so that it can be told.
        allow_insecure=True,  # Loopback.
    )
    with requests.Session() as session:
        session.mount("http://", adapter)
        found = adapter.reconcile()
        for call in found.settled:
            print(f"{call.client_correlation_id} of an earlier run: {call.outcome}")
        for call in found.left:
            print(f"{call.client_correlation_id} of an earlier run: {call.code}, {call.advice}")
        for person in people:
            with calling(client_correlation_id=f"letter-to-{person}"):
                answer = session.post(f"{OFFICE}/letters", json={"to": person})
            print(f"letter-to-{person}: {answer.status_code} {answer.json()}")
        print("sent by now:", *session.get(f"{OFFICE}/letters").json())


if __name__ == "__main__":
    main(sys.argv[1:])
