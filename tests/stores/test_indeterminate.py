"""What is indeterminate, in a service's own database: migrated, verified, and not to be edited away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.stores.orders import POLICY, HandClock, Orders, orders, raw
from tests.stores.verifying import found
from twophp.core.intent_commands import Settle
from twophp.stores.sqlite.verify import verify


async def lose(service: Orders, n: int) -> None:
    """Make an order whose effects are unknown."""
    await service.register(n)
    intent = await service.confirm(n)
    command = Settle(fence=intent.fence, succeeded=False, status=500, indeterminate=True)
    await service.intents.settle(intent, command, b"answer", POLICY)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with orders(tmp_path / "orders.db") as service:
            await service.take(1)
            await lose(service, 2)

    asyncio.run(fill())
    return tmp_path / "orders.db"


@pytest.mark.req("A-34")
def test_an_edit_that_hides_it_is_found(database: Path) -> None:
    assert verify(str(database)).holds
    raw(database, "UPDATE intent SET indeterminate = 0 WHERE server_correlation_id = 's2'")
    assert {(what, subject) for what, _seq, subject in found(database)} >= {("record_differs", "s2")}


@pytest.mark.req("A-34", "A-83")
def test_its_row_says_it_when_the_intent_is_forgotten_and_cannot_be_edited_then(database: Path) -> None:
    async def forget() -> None:
        clock = HandClock()
        async with orders(database, clock=clock) as service:
            for wait_ms in (POLICY.payload_retention_ms, POLICY.horizon_ms):
                clock.now += wait_ms
                await service.sweep()

    asyncio.run(forget())
    assert raw(database, "SELECT count(*) FROM live_intent") == [(0,)]
    assert raw(database, "SELECT indeterminate FROM entry ORDER BY id") == [(0,), (1,)]
    assert verify(str(database)).holds
    raw(database, "UPDATE intent SET indeterminate = 1 - indeterminate")
    assert sorted({subject for _what, _seq, subject in found(database)}) == ["s1", "s2"]
