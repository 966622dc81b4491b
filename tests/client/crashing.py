"""A client that is killed, as the machine would kill it, at a named moment of one call.

python -m tests.client.crashing FOLDER URL MOMENT [NAME]

"after the answer" is when the caller has it and the ledger does not yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx2

from tests.client.callers import settings
from twophp.client import TwoPhaseTransport, calling, write_behind
from twophp.client.ledger import Ledger
from twophp.core.call_commands import Command, Renew
from twophp.core.call_machine import CallDecision


class Dying(httpx2.HTTPTransport):
    """Dies before or after a request of this kind."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        kind = "phase_2" if request.url.path.endswith("/confirm") else "phase_1"
        self._maybe_die(f"before {kind}")
        response = super().handle_request(request)
        response.read()
        self._maybe_die(f"after {kind}")
        return response

    def _maybe_die(self, now: str) -> None:
        if now == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, url: str, moment: str, name: str = "the-call") -> None:
    write_behind.DELAY_S = 3_600  # type: ignore[misc]
    if moment == "driving":  # Wait for a slow server, and say so.
        say("driving")
        say_what_is_renewed()
    transport = TwoPhaseTransport(
        **settings(Path(folder), transport=Dying(moment), lease_s=1.0 if moment == "driving" else 600.0)
    )
    with httpx2.Client(transport=transport, timeout=60) as http, calling(client_correlation_id=name):
        say(http.post(url, json={"item": 1}).extensions["twophp"]["phase"])
        if moment == "after the answer":
            os.kill(os.getpid(), signal.SIGKILL)


def say_what_is_renewed() -> None:
    record = Ledger.record

    async def saying(ledger: Ledger, id_: str, command: Command, request: bytes | None = None) -> CallDecision:
        decision = await record(ledger, id_, command, request)
        if isinstance(command, Renew):
            say("renewed")
        return decision

    Ledger.record = saying  # type: ignore[method-assign, assignment]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
