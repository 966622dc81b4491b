"""Waiting for another replica: woken when it tells, and never longer than was asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.stores.schemas import Schema
from twophp.stores.postgres import PostgresStore, driver
from twophp.stores.testing.scene import confirm, register, settle

pytestmark = pytest.mark.anyio
WAITERS = 20
LONG_S, SHORT_S = 60, 0.2


class Busy:
    """A pool whose connections are all taken."""

    def __init__(self, pool: Any) -> None:
        self.asked = 0
        self._pool = pool

    async def acquire(self) -> Any:
        self.asked += 1
        await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


@pytest.mark.req("A-33", "A-52")
async def test_who_waits_is_woken_by_another_replica(schema: Schema) -> None:
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        intent = await confirm(here, await register(here, arrived_at=here.now()))
        await there.news_of("nobody", 0)
        assert there._news._opening is not None
        await there._news._opening
        waits = asyncio.create_task(there.news_of(intent.server_correlation_id, LONG_S))
        await asyncio.sleep(0)
        await settle(here, intent)
        async with asyncio.timeout(LONG_S / 2):
            await waits


@pytest.mark.req("A-33", "A-52")
async def test_nobody_waits_longer_because_no_connection_is_to_be_had(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tries for all; after it has failed nobody tries again for a while, and closing does not wait for it."""
    monkeypatch.setattr(driver, "CONNECT_S", SHORT_S)
    async with PostgresStore(schema.url) as store:
        store._news._pool = pool = Busy(store._pool)
        for _ in range(3):
            waits = [asyncio.create_task(store.news_of(str(number), SHORT_S * 2)) for number in range(WAITERS)]
            _done, waiting = await asyncio.wait(waits, timeout=SHORT_S * 2 + 2)  # By the loop's own timers.
            assert not waiting
        assert pool.asked == 1
        monkeypatch.setattr(driver, "CONNECT_S", LONG_S)
        store._news._not_before = 0.0
        await store.news_of("1", 0)
        assert store._news._opening is not None
        await store._news.close()
        assert pool.asked <= 1 + 1
