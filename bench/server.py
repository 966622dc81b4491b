"""Handshakes per second through the middleware, as a share of the bare application's requests per second.

wrk drives one uvicorn worker (uvloop, httptools) over keep-alive connections. Every variant runs once in each round,
one after the other, and a ratio compares figures of one round. A handshake is two requests and counts once.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import msgspec

LUA = Path(__file__).with_name("walk.lua")
CONNECTIONS = 64
FRAMEWORKS = ("starlette", "fastapi")
REQUESTS_EACH = {"plain": 1, "handshake": 2, "auto": 1, "replay": 1}


class Run(msgspec.Struct, frozen=True):
    """One run of wrk."""

    per_second: float
    errors: int


@contextmanager
def serving(factory: str, folder: Path) -> Iterator[str]:
    """One uvicorn worker on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"bench.apps:{factory}", "--factory", "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools", "--log-level", "error", "--no-access-log"]
    environment = {**os.environ, "TWOPHP_BENCH_STORE": f"sqlite:///{folder / factory}.db"}
    process = subprocess.Popen(command, env=environment)  # noqa: S603 - our own server
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(url, timeout=1)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server did not start")


def wrk(url: str, mode: str, *, connections: int, seconds: int, run: str) -> Run:
    """One run; every answer that is not a 2xx counts as an error."""
    command = ["wrk", f"-t{connections}", f"-c{connections}", f"-d{seconds}s", "-s", str(LUA), url]
    environment = {**os.environ, "MODE": mode, "RUN": run}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout  # noqa: S603
    per_second = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])  # type: ignore[index]
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    return Run(per_second / REQUESTS_EACH[mode], int(bad[1]) if bad else 0)


def _fsync_ms(folder: Path) -> float:
    """What one durable append of a page costs here and now."""
    took = []
    with (folder / "fsync").open("ab", buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took) * 1e3


def measure(folder: Path, rounds: int, seconds: int) -> dict[str, object]:
    """All variants of both frameworks, in turn."""
    return {framework: _framework(framework, folder, rounds, seconds) for framework in FRAMEWORKS}


def _framework(framework: str, folder: Path, rounds: int, seconds: int) -> dict[str, object]:
    with serving(f"{framework}_app", folder) as bare, serving(f"{framework}_twophp", folder) as ours:
        for url, mode in ((bare, "plain"), (ours, "handshake")):
            wrk(url, mode, connections=CONNECTIONS, seconds=1, run="warm")
        many = [_round(bare, ours, f"{framework}-{number}", seconds) for number in range(rounds)]
        one = [_alone(bare, ours, f"{framework}-one-{number}", folder) for number in range(rounds)]
    return {"connections_64": _summary(many), "connections_1": _latency(one)}


def _round(bare: str, ours: str, run: str, seconds: int) -> dict[str, Run]:
    found = {"plain": wrk(bare, "plain", connections=CONNECTIONS, seconds=seconds, run=run)}
    for mode in ("handshake", "auto", "replay"):
        found[mode] = wrk(ours, mode, connections=CONNECTIONS, seconds=seconds, run=f"{run}-{mode}")
    found["untouched"] = wrk(ours, "plain", connections=CONNECTIONS, seconds=seconds, run=run)
    return found


def _summary(rounds: list[dict[str, Run]]) -> dict[str, float]:
    figures: dict[str, float] = {"bare_per_second": median(r["plain"].per_second for r in rounds)}
    for mode in ("handshake", "auto", "replay", "untouched"):
        figures[f"{mode}_per_second"] = median(r[mode].per_second for r in rounds)
        figures[f"{mode}_ratio"] = median(r[mode].per_second / r["plain"].per_second for r in rounds)
        figures[f"{mode}_errors"] = sum(r[mode].errors for r in rounds)
    return figures


def _alone(bare: str, ours: str, run: str, folder: Path) -> tuple[float, float, float]:
    trip_ms = 1e3 / wrk(bare, "plain", connections=1, seconds=1, run=run).per_second
    handshake_ms = 1e3 / wrk(ours, "handshake", connections=1, seconds=1, run=run).per_second
    return trip_ms, handshake_ms, _fsync_ms(folder)


def _latency(rounds: list[tuple[float, float, float]]) -> dict[str, float]:
    return {
        "bare_round_trip_ms": median(trip for trip, _handshake, _fsync in rounds),
        "handshake_ms": median(handshake for _trip, handshake, _fsync in rounds),
        "fsync_ms": median(fsync for _trip, _handshake, fsync in rounds),
        "ratio": median(handshake / (2 * trip + 3 * fsync) for trip, handshake, fsync in rounds),
    }
