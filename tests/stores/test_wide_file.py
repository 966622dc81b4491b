"""One row for an intent, seen in the file: keys whose hashes collide, parts that are large, and who writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.stores import forging
from tests.stores.orders import POLICY, HandClock, orders, raw
from tests.stores.verifying import forgotten, found
from twophp.core.intent import Phase
from twophp.ports import Put
from twophp.stores.sqlite import SQLiteStore, hashes
from twophp.stores.sqlite.batch import INLINE_BYTES
from twophp.stores.testing import scene
from twophp.stores.testing.scene import pair_of, register, write


@pytest.mark.req("A-32", "REG-1-05")
@pytest.mark.parametrize("at_once", [True, False])
def test_keys_with_the_same_hashes_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Every id and every principal has one hash here: nothing is found under another's key, and nothing is lost."""

    async def scenario() -> None:
        monkeypatch.setattr(hashes, "client_hash", lambda _text: 7)
        monkeypatch.setattr(hashes, "who_hash", lambda _text: 3)
        path = tmp_path / "orders.db"
        async with orders(path) as service:
            if at_once:
                await asyncio.gather(*(service.take(n) for n in range(9)))
            else:
                for n in range(9):
                    await service.take(n)
            assert [(await service.find(n)).phase for n in range(9)] == [Phase.COMMITTED] * 9
            again = await service.register(4)
            assert (again.server_correlation_id, again.phase) == ("s4", Phase.COMMITTED), (
                "a repeat is answered from its own"
            )
        assert sorted(raw(path, "SELECT who FROM intent")) == [(place,) for place in range(3, 12)]
        assert found(path) == []
        await forgotten(path)
        async with orders(path, clock=HandClock(HandClock().now + 9 * POLICY.horizon_ms)) as service:
            assert (await service.take(4)).phase is Phase.COMMITTED, "a key that was freed can be used again"

    asyncio.run(scenario())


@pytest.mark.req("A-62")
@pytest.mark.parametrize("size", [1, 200, INLINE_BYTES - 1, INLINE_BYTES * 3, 100_000])
def test_a_part_of_any_size_is_kept_read_and_forgotten(tmp_path: Path, size: int) -> None:
    path = tmp_path / "orders.db"

    async def scenario() -> None:
        async with orders(path) as service:
            await service.register(1, b"x" * size)
            settled = await service.settle(1)
            assert await service.intents.payload(settled) == b"x" * size
            assert await service.intents.response(settled) is not None

    asyncio.run(scenario())
    assert raw(path, "SELECT count(*) FROM seal") == [(int(size >= INLINE_BYTES - 1),)]
    assert found(path) == []
    asyncio.run(forgotten(path))
    assert raw(path, "SELECT count(*) FROM sealed_part") == [(0,)]
    assert found(path) == []


@pytest.mark.req("A-29")
def test_a_batch_without_a_line_still_moves_time_and_ids_on(tmp_path: Path) -> None:

    async def scenario() -> None:
        path, clock = tmp_path / "ledger.db", HandClock()
        async with SQLiteStore(str(path), clock=clock) as store:
            running = await scene.confirm(store, await register(store))
            clock.now += 5_000
            renewed = replace(running, version=running.version + 1, lease_until=clock.now + 1)
            await write(store, Put(record=renewed), keys=(pair_of(running),))
            links = len(forging.links(path))
        clock.now -= 5_000
        async with SQLiteStore(str(path), clock=clock) as store:
            assert store.now() >= clock.now + 5_000
            await register(store, "2")
        assert links == 2
        assert raw(path, "SELECT id FROM intent ORDER BY id") == [(1,), (2,)]

    asyncio.run(scenario())


def test_each_handle_writes_under_a_name_of_its_own(tmp_path: Path) -> None:

    async def scenario() -> None:
        path = tmp_path / "orders.db"
        for n in range(3):
            async with orders(path) as service:
                await service.take(n)
        assert len(raw(path, "SELECT * FROM writer")) == 3
        assert [link.seq for link in forging.links(path)] == [1, 2, 3] * 3
        assert found(path) == []

    asyncio.run(scenario())
