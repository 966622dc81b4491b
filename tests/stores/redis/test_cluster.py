"""A cluster moves a ledger to another node while it is in use."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from tests.redis import PREFIXES
from twophp.core.intent import Phase
from twophp.stores.redis import RedisStore
from twophp.stores.redis.verify import verify
from twophp.stores.testing.scene import confirm, pair_of, read, register, sealed, settle

pytestmark = pytest.mark.anyio


async def move(url: str, prefix: str) -> None:
    """The slot of this ledger to a node that does not have it, with all keys that are in it."""
    cluster = RedisCluster.from_url(url, protocol=2)
    cluster = await cluster.initialize()
    slot = int(cluster.keyslot(f"{{{prefix}}}"))
    source = cluster.nodes_manager.get_node_from_slot(slot)
    target = next(node for node in cluster.get_primaries() if node.name != source.name)
    async with (
        Redis(host=source.host, port=int(source.port), protocol=2) as here,
        Redis(host=target.host, port=int(target.port), protocol=2) as there,
    ):
        ids = [await one.execute_command("CLUSTER", "MYID") for one in (here, there)]  # type: ignore[no-untyped-call]
        await there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])  # type: ignore[no-untyped-call]
        await here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])  # type: ignore[no-untyped-call]
        names = await here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1_000)  # type: ignore[no-untyped-call]
        assert names
        for name in names:
            moved = await here.execute_command("MIGRATE", target.host, target.port, name, 0, 5_000)  # type: ignore[no-untyped-call]
            assert moved == b"OK"
        for one in (there, here):
            await one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])  # type: ignore[no-untyped-call]
    await cluster.aclose()


@pytest.mark.req("A-52", "A-84")
async def test_a_ledger_that_is_moved_to_another_node_is_followed(redis_cluster_url: str) -> None:
    """Each handle is told by the first node that it asks, and nothing of the ledger is left behind."""
    prefix = next(PREFIXES)
    url = f"{redis_cluster_url}?prefix={prefix}"
    async with RedisStore(url) as here, RedisStore(url) as there:
        intent = await register(here, arrived_at=here.now(), seals={"payload": sealed(b"payload")})
        await move(redis_cluster_url, prefix)
        running = await confirm(there, intent)
        assert await here.unseal(pair_of(intent), "payload") == b"payload"
        await settle(here, running, seals={"response": sealed(b"answer")})
        await asyncio.gather(
            *(register(there, f"more {n}", arrived_at=there.now(), seals={"payload": sealed(b"p")}) for n in range(20))
        )
        assert (await read(there, pair_of(intent))).phase is Phase.COMMITTED
    assert (await verify(url)).findings == ()
