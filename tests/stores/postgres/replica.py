"""One replica of a service on PostgreSQL, as a process: ``python -m ...replica URL LISTENER FOLDER``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import parse_qs, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twophp import Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware
from twophp.core.policy import HOUR_MS
from twophp.stores import clock

STEPS: Final = {signal.SIGUSR1: 2 * 3_600, signal.SIGUSR2: -24 * 3_600}
"""By how many seconds each signal sets the clock of this process's machine."""
LEASE_MS = 1_000
INSERT = "INSERT INTO twophp.business VALUES ($1)"


def marks_of(folder: Path) -> list[str]:
    """Which intents ran, once for each run."""
    file = folder / "marks"
    return file.read_text().split() if file.exists() else []


def mark(folder: Path, subject: str) -> None:
    """One line, on the disk before the handler goes on."""
    marks = os.open(folder / "marks", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(marks, f"{subject}\n".encode())
    os.fsync(marks)
    os.close(marks)


def set_clock(number: int, _frame: FrameType | None) -> None:
    """Whoever asks for the machine's time is told another one from now on. Time since the boot goes on as it did."""
    by_s, seconds, nanoseconds = STEPS[signal.Signals(number)], time.time, time.time_ns
    setattr(time, "time", lambda: seconds() + by_s)  # noqa: B010
    for module in (time, clock):
        setattr(module, "time_ns", lambda: nanoseconds() + by_s * 1_000_000_000)  # noqa: B010


def service(url: str, folder: Path) -> TwoPhaseMiddleware:
    """An order is noted, and then takes until somebody opens the gate, if there is one."""

    async def create(request: Request) -> Response:
        intent = current_intent()
        assert intent is not None
        await asyncio.to_thread(mark, folder, intent.server_correlation_id)
        if (gate := folder / "gate").exists() and request.url.path != "/quick":
            await asyncio.to_thread(gate.read_bytes)
        return JSONResponse({"run": str(os.getpid())}, status_code=201)

    async def write(request: Request) -> Response:
        """A business row in the settling commit; one that is there already is refused inside the block."""
        intent = current_intent()
        assert intent is not None
        name = (await request.json())["name"]
        async with intent.transaction() as tx:
            tx.execute(INSERT.replace("twophp", parse_qs(urlsplit(url).query)["schema"][0]), [name])
        return JSONResponse({"run": name}, status_code=201)

    routes = [Route(path, create, methods=["POST"]) for path in ("/orders", "/reruns", "/quick")]
    app = Starlette(routes=[*routes, Route("/rows", write, methods=["POST"])])
    policies = {
        "POST /rows": Policy.standard(lease_ms=LEASE_MS),
        "POST /orders": Policy.standard(lease_ms=LEASE_MS),
        "POST /quick": Policy.standard(lease_ms=LEASE_MS, ttl_ms=HOUR_MS),
        "POST /reruns": Policy.standard(lease_ms=LEASE_MS, on_crash="rerun"),
    }
    return TwoPhaseMiddleware(
        app,
        service="orders",
        store=url,
        identify=anonymous,
        policies=policies,
        allow_insecure=True,
        sweep_interval_s=0.1,
        replay_wait_ms=60_000,
    )


def main() -> None:
    """Serve until somebody kills us."""
    for number in STEPS:
        signal.signal(number, set_clock)
    url, listener, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    uvicorn.run(service(url, folder), fd=listener, log_level="error", lifespan="on")


if __name__ == "__main__":
    main()
