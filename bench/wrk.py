"""One run of wrk: as much load as the connections can carry.

One connection to a thread, and a thread has its own state in ``walk.lua``: a handshake's two requests alternate. A
handshake is two requests and counts once; an answer that is not a 2xx is an error and no part of the rate.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec

from bench.processes import Server

LUA = Path(__file__).with_name("walk.lua")
REQUESTS_EACH = {"plain": 1, "handshake": 2, "auto": 1, "callback": 1, "replay": 1, "keyed": 1}


class Run(msgspec.Struct, frozen=True):
    """What one run found; ``cpu_us`` and ``written_bytes`` are the server's, for one handshake or request."""

    per_second: float
    done: float
    errors: int
    cpu_us: float
    written_bytes: float


def wrk(server: Server, mode: str, *, connections: int, seconds: float, run: str, callback: str = "") -> Run:
    """Load the server for so long."""
    command = ["wrk", f"-t{connections}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(LUA)]
    environment = {**os.environ, "MODE": mode, "RUN": run, "CALLBACK": callback}
    cpu_s, written = server.cpu_s(), server.written_bytes()
    output = subprocess.run([*command, server.url], env=environment, capture_output=True, text=True, check=True).stdout  # noqa: S603
    cpu_s, written = server.cpu_s() - cpu_s, server.written_bytes() - written
    per_second = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])  # type: ignore[index]
    total = int(re.search(r"(\d+) requests in", output)[1])  # type: ignore[index]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    errors = int(refused[1]) if refused else 0
    good = (1 - errors / max(total, 1)) / REQUESTS_EACH[mode]
    done = max(total * good, 1)
    return Run(per_second * good, done, errors, cpu_s / done * 1e6, written / done)
