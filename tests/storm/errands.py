"""The process that calls, and dies: several callers over one transport and one ledger, and what they were told."""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx2

from tests.crash.life import Errand
from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, PhaseError, TwoPhaseTransport, calling
from twophp.stores.clock import system_clock

CALLERS: Final = 6
LEASE_S: Final = 1.0
ROUNDS: Final = 50


def settings_of(errand: Errand) -> dict[str, Any]:
    return {
        "ledger": f"sqlite:///{errand.ledger}",
        "source": "checkout",
        "allow_insecure": True,
        "require_2php": True,
        "targets": {f"http://127.0.0.1:{errand.port}": "orders"},
        "lease_s": LEASE_S,
        "patience_s": 5.0,
        "reconcile_every_s": None if errand.only_reconciles else 0.2,
        "clock": lambda: system_clock() + errand.ahead_ms,
    }


async def run_errand(errand: Errand) -> None:
    """Every other life is one of threads."""
    if errand.is_blocking:
        await asyncio.to_thread(run_blocking, errand)
        return
    async with AsyncTwoPhaseTransport(**settings_of(errand)) as transport:
        if errand.only_reconciles:
            await settle_everything(transport)
            return
        async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as http, asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(call_on(errand, http, number))


async def settle_everything(transport: AsyncTwoPhaseTransport) -> None:
    """Visits that find nothing more to do: every open row has come to its outcome."""
    for _round in range(ROUNDS):
        found = await transport.reconcile()
        if not found.settled and not found.left:
            return
    raise AssertionError("calls are still open")


async def call_on(errand: Errand, http: httpx2.AsyncClient, number: int) -> None:
    count = 0
    while True:
        count += 1
        name = f"{errand.name}-{number}-{count}"
        with calling(client_correlation_id=name):
            await _call(errand, http, name)
        os.write(errand.told, b".")


async def _call(errand: Errand, http: httpx2.AsyncClient, name: str) -> None:
    try:
        response = await http.post(f"http://127.0.0.1:{errand.port}/orders", json={"client": name})
    except (PhaseError, httpx2.TransportError):
        return  # Told nothing about the outcome; the reconciler finds it out.
    _note_answer(errand, name, response)


def run_blocking(errand: Errand) -> None:
    transport = TwoPhaseTransport(**settings_of(errand))
    with httpx2.Client(transport=transport, timeout=PATIENCE_S) as http, ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(lambda number: call_on_blocking(errand, http, number), range(CALLERS)))


def call_on_blocking(errand: Errand, http: httpx2.Client, number: int) -> None:
    for count in itertools.count(1):
        name = f"{errand.name}-{number}-{count}"
        with calling(client_correlation_id=name):
            try:
                response = http.post(f"http://127.0.0.1:{errand.port}/orders", json={"client": name})
            except (PhaseError, httpx2.TransportError):
                pass
            else:
                _note_answer(errand, name, response)
        os.write(errand.told, b".")


def _note_answer(errand: Errand, name: str, response: httpx2.Response) -> None:
    info: dict[str, Any] = response.extensions["twophp"]
    note(errand.answers, f"{name} {info['server_correlation_id']} {info['phase']} {response.status_code}\n")


def note(file: str, line: str) -> None:
    """One write at the end of the file: it outlives the process, and nobody's line is mixed with another's."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)
