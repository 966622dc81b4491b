"""Whoever opens a store by its URL may name PostgreSQL: a tracker, a client, a readiness check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.stores.postgres.replicas import KEYS, Replicas
from tests.stores.schemas import Schema
from twophp.client import TwoPhaseTransport
from twophp.core.errors import StoreUnavailable
from twophp.core.obligation import by_id
from twophp.obligations import ObligationTracker
from twophp.ports import Heralds, Obligations, Tail
from twophp.stores.postgres import PostgresStore
from twophp.stores.postgres.verify import verify
from twophp.stores.testing.scene import register

pytestmark = pytest.mark.anyio


def track(url: str) -> list[str]:
    """One of each end, from a thread without a loop of its own."""
    with ObligationTracker(url, keys=KEYS) as tracker:
        done = tracker.reserve("publish", {"key": "k1"}, "trace")
        tracker.commit(done, "trace")
        undone = tracker.reserve("publish", {"key": "k1"}, "trace")
        tracker.rollback(undone, "trace")
    return [done, undone]


@pytest.mark.req("A-52")
async def test_a_tracker_keeps_its_obligations_there(schema: Schema) -> None:
    ids = await asyncio.to_thread(track, schema.url)
    async with PostgresStore(schema.url) as store:
        states = [str(one.state) for one in await store.read([by_id(name) for name in ids])]
        assert states == ["Committed", "RolledBack"]
        assert {one.obligation_id for one in await store.obligations(Obligations(flow="publish"))} == set(ids)


@pytest.mark.req("A-84")
async def test_proving_is_a_durable_change(schema: Schema) -> None:
    """Of the writer's row, which is there from the beginning."""
    async with PostgresStore(schema.url) as store:
        assert isinstance(store, Heralds)
        (before,) = await schema.run("SELECT xmin::text AS by, seq FROM twophp.writer")
        await store.prove()
        (after,) = await schema.run("SELECT xmin::text AS by, seq FROM twophp.writer")
        assert (after["by"] != before["by"], after["seq"]) == (True, before["seq"])
    with pytest.raises(StoreUnavailable) as refusal:
        await store.prove()
    assert refusal.value.code == "store_closed"


@pytest.mark.req("A-57")
async def test_two_that_sweep_pass_over_what_a_batch_holds(schema: Schema) -> None:
    """It is attended to already."""
    async with PostgresStore(schema.url) as store:
        for name in ("1", "2"):
            await register(store, name, arrived_at=store.now())
        far = store.now() + 10**9
        assert len(await store.due("intent", far, 10)) == 2
        held = await schema.hold("SELECT 1 FROM twophp.intent WHERE client_correlation_id = 'client-1' FOR UPDATE")
        assert [key.values[0] for key in await store.due("intent", far, 10)] == ["client-2"]
        await held.close()


def call(url: str, port: int) -> tuple[int, str]:
    """Both phases, from a program without a loop."""
    transport = TwoPhaseTransport(ledger=url, source="checkout", keys=KEYS, allow_insecure=True)
    with httpx.Client(transport=transport, timeout=60) as client:
        answer = client.post(f"http://127.0.0.1:{port}/orders", json={})
        return answer.status_code, str(answer.extensions["twophp"]["phase"])


@pytest.mark.req("A-52", "P-9.1-b")
async def test_a_client_keeps_its_ledger_there(schema: Schema, replicas: Callable[[int], Replicas]) -> None:
    """In another schema of the same database."""
    here, mine = replicas(1), f"{schema.server}?schema={schema.name}_client"
    status, phase = await asyncio.to_thread(call, mine, here.ports[0])
    assert (status, phase) == (200, "COMMITTED")
    async with PostgresStore(mine) as client, PostgresStore(schema.url) as server:
        (sent,), (received,) = await client.entries(Tail()), await server.entries(Tail())
        assert (sent.actor, sent.source, received.actor, received.source) == ("client", "checkout", "server", "orders")
        assert sent.server_correlation_id == received.server_correlation_id
        assert sent.request_digest == received.request_digest
    assert (await verify(mine)).findings == ()
    await schema.run(f"DROP SCHEMA {schema.name}_client CASCADE")
