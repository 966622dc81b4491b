"""The simulated driver keeps the contract of every store: what is found over it is not of its own making."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.database import Database
from tests.simulation.driver import Place, SimulatedStore
from twophp.stores.clock import system_clock
from twophp.stores.testing import DURABLE, SHARED, OpenStore, StoreContract


class AtOnce:
    """In place of the scheduler: on a real loop, where nothing takes time."""

    def __init__(self) -> None:
        self.random = Random(0)  # noqa: S311 - it draws delays, which nobody waits for.
        self.now = 0.0

    def later(self, _delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(callback, *arguments)


def process() -> Any:
    """In place of a process that never crashes."""
    world = SimpleNamespace(owners={}, happened=lambda *_what: None)
    machine = SimpleNamespace(wall=system_clock, steady_ns=lambda: 0)
    return SimpleNamespace(
        loop=asyncio.get_running_loop(),
        machine=machine,
        world=world,
        is_dead=False,
        owner_names=[],
        at_its_end={},
        unwell=lambda _seconds=0.0: None,
    )


class TestSimulatedStore(StoreContract):
    capabilities = frozenset({DURABLE, SHARED})

    @pytest.fixture
    def open_store(self) -> OpenStore:
        scheduler: Any = AtOnce()
        database = Database("ledger.db", lambda: 0, lambda _database, _operations: None)
        place = Place(scheduler, database, is_local=True)
        place.takes_statements = False
        return lambda clock: SimulatedStore(process(), place, clock)  # type: ignore[arg-type]
