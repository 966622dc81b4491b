"""The server is restarted under load, kindly and not: nothing acknowledged is lost, and the service goes on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Server
from twophp.core.errors import CommitUnknown, StorePoisoned, StoreUnavailable
from twophp.core.intent import Intent, by_logical_key
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import read, register, verified_journal

pytestmark = pytest.mark.anyio
CALLERS = 16
ENOUGH = 200


@pytest.fixture
def server() -> Iterator[Server]:
    """One that nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="twophp-postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        yield server
        server.close()


class Load:
    """Callers that register until they are told to stop. Each does what the engine does about an error."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._ends = False
        self._grew = asyncio.Event()
        self.acknowledged: list[Intent] = []
        self.unknown = 0
        self.refused = 0

    async def caller(self, name: str) -> None:
        number = 0
        while not self._ends:
            number += 1
            try:
                intent = await register(self._store, f"{name}-{number}", arrived_at=self._store.now())
                self.acknowledged.append(intent)
                self._grew.set()
            except CommitUnknown:
                self.unknown += 1
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0)
            except StorePoisoned:
                try:
                    await self._store.reopen()
                except StoreUnavailable:
                    self.refused += 1

    async def until(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._grew.clear()
            await self._grew.wait()

    def end(self) -> None:
        self._ends = True


@pytest.mark.req("P-6-a", "P-9.1-a", "A-42")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_nothing_acknowledged_is_lost_to_a_restart(server: Server, mode: str) -> None:
    async with PostgresStore(server.url) as store:
        load = Load(store)
        callers = [asyncio.create_task(load.caller(str(number))) for number in range(CALLERS)]
        async with asyncio.timeout(120):
            await load.until(ENOUGH)
            await asyncio.to_thread(server.restart, mode)
            await load.until(ENOUGH)
        load.end()
        await asyncio.gather(*callers)
        for intent in load.acknowledged:
            assert await read(store, by_logical_key("alice", intent.client_correlation_id)) == intent
        there = len(await verified_journal(store))
        assert len(load.acknowledged) <= there <= len(load.acknowledged) + load.unknown
