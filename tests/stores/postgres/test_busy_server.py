"""No connection is to be had: the client hears 503 and when to come again, and then the service goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.asgi.driver import STATE, Orders, Reply, Service, serving
from tests.stores.postgres.replicas import KEYS
from tests.stores.schemas import Schema
from twophp.stores.postgres import PostgresStore, driver

pytestmark = pytest.mark.anyio
LIMIT = 4
SHORT_S = 0.2
CALLERS = 8
END_ALL = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = $1"


@asynccontextmanager
async def limited(schema: Schema) -> AsyncIterator[str]:
    """A role that may have so many connections, and no more."""
    role = f"{schema.name}_role"
    await schema.run(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {LIMIT}")
    await schema.run(f"GRANT CREATE ON DATABASE postgres TO {role}")
    try:
        yield role
    finally:
        await schema.run(END_ALL, role)
        await schema.run(f"DROP OWNED BY {role} CASCADE")
        await schema.run(f"DROP ROLE {role}")


def is_an_honest_refusal(reply: Reply) -> bool:
    return reply.status == 503 and bool(reply.get("retry-after")) and reply.get(STATE) in (None, "WAITING_CONFIRM")


async def asked(service: Service, names: range) -> list[Reply]:
    return await asyncio.gather(*(service.register(f"c-{number}") for number in names))


@pytest.mark.req("A-108", "A-52", "P-6-a")
async def test_when_the_server_takes_no_more_connections_clients_are_told_to_come_again(schema: Schema) -> None:
    """A role that needs no superuser, and may have few connections: somebody else takes them all."""
    async with limited(schema) as role:
        url = schema.url.replace("twophp@", f"{role}@")
        async with serving(Orders(), store=url, keys=KEYS) as service:
            waiting = await service.register("before")
            await schema.run(f"ALTER ROLE {role} CONNECTION LIMIT 0")
            await schema.run(END_ALL, role)
            refused = [*await asked(service, range(CALLERS)), await service.confirm(waiting, "before")]
            assert all(map(is_an_honest_refusal, refused)), refused
            assert service.orders.runs == 0
            await schema.run(f"ALTER ROLE {role} CONNECTION LIMIT {LIMIT}")
            assert (await service.confirm(waiting, "before")).get(STATE) == "COMMITTED"
            answers = await asked(service, range(CALLERS))
            assert {answer.get(STATE) for answer in answers} == {"WAITING_CONFIRM"}


@pytest.mark.req("A-108", "A-52")
async def test_when_all_connections_of_the_pool_are_busy_a_change_is_made_all_the_same(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer has a connection of its own."""
    monkeypatch.setattr(driver, "CONNECT_S", SHORT_S)
    async with serving(Orders(), store=schema.url, keys=KEYS) as service:
        registered = await service.register()
        store = service.server.store
        assert isinstance(store, PostgresStore)
        taken: list[asyncpg.Connection] = []
        while True:
            try:
                taken.append(await store._pool.acquire(timeout=SHORT_S))
            except TimeoutError:
                break
        assert len(taken) == driver.CONNECTIONS - 1
        answers = await asked(service, range(CALLERS))
        assert {answer.get(STATE) for answer in answers} == {"WAITING_CONFIRM"}
        told = await service.confirm(registered)
        assert told.get(STATE) == "COMMITTED"
        for connection in taken:
            await store._pool.release(connection)
        assert service.orders.runs == 1
