"""Handshakes per second through the middleware, as a share of the bare application's requests per second.

wrk drives one uvicorn worker (uvloop, httptools) over keep-alive connections. Two ways in: the middleware as plain
ASGI, and behind ``uvicorn --http twophp.uvicorn:Protocol``. In each round every variant runs once, one after the
other, each way in after a run of the bare application; a ratio compares two figures of one round. Beside the rates:

``p99_ms``     at half the rate that this round found, from ``bench.paced``
``cpu_us``     user and system time of the server's process, all threads, ÷ handshakes (or requests) of the same run
``written``    ``write_bytes`` of /proc/PID/io ÷ handshakes: all that reaches the disk, log and checkpoints
``log``        bytes written to the -wal file ÷ handshakes, counted in a server of its own (``bench.observed``)
``gc``         the collector's pauses in the server under handshakes, over all rounds
``alone``      one connection: a handshake against two bare round trips and three fsyncs of the same second
``callback``   auto-confirm with a callback that ``bench.receiver`` acknowledges
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.observed import COUNT_LOG
from bench.paced import Paced, paced
from bench.processes import Server, receiving, serving
from bench.wrk import Run, wrk

CONNECTIONS = 64
FRAMEWORKS = ("starlette", "fastapi")
WAYS_IN = {"asgi": "httptools", "uvicorn": "twophp.uvicorn:Protocol"}
"""By name, what ``--http`` says."""
OURS = ("handshake", "auto", "replay", "untouched")
AFTERMATH_S = 3  # Callbacks are delivered behind the answers; the next round must not be paid with the last one's.
FSYNCS = 200
TINY = 0.999

Say = Callable[[str], None]
Figures = dict[str, Any]


class Measured(msgspec.Struct, frozen=True):
    """One variant in one round: at full load, and at half of that."""

    full: Run
    half: Paced


class Round(msgspec.Struct, frozen=True):
    """One way in, in one round."""

    bare: Measured
    ours: dict[str, Measured]
    gc_ms: list[float]
    log_bytes: float
    alone: tuple[float, float, float]
    called: tuple[Run, Run] | None


class Servers(msgspec.Struct, frozen=True):
    """What a framework's rounds are run on."""

    bare: Server
    ours: Server
    counting: Server
    receiver: str


def ways_in(say: Say) -> dict[str, str]:
    """The ways in that are installed."""
    if importlib.util.find_spec("twophp.uvicorn") is None:
        say("server: no twophp.uvicorn here; its variant is skipped")
        return {"asgi": WAYS_IN["asgi"]}
    return WAYS_IN


def measure(folder: Path, rounds: int, seconds: float, say: Say, frameworks: tuple[str, ...] = FRAMEWORKS) -> Figures:
    """All variants of the frameworks, in turn."""
    ways = ways_in(say)
    return {framework: _framework(framework, ways, folder, rounds, seconds, say) for framework in frameworks}


def _framework(framework: str, ways: dict[str, str], folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    found: dict[str, list[Round]] = {way: [] for way in ways}
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving(folder))
        bare = stack.enter_context(serving(f"{framework}_app", folder / "none.db"))
        servers = {}
        for way, http in ways.items():
            name, here = f"{framework}_twophp", folder / f"{framework}-{way}"
            ours = stack.enter_context(serving(name, here.with_suffix(".db"), http=http))
            counting = serving(name, here.with_suffix(".log.db"), http=http, environment={COUNT_LOG: "1"})
            servers[way] = Servers(bare, ours, stack.enter_context(counting), receiver)
            wrk(ours, "handshake", connections=CONNECTIONS, seconds=1, run="warm")
        wrk(bare, "plain", connections=CONNECTIONS, seconds=1, run="warm")
        for number in range(rounds):
            for way, these in servers.items():
                say(f"server: {framework}, {way}, round {number + 1} of {rounds}")
                found[way].append(_round(these, folder, f"{framework}-{number}", seconds, called=way == "asgi"))
    return {way: _summary(these) for way, these in found.items()}


def _round(servers: Servers, folder: Path, run: str, seconds: float, *, called: bool) -> Round:
    bare = _measured(servers.bare, "plain", run, seconds)
    servers.ours.observed()  # What was collected before is no part of this.
    ours = {"handshake": _measured(servers.ours, "handshake", run, seconds)}
    pauses = servers.ours.observed().gc_ms
    for mode in ("auto", "replay"):
        ours[mode] = _measured(servers.ours, mode, run, seconds)
    ours["untouched"] = _measured(servers.ours, "plain", run, seconds)
    alone = _alone(servers, f"{run}-one", folder)
    log_bytes = _log_bytes(servers.counting, run)
    return Round(bare, ours, pauses, log_bytes, alone, _called(servers, run, seconds) if called else None)


def _measured(server: Server, mode: str, run: str, seconds: float) -> Measured:
    full = wrk(server, mode, connections=CONNECTIONS, seconds=seconds, run=f"{run}-{mode}")
    rate = max(full.per_second / 2, 1.0)
    half = paced(server.url, mode, rate=rate, seconds=seconds, connections=CONNECTIONS, run=f"{run}-{mode}-half")
    return Measured(full, half)


def _called(servers: Servers, run: str, seconds: float) -> tuple[Run, Run]:
    """Auto-confirm with a callback, against the bare application of the same minute."""
    plain = wrk(servers.bare, "plain", connections=CONNECTIONS, seconds=seconds, run=run)
    name, callback = f"{run}-called", servers.receiver
    called = wrk(servers.ours, "callback", connections=CONNECTIONS, seconds=seconds, run=name, callback=callback)
    time.sleep(min(AFTERMATH_S, 2 * seconds))
    return plain, called


def _log_bytes(server: Server, run: str) -> float:
    before = server.observed().log_bytes
    done = wrk(server, "handshake", connections=CONNECTIONS, seconds=1, run=f"{run}-log").done
    return (server.observed().log_bytes - before) / done


def _alone(servers: Servers, run: str, folder: Path) -> tuple[float, float, float]:
    trip_ms = 1e3 / wrk(servers.bare, "plain", connections=1, seconds=1, run=run).per_second
    handshake_ms = 1e3 / wrk(servers.ours, "handshake", connections=1, seconds=1, run=run).per_second
    return trip_ms, handshake_ms, fsync_ms(folder)


def fsync_ms(folder: Path) -> float:
    """What one durable append of a page costs here and now."""
    took = []
    with (folder / "fsync").open("ab", buffering=0) as file:
        for _ in range(FSYNCS):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took) * 1e3


def _summary(rounds: list[Round]) -> Figures:
    many: Figures = {
        "bare_per_second": median(r.bare.full.per_second for r in rounds),
        "bare_p99_ms": median(r.bare.half.p99_ms for r in rounds),
    }
    for mode in OURS:
        many[f"{mode}_per_second"] = median(r.ours[mode].full.per_second for r in rounds)
        many[f"{mode}_ratio"] = median(r.ours[mode].full.per_second / r.bare.full.per_second for r in rounds)
        many[f"{mode}_p99_ms"] = median(r.ours[mode].half.p99_ms for r in rounds)
        many[f"{mode}_errors"] = sum(r.ours[mode].full.errors + r.ours[mode].half.errors for r in rounds)
    if called := [r.called for r in rounds if r.called is not None]:
        many["callback_per_second"] = median(ours.per_second for _bare, ours in called)
        many["callback_ratio"] = median(ours.per_second / bare.per_second for bare, ours in called)
        many["callback_errors"] = sum(ours.errors for _bare, ours in called)
    return {"connections_64": many, "connections_1": _latency([r.alone for r in rounds]), "cost": _cost(rounds)}


def _cost(rounds: list[Round]) -> Figures:
    """What one handshake takes of the server's machine."""
    runs = [(r.bare.full, r.ours["handshake"].full) for r in rounds]
    pauses = sorted(pause for r in rounds for pause in r.gc_ms) or [0.0]
    return {
        "bare_cpu_us": median(bare.cpu_us for bare, _ours in runs),
        "handshake_cpu_us": median(ours.cpu_us for _bare, ours in runs),
        "cpu_ratio": median(ours.cpu_us / bare.cpu_us for bare, ours in runs),
        "log_bytes": median(r.log_bytes for r in rounds),
        "written_bytes": median(ours.written_bytes for _bare, ours in runs),
        "gc_pauses": len(pauses),
        "gc_p999_ms": pauses[min(int(len(pauses) * TINY), len(pauses) - 1)],
        "gc_max_ms": pauses[-1],
    }


def _latency(rounds: list[tuple[float, float, float]]) -> Figures:
    return {
        "bare_round_trip_ms": median(trip for trip, _handshake, _fsync in rounds),
        "handshake_ms": median(handshake for _trip, handshake, _fsync in rounds),
        "fsync_ms": median(fsync for _trip, _handshake, fsync in rounds),
        "ratio": median(handshake / (2 * trip + 3 * fsync) for trip, handshake, fsync in rounds),
    }
