"""Whoever opens a store by its URL may name Redis: a tracker, a client, a readiness check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.redis import PREFIXES
from tests.stores.postgres.replicas import Replicas
from tests.stores.postgres.test_uses import call, track
from tests.stores.redis.asking import ask
from twophp.core.errors import StoreUnavailable
from twophp.core.obligation import by_id
from twophp.ports import Heralds, Obligations, Tail
from twophp.stores.redis import RedisStore
from twophp.stores.redis.verify import verify

pytestmark = pytest.mark.anyio


@pytest.mark.req("A-52")
async def test_a_tracker_keeps_its_obligations_there(ledger: str) -> None:
    ids = await asyncio.to_thread(track, ledger)
    async with RedisStore(ledger) as store:
        states = [str(one.state) for one in await store.read([by_id(name) for name in ids])]
        assert states == ["Committed", "RolledBack"]
        assert {one.obligation_id for one in await store.obligations(Obligations(flow="publish"))} == set(ids)


@pytest.mark.req("A-84")
async def test_proving_is_a_durable_change(ledger: str) -> None:
    """Of the writer's row, which is there from the beginning."""
    async with RedisStore(ledger) as store:
        assert isinstance(store, Heralds)
        before = await ask(ledger, "HGET", "writer", 1)
        await store.prove()
        assert await ask(ledger, "HGET", "writer", 1) != before
        assert await ask(ledger, "HLEN", "link") == 0
    with pytest.raises(StoreUnavailable) as refusal:
        await store.prove()
    assert refusal.value.code == "store_closed"


@pytest.mark.req("A-52", "P-9.1-b")
async def test_a_client_keeps_its_ledger_there(
    ledger: str, redis_url: str, replicas: Callable[[int], Replicas]
) -> None:
    """In another ledger on the same server."""
    here, mine = replicas(1), f"{redis_url}?prefix={next(PREFIXES)}"
    status, phase = await asyncio.to_thread(call, mine, here.ports[0])
    assert (status, phase) == (200, "COMMITTED")
    async with RedisStore(mine) as client, RedisStore(ledger) as server:
        (sent,), (received,) = await client.entries(Tail()), await server.entries(Tail())
        assert (sent.actor, sent.source, received.actor, received.source) == ("client", "checkout", "server", "orders")
        assert sent.server_correlation_id == received.server_correlation_id
        assert sent.request_digest == received.request_digest
    assert (await verify(mine)).findings == ()
