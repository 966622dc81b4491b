"""Obligations: against two dicts in memory, against the disk's own speed, and a scan among many.

``memory``  reserve and commit through the tracker, as a multiple of two dict updates and an event, bare; and of the
            least that could be called the same: the obligation's facts written, its state updated, an event for each.
``sqlite``  threads that each reserve and commit, durable, beside how often the disk can sync at all.
``scan``    a thousand overdue, among a thousand and among a million stored.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import apsw

from twophp.core.obligation import State
from twophp.engine.obligations.flow import Obligations
from twophp.engine.obligations.rules import Rules
from twophp.obligations import ObligationTracker
from twophp.stores.clock import ids_in_order, system_clock
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.vault import AesGcmVault, KeyRing

PAIRS = 20_000
THREADS = 64
DURABLE_PAIRS = 6_400
SYNCS = 1_000
OVERDUE = 1_000
FEW = 1_000
MANY = 1_000_000
NOW = 1_800_000_000_000
FILL = Path(__file__).with_name("fill_obligations.sql")
MAKE_OVERDUE = Path(__file__).with_name("make_overdue.sql")


def measure(folder: Path, rounds: int, scale: int) -> dict[str, Any]:
    """All three, with medians over the rounds; ratios are taken inside each round."""
    return {
        "memory": _memory(rounds, PAIRS // scale),
        "sqlite": _sqlite(folder, rounds, DURABLE_PAIRS // scale),
        "scan": _scan(folder, rounds, MANY // scale),
    }


# Memory.


def _plain(pairs: int) -> float:
    """Two dict updates that hold the state, and an event for each. No lock, no check, no payload of its own."""
    obligations: dict[str, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    began = time.perf_counter()
    for number in range(pairs):
        oid, payload, now = f"o-{number:x}", {"key": str(number)}, system_clock()
        obligations[oid] = {"flow": "publish", "payload": payload, "trace": "t", "at": now, "state": "Reserved"}
        events.append({"code": "OBL-001", "id": oid, "before": "Absent", "after": "Reserved", "at": now, "trace": "t"})
        now = system_clock()
        obligations[oid].update(state="Committed", settled_at=now)
        events.append(
            {"code": "OBL-002", "id": oid, "before": "Reserved", "after": "Committed", "at": now, "trace": "t"}
        )
    return (time.perf_counter() - began) / pairs


def _bare(pairs: int) -> float:
    """Two dict updates and one event, and nothing else: no time, no trace, no payload, no event for the reserve."""
    states: dict[str, str] = {}
    events: list[tuple[str, str]] = []
    began = time.perf_counter()
    for number in range(pairs):
        oid = f"o-{number:x}"
        states[oid] = "Reserved"
        states[oid] = "Committed"
        events.append(("OBL-002", oid))
    return (time.perf_counter() - began) / pairs


def _tracked(pairs: int) -> float:
    with ObligationTracker("memory:", scan_interval_secs=None) as tracker:
        began = time.perf_counter()
        for number in range(pairs):
            tracker.commit(tracker.reserve("publish", {"key": str(number)}, "t"), "t")
        return (time.perf_counter() - began) / pairs


def _memory(rounds: int, pairs: int) -> dict[str, float]:
    took = []
    for _ in range(rounds):
        gc.collect()
        took.append((_bare(pairs), _plain(pairs), _tracked(pairs)))
    return {
        "pairs": pairs,
        "bare_us": median(bare for bare, _plain, _ours in took) * 1e6,
        "plain_us": median(plain for _bare, plain, _ours in took) * 1e6,
        "tracker_us": median(ours for _bare, _plain, ours in took) * 1e6,
        "ratio_to_bare": median(ours / bare for bare, _plain, ours in took),
        "ratio": median(ours / plain for _bare, plain, ours in took),
    }


# SQLite.


def _syncs_per_second(folder: Path) -> float:
    """How often 4 KiB reach this disk, one after the other."""
    page = bytes(4096)
    file = os.open(folder / "syncs", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    began = time.perf_counter()
    for _ in range(SYNCS):
        os.write(file, page)
        os.fdatasync(file)
    elapsed = time.perf_counter() - began
    os.close(file)
    return SYNCS / elapsed


def _durable(path: Path, pairs: int) -> tuple[float, float]:
    """Obligations a second, each reserved and committed, and how many changes shared a commit."""
    with ObligationTracker(f"sqlite:///{path}", scan_interval_secs=None) as tracker:

        def work(thread: int) -> None:
            for number in range(pairs // THREADS):
                tracker.commit(tracker.reserve("publish", {"key": f"{thread}/{number}"}, "t"), "t")

        with ThreadPoolExecutor(THREADS) as pool:
            began = time.perf_counter()
            list(pool.map(work, range(THREADS)))
            elapsed = time.perf_counter() - began
        load = tracker._runtime.store.load()  # noqa: SLF001 - how busy it was is no part of the contract
    return (pairs // THREADS) * THREADS / elapsed, load.changes / max(load.batches, 1)


def _sqlite(folder: Path, rounds: int, pairs: int) -> dict[str, float]:
    took = []
    for number in range(rounds):
        syncs = _syncs_per_second(folder)
        took.append((*_durable(folder / f"durable-{number}.db", pairs), syncs))
    return {
        "threads": THREADS,
        "obligations_per_second": median(rate for rate, _shared, _syncs in took),
        "changes_per_commit": median(shared for _rate, shared, _syncs in took),
        "fdatasync_per_second": median(syncs for _rate, _shared, syncs in took),
        "obligations_per_fdatasync": median(rate / syncs for rate, _shared, syncs in took),
    }


# The scan.


def _fill(path: Path, stored: int) -> None:
    """A file with ``stored`` committed obligations, written by one statement instead of a million commits."""
    ObligationTracker(f"sqlite:///{path}", scan_interval_secs=None).close()
    connection = apsw.Connection(str(path))
    connection.execute(FILL.read_text(encoding="utf-8"), {"stored": stored, "now": NOW, "state": State.COMMITTED})
    connection.close()


def _make_overdue(path: Path, first: int) -> None:
    connection = apsw.Connection(str(path))
    facts = {"first": first, "overdue": OVERDUE, "now": NOW, "state": State.RESERVED}
    connection.execute(MAKE_OVERDUE.read_text(encoding="utf-8"), facts)
    connection.close()


async def _scanned(path: Path) -> float:
    async with SQLiteStore(str(path), clock=lambda: NOW) as store:
        vault = AesGcmVault(KeyRing.generate())
        obligations = Obligations(store, vault, "obligations", mint=ids_in_order(), rules=Rules())
        began = time.perf_counter()
        found = await obligations.scan()
        elapsed = time.perf_counter() - began
    assert len(found.leaked) == OVERDUE, f"{len(found.leaked)} leaked instead of {OVERDUE}"
    return elapsed


def _scan(folder: Path, rounds: int, many_stored: int) -> dict[str, float]:
    few, many = folder / "few-obligations.db", folder / "many-obligations.db"
    for path, stored in ((few, FEW), (many, many_stored)):
        _fill(path, stored)
    took = []
    for number in range(rounds):
        seconds = []
        for path in (few, many):
            _make_overdue(path, 1 if path == few else 1 + number * OVERDUE)
            seconds.append(asyncio.run(_scanned(path)))
        took.append((seconds[0], seconds[1]))
    return {
        "overdue": OVERDUE,
        "seconds_among_1000": median(few for few, _many in took),
        "seconds_among_1000000": median(many for _few, many in took),
        "ratio": median(many / few for few, many in took),
    }
