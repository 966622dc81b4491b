"""Handshakes per second through one, two and four uvicorn workers on the same file, in turn.

Every run has a new file and new processes, so that no number of workers is measured on what another has left. The
workers share one listening socket and the kernel deals the connections out; wrk runs on the same machine.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from bench.processes import serving
from bench.server import CONNECTIONS, Figures, Say
from bench.wrk import wrk

WORKERS = (1, 2, 4)
SETTLE_S = 1


def measure(folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    """All numbers of workers in each round; ratios are taken inside it."""
    found = []
    for number in range(rounds):
        say(f"workers: {WORKERS}, round {number + 1} of {rounds}")
        found.append({workers: _rate(folder, workers, number, seconds) for workers in WORKERS})
    return {
        **{f"{workers}_per_second": median(rates[workers] for rates in found) for workers in WORKERS},
        "two_to_one": median(rates[2] / rates[1] for rates in found),
        "least_two_to_one": min(rates[2] / rates[1] for rates in found),
        "four_to_two": median(rates[4] / rates[2] for rates in found),
        "least_four_to_two": min(rates[4] / rates[2] for rates in found),
    }


def _rate(folder: Path, workers: int, number: int, seconds: float) -> float:
    with serving("starlette_twophp", folder / f"workers-{workers}-{number}.db", workers=workers) as server:
        wrk(server, "handshake", connections=CONNECTIONS, seconds=SETTLE_S, run="warm")
        return wrk(server, "handshake", connections=CONNECTIONS, seconds=seconds, run="workers").per_second
