"""What a sweep costs when a thousand intents are due, among a thousand and among a million stored."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from pathlib import Path
from statistics import median

import apsw

from bench.handshakes import POLICY
from twophp.core.entry import Writer
from twophp.core.intent import Intent
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.vault import AesGcmVault, KeyRing

DUE = 1_000
FEW = 1_000
MANY = 1_000_000

NOW = 1_800_000_000_000
ENTRIES = Path(__file__).with_name("fill.sql")


def _fill(path: Path, stored: int) -> None:
    """A file with ``stored`` settled intents, written by one statement instead of a million handshakes."""
    connection = apsw.Connection(str(path))
    for statement in ENTRIES.read_text(encoding="utf-8").split("-- then\n"):
        connection.execute(statement, {"stored": stored, "now": NOW})
    connection.close()


def _make_due(path: Path, first: int) -> None:
    connection = apsw.Connection(str(path))
    statement = ENTRIES.with_name("make_due.sql").read_text(encoding="utf-8")
    connection.execute(statement, {"first": first, "due": DUE, "now": NOW})
    connection.close()


def _standard(_intent: Intent) -> Policy:
    return POLICY


async def _open_and_close(path: Path) -> None:
    async with SQLiteStore(str(path), clock=lambda: NOW):
        pass


async def _sweep(path: Path) -> float:
    async with SQLiteStore(str(path), clock=lambda: NOW) as store:
        intents = Intents(store, AesGcmVault(KeyRing.generate()), Writer(source="orders", service_ledger_id="bench"))
        began = time.perf_counter()
        done = 0
        while decisions := await intents.sweep(_standard, "bench", before=NOW):
            done += len(decisions)
        elapsed = time.perf_counter() - began
    assert done == DUE, f"{done} swept instead of {DUE}"
    return elapsed


def _resident_mib() -> float:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Sweep both files in turn; the ratio is taken inside each round."""
    few, many = folder / "few.db", folder / "many.db"
    for path, stored in ((few, FEW), (many, MANY)):
        asyncio.run(_open_and_close(path))
        _fill(path, stored)
    took: list[tuple[float, float]] = []
    peak_before = 0.0
    for number in range(rounds):
        seconds = []
        for path in (few, many):
            _make_due(path, 1 if path == few else 1 + number * DUE)
            seconds.append(asyncio.run(_sweep(path)))
            peak_before = peak_before or _resident_mib()
        took.append((seconds[0], seconds[1]))
    return {
        "due": DUE,
        "seconds_among_1000": median(few for few, _many in took),
        "seconds_among_1000000": median(many for _few, many in took),
        "ratio": median(many / few for few, many in took),
        "peak_memory_growth_mib": _resident_mib() - peak_before,
    }
