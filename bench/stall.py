"""How long the event loop stands still when the disk is slow.

A shim in front of the file system makes every sync take ``SYNC_MS`` longer, after a while in which the disk was quick:
a writer that commits on the loop as long as that is cheap must notice. Sixty-four callers make handshakes; a heartbeat
on the same loop notes how late it is.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import apsw
import uvloop

from bench.handshakes import handshake, new_commands
from bench.server import Figures
from twophp.core.entry import Writer
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.vault import AesGcmVault, KeyRing

SYNC_MS = 50
CALLERS = 64
BEAT_S = 0.001
BASE = "unix"
NAME = "slow-disk"


class SlowDisk(apsw.VFS):
    """SQLite's own file system, and a wait before each sync."""

    def __init__(self) -> None:
        super().__init__(NAME, BASE, makedefault=True)
        self.is_slow = False

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's names.
        """One of its files."""
        return SlowFile(self, name, flags)


class SlowFile(apsw.VFSFile):
    """One of its files."""

    def __init__(self, disk: SlowDisk, name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Wait, as a busy disk would; other threads may run during that."""
        if self._disk.is_slow:
            time.sleep(SYNC_MS / 1e3)
        super().xSync(flags)


async def _lateness(seconds: float) -> list[float]:
    """By how many milliseconds each beat came too late."""
    late, ends_at = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends_at:
        await asyncio.sleep(BEAT_S)
        late.append((time.perf_counter() - began - BEAT_S) * 1e3)
    return late


async def _run(path: Path, disk: SlowDisk, seconds: float) -> tuple[list[float], list[float], int]:
    async with SQLiteStore(str(path)) as store:
        writer = Writer(source="orders", service_ledger_id=mint_uuid())
        intents, done = Intents(store, AesGcmVault(KeyRing.generate()), writer), 0

        async def caller() -> None:
            nonlocal done
            while True:
                await handshake(intents, new_commands())
                done += 1

        callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
        quick, before = await _lateness(seconds), done
        disk.is_slow = True
        slow, amount = await _lateness(seconds), done - before
        disk.is_slow = False
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return quick, slow, amount


def measure(folder: Path, rounds: int, seconds: float) -> Figures:
    """The worst of each round, quick and slow."""
    default, disk = apsw.vfs_names()[0], SlowDisk()
    found = []
    try:
        for number in range(rounds):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found.append(runner.run(_run(folder / f"stall-{number}.db", disk, seconds)))
    finally:
        apsw.set_default_vfs(default)
        apsw.unregister_vfs(NAME)
    return {
        "sync_ms": SYNC_MS,
        "worst_ms": median(max(slow) for _quick, slow, _done in found),
        "long_stalls": median(sum(late > SYNC_MS / 2 for late in slow) for _quick, slow, _done in found),
        "worst_on_a_quick_disk_ms": median(max(quick) for quick, _slow, _done in found),
        "handshakes_per_second": median(done / seconds for _quick, _slow, done in found),
    }
