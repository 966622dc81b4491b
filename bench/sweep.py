"""What a sweep costs when a thousand intents are due, among a thousand and among 1.2 million stored.

All through the store itself. The clock stands still, so that what one round lets expire is not due again in the next.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from pathlib import Path
from statistics import median

import msgspec

from bench.handshakes import PAYLOAD, POLICY, new_commands
from bench.server import Say
from bench.stored import SERVICE, filled
from twophp.core.intent import Intent
from twophp.core.policy import Policy
from twophp.core.records import Instant
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

DUE = 1_000
FEW = 1_000
LATER_MS = 600_000  # After everything that was left open when the file was filled.
OVERDUE_MS = 1_000


def _standard(_intent: Intent) -> Policy:
    return POLICY


async def _sweep(intents: Intents, before: Instant) -> int:
    done = 0
    while decisions := await intents.sweep(_standard, "bench", before=before):
        done += len(decisions)
    return done


async def _register_due(intents: Intents, now: Instant) -> None:
    arrived_at = now - POLICY.ttl_ms - OVERDUE_MS
    asked = [msgspec.structs.replace(new_commands().register, arrived_at=arrived_at) for _ in range(DUE)]
    await asyncio.gather(*(intents.register(register, PAYLOAD, POLICY) for register in asked))


async def _timed(path: Path, now: Instant) -> float:
    vault = open_vault(f"sqlite:///{path}")
    async with SQLiteStore(str(path), clock=lambda: now) as store:
        ledger = await open_ledger(store, SERVICE, mint_uuid)
        intents = Intents(store, vault, ledger)
        await _sweep(intents, now)  # What was left open before.
        await _register_due(intents, now)
    async with SQLiteStore(str(path), clock=lambda: now) as store:  # Anew: beside requests a sweep has to hold back.
        intents = Intents(store, vault, ledger)
        began = time.perf_counter()
        done = await _sweep(intents, now)
        elapsed = time.perf_counter() - began
    assert done == DUE, f"{done} swept instead of {DUE}"
    return elapsed


def _resident_mib() -> float:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, rounds: int, stored: int, say: Say) -> dict[str, float]:
    """Sweep both files in turn; the ratio is taken inside each round."""
    few, many = filled(folder, FEW, say), filled(folder, stored, say)
    now = system_clock() + LATER_MS
    took: list[tuple[float, float]] = []
    peak_before = 0.0
    for _number in range(rounds):
        seconds = []
        for path in (few, many):
            seconds.append(asyncio.run(_timed(path, now)))
            peak_before = peak_before or _resident_mib()
        took.append((seconds[0], seconds[1]))
    return {
        "due": DUE,
        "few": FEW,
        "many": stored,
        "seconds_among_few": median(few for few, _many in took),
        "seconds_among_many": median(many for _few, many in took),
        "ratio": median(many / few for few, many in took),
        "peak_memory_growth_mib": _resident_mib() - peak_before,
    }
