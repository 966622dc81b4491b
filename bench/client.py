"""Calls per second through the transport, as a share of what the bare library does with the same two POSTs.

    ours    both phases through the transport: the client's row durable before Phase 2; the outcome is written behind
            the answer, most often in the flush of the next call's row (ADR 19), and no caller waits for it
    plain   the same library sends the same two POSTs, and writes and syncs one line in between, on an event loop in a
            thread; it keeps no outcome, no journal and no lease, and could not go on after a crash

The server is the same for both, in a process of its own: it speaks both phases and keeps nothing, so what is compared
is the client. What is still on its way when the last call returns is written when the transport is closed, outside the
time that is taken: at most one flush in a run of hundreds. Contenders run in turn, several rounds; a ratio compares two
figures of one round.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx2

from bench.processes import serving
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport
from twophp.stores.clock import mint_uuid

CALLERS = (1, 16)
COLOURS = ("sync", "async")
CALLS = {1: 300, 16: 1_600}
BODY = b'{"sku": "A-1", "quantity": 3, "note": "%s"}' % (b"x" * 260)
CONTENT = {"content-type": "application/json"}


class Disk:
    """One line in between, on the disk before the call goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, client_id: str) -> None:
        """Write and sync."""
        os.write(self._file, f"{client_id} WAITING_CONFIRM\n".encode().ljust(300))
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _phase_one(client_id: str) -> dict[str, str]:
    return {**CONTENT, "dtt-2php-enabled": "true", "dtt-2php-client-correlation-id": client_id}


def _phase_two(client_id: str, answer: httpx2.Response) -> dict[str, str]:
    server_id = answer.headers["dtt-2php-server-correlation-id"]
    headers = {"dtt-2php-enabled": "true", "dtt-2php-client-correlation-id": client_id}
    return {**headers, "dtt-2php-server-correlation-id": server_id}


def _per_second(callers: int, calls: int, call: Callable[[], object]) -> float:
    """Calls per second of ``callers`` threads, each making its share of the calls."""

    def share() -> None:
        for _ in range(calls // callers):
            call()

    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(lambda _number: call(), range(callers)))  # Warm up: connections, caches.
        began = time.perf_counter()
        for done in [threads.submit(share) for _ in range(callers)]:
            done.result()
        return calls / (time.perf_counter() - began)


def _plain(url: str, path: Path, callers: int, calls: int) -> float:
    disk = Disk(path)
    with httpx2.Client() as http:

        def call() -> None:
            client_id = mint_uuid()
            answer = http.post(url, content=BODY, headers=_phase_one(client_id))
            disk.note(client_id)
            http.post(f"{url}/confirm", headers=_phase_two(client_id, answer)).raise_for_status()

        found = _per_second(callers, calls, call)
    disk.close()
    return found


def _ours(url: str, path: Path, callers: int, calls: int) -> float:
    transport = TwoPhaseTransport(ledger=f"sqlite:///{path}", source="checkout", allow_insecure=True)
    with httpx2.Client(transport=transport) as http:
        return _per_second(callers, calls, lambda: http.post(url, content=BODY, headers=CONTENT).raise_for_status())


async def _async_per_second(callers: int, calls: int, call: Callable[[], object]) -> float:
    async def share(amount: int) -> None:
        for _ in range(amount):
            await call()  # type: ignore[misc]

    await asyncio.gather(*(share(1) for _ in range(callers)))
    began = time.perf_counter()
    await asyncio.gather(*(share(calls // callers) for _ in range(callers)))
    return calls / (time.perf_counter() - began)


async def _async_plain(url: str, path: Path, callers: int, calls: int) -> float:
    disk = Disk(path)
    async with httpx2.AsyncClient() as http:

        async def call() -> None:
            client_id = mint_uuid()
            answer = await http.post(url, content=BODY, headers=_phase_one(client_id))
            await asyncio.to_thread(disk.note, client_id)
            confirmed = await http.post(f"{url}/confirm", headers=_phase_two(client_id, answer))
            confirmed.raise_for_status()

        found = await _async_per_second(callers, calls, call)
    disk.close()
    return found


async def _async_ours(url: str, path: Path, callers: int, calls: int) -> float:
    transport = AsyncTwoPhaseTransport(ledger=f"sqlite:///{path}", source="checkout", allow_insecure=True)
    async with httpx2.AsyncClient(transport=transport) as http:

        async def call() -> None:
            (await http.post(url, content=BODY, headers=CONTENT)).raise_for_status()

        return await _async_per_second(callers, calls, call)


def measure(folder: Path, rounds: int, scale: int) -> list[dict[str, float | str]]:
    """Run the contenders in turn, ``rounds`` times; medians, and of ratios the median over the rounds."""
    with serving("speaking", folder / "none.db") as server:
        return [
            _compared(f"{server.url}/orders", folder, colour, callers, rounds, max(callers, CALLS[callers] // scale))
            for colour in COLOURS
            for callers in CALLERS
        ]


def _compared(url: str, folder: Path, colour: str, callers: int, rounds: int, calls: int) -> dict[str, float | str]:
    pairs = []
    for number in range(rounds):
        line, ledger = folder / f"{colour}-{callers}-{number}.txt", folder / f"{colour}-{callers}-{number}.db"
        if colour == "sync":
            pairs.append((_plain(url, line, callers, calls), _ours(url, ledger, callers, calls)))
        else:
            plain = asyncio.run(_async_plain(url, line, callers, calls))
            pairs.append((plain, asyncio.run(_async_ours(url, ledger, callers, calls))))
    return {
        "colour": colour,
        "callers": callers,
        "plain_per_second": median(plain for plain, _ours in pairs),
        "calls_per_second": median(ours for _plain, ours in pairs),
        "ratio": median(ours / plain for plain, ours in pairs),
    }
