"""A worker without HTTP: it takes parcels off a shelf and ships them, ``python worker.py tea vase``.

What was taken is shipped or put back, also when the worker dies with a parcel in its hands.
"""

import os
import queue
import signal
import sys
from contextlib import suppress

from twophp.obligations import Effect, ObligationTracker

news: queue.SimpleQueue[str] = queue.SimpleQueue()


def ship(effect: Effect) -> None:
    """Called for each commit, at least once: drop repeats by ``effect.obligation_id`` if they would harm."""
    news.put(f"{effect.key}: shipped")


def put_back(effect: Effect) -> None:
    """Called for each rollback, whoever rolled back."""
    news.put(f"{effect.key}: put back ({effect.resolution})")


def handle(tracker: ObligationTracker, parcel: str) -> None:
    """Take one parcel, look at it, and ship it if it is whole."""
    with tracker.guard("parcel", {"key": parcel}, f"job-{parcel}") as taken:
        if parcel == "anvil":  # It falls on the worker.
            os.kill(os.getpid(), signal.SIGKILL)
        if parcel != "vase":  # Vases are broken. The guard puts back what was not committed.
            taken.commit()


def main(parcels: list[str]) -> None:
    """Handle the parcels, and stay until Ctrl-C to tell what else happens."""
    with (
        suppress(KeyboardInterrupt),
        ObligationTracker(
            "sqlite:///warehouse.db",
            flows=["parcel"],
            effects={"parcel": ship},
            releases={"parcel": put_back},
            leak_timeout_secs=2,
            scan_interval_secs=0.5,
        ) as tracker,
    ):
        for parcel in parcels:
            handle(tracker, parcel)
            print(news.get(), flush=True)
        while True:
            print(news.get(), flush=True)


main(sys.argv[1:])
