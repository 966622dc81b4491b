"""Handshakes per second through the middleware, as a share of the bare application's requests per second.

wrk drives one uvicorn worker (uvloop, httptools) over keep-alive connections. Every variant runs once in each round,
one after the other, and a ratio compares figures of one round. A handshake is two requests and counts once; what was
refused does not count. Auto-confirm runs twice: without a callback, and with one that ``bench.receiver`` acknowledges.
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

from bench.receiver import HOST, write_certificate

LUA = Path(__file__).with_name("walk.lua")
CONNECTIONS = 64
FRAMEWORKS = ("starlette", "fastapi")
REQUESTS_EACH = {"plain": 1, "handshake": 2, "auto": 1, "callback": 1, "replay": 1}
OURS = ("handshake", "auto", "replay")
AFTERMATH_S = 3  # Callbacks are delivered behind the answers; the next round must not be paid with the last one's.


class Run(msgspec.Struct, frozen=True):
    """One run of wrk."""

    per_second: float
    errors: int


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def receiving(folder: Path) -> Iterator[str]:
    """Somebody who takes callbacks, in a process of its own; yields where."""
    pem, port = folder / "receiver.pem", _free_port()
    write_certificate(pem)
    os.environ["TWOPHP_BENCH_RECEIVER"] = str(pem)
    process = subprocess.Popen([sys.executable, "-m", "bench.receiver", str(pem), str(port)])  # noqa: S603 - our own
    try:
        yield f"https://{HOST}:{port}/acknowledged"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def serving(factory: str, folder: Path) -> Iterator[str]:
    """One uvicorn worker on a free port."""
    port = _free_port()
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


def wrk(url: str, mode: str, *, connections: int, seconds: int, run: str, callback: str = "") -> Run:
    """One run; every answer that is not a 2xx is an error, and no part of the rate."""
    command = ["wrk", f"-t{connections}", f"-c{connections}", f"-d{seconds}s", "-s", str(LUA), url]
    environment = {**os.environ, "MODE": mode, "RUN": run, "CALLBACK": callback}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout  # noqa: S603
    per_second = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])  # type: ignore[index]
    total = int(re.search(r"(\d+) requests in", output)[1])  # type: ignore[index]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    errors = int(refused[1]) if refused else 0
    return Run(per_second * (1 - errors / max(total, 1)) / REQUESTS_EACH[mode], errors)


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
    with (
        receiving(folder) as receiver,
        serving(f"{framework}_app", folder) as bare,
        serving(f"{framework}_twophp", folder) as ours,
    ):
        for url, mode in ((bare, "plain"), (ours, "handshake")):
            wrk(url, mode, connections=CONNECTIONS, seconds=1, run="warm")
        many = [_round(bare, ours, f"{framework}-{number}", seconds) for number in range(rounds)]
        one = [_alone(bare, ours, f"{framework}-one-{number}", folder) for number in range(rounds)]
        called = [_called(bare, ours, receiver, f"{framework}-called-{number}", seconds) for number in range(rounds)]
    return {
        "connections_64": _summary(called, ("callback",)) | _summary(many, (*OURS, "untouched")),
        "connections_1": _latency(one),
    }


def _round(bare: str, ours: str, run: str, seconds: int) -> dict[str, Run]:
    found = {"plain": wrk(bare, "plain", connections=CONNECTIONS, seconds=seconds, run=run)}
    for mode in OURS:
        found[mode] = wrk(ours, mode, connections=CONNECTIONS, seconds=seconds, run=f"{run}-{mode}")
    found["untouched"] = wrk(ours, "plain", connections=CONNECTIONS, seconds=seconds, run=run)
    return found


def _called(bare: str, ours: str, receiver: str, run: str, seconds: int) -> dict[str, Run]:
    """Auto-confirm with a callback, against the bare application of the same minute."""
    plain = wrk(bare, "plain", connections=CONNECTIONS, seconds=seconds, run=run)
    called = wrk(ours, "callback", connections=CONNECTIONS, seconds=seconds, run=run, callback=receiver)
    time.sleep(AFTERMATH_S)
    return {"plain": plain, "callback": called}


def _summary(rounds: list[dict[str, Run]], modes: tuple[str, ...]) -> dict[str, float]:
    figures: dict[str, float] = {"bare_per_second": median(r["plain"].per_second for r in rounds)}
    for mode in modes:
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
