"""A database as a service leaves it, and no keys from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.stores.orders import HandClock, orders
from twophp.core.policy import DAY_MS
from twophp.stores.clock import system_clock


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)


@pytest.fixture
def well_kept(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with orders(path, clock=HandClock(system_clock() - DAY_MS)) as service:
            for number in range(3):
                await service.take(number)

    path = tmp_path / "orders.db"
    asyncio.run(fill())
    return path
