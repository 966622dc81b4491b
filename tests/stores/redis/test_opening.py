"""What a ledger in Redis refuses to start with, each with a code and a cure."""

from __future__ import annotations

import asyncio

import pytest

from tests.redis import Server
from tests.stores.redis.asking import ask
from twophp.core.errors import CommitUnknown, ConfigError, SchemaMismatch, StoreError, StoreUnavailable
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Statement
from twophp.registrar import Registrar
from twophp.stores.redis import RedisStore
from twophp.stores.redis.batch import Batch
from twophp.stores.redis.verify import verify
from twophp.stores.testing.scene import confirm, register
from twophp.stores.urls import open_store, open_vault

pytestmark = pytest.mark.anyio

WEAK = [
    ("appendonly", "no"),
    ("appendfsync", "everysec"),
    ("no-appendfsync-on-rewrite", "yes"),
    ("maxmemory-policy", "allkeys-lru"),
]


async def opened(url: str) -> None:
    async with RedisStore(url):
        pass


@pytest.mark.req("A-84", "P-12.2-b")
async def test_a_server_that_may_forget_is_refused_with_the_cure(server: Server) -> None:
    for name, value in WEAK:
        before = server.ask("CONFIG", "GET", name)
        assert before
        good = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}.get(name, "noeviction")
        server.ask("CONFIG", "SET", name, value)
        with pytest.raises(ConfigError) as refusal:
            await opened(server.url)
        assert refusal.value.code == "weak_durability"
        assert f"{name}={value}: CONFIG SET {name} {good}" in refusal.value.message
        server.ask("CONFIG", "SET", name, good)
    await opened(server.url)


@pytest.mark.req("A-84")
async def test_a_server_that_came_back_weaker_is_refused(server: Server) -> None:
    """It was restarted under a running service, with another configuration."""
    async with RedisStore(server.url) as store:
        intent = await register(store, arrived_at=store.now())
        server.kill()
        server.start()
        server.ask("CONFIG", "SET", "appendfsync", "everysec")
        with pytest.raises(ConfigError) as refusal:
            await confirm(store, intent)
        assert refusal.value.code == "weak_durability"
        server.ask("CONFIG", "SET", "appendfsync", "always")
        await confirm(store, intent)


@pytest.mark.req("A-84")
async def test_what_a_server_took_that_came_back_weaker_is_not_acknowledged(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restarted between the read and the write of a batch, and the write went over a new connection."""
    commit = Batch.commit

    async def restarted(batch: Batch) -> None:
        await asyncio.to_thread(server.kill)  # The loop hears of the end of its connection.
        server.start()
        server.ask("CONFIG", "SET", "appendfsync", "everysec")
        await commit(batch)

    async with RedisStore(server.url) as store:
        monkeypatch.setattr(Batch, "commit", restarted)
        with pytest.raises(CommitUnknown):
            await register(store, arrived_at=store.now())


async def test_a_replica_of_a_server_is_refused(server: Server) -> None:
    server.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable) as refusal:
        await opened(server.url)
    assert refusal.value.code == "store_read_only"


async def test_no_memory_is_left(server: Server) -> None:
    """Nothing of a change is written, and the service says so until there is room again."""
    async with RedisStore(server.url) as store:
        server.ask("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(StoreUnavailable) as refusal:
            await register(store, arrived_at=store.now())
        assert refusal.value.code == "store_full"
        server.ask("CONFIG", "SET", "maxmemory", "0")
        await register(store, arrived_at=store.now())


@pytest.mark.parametrize("option", ["prefix=a%20b", "prefix=", "partitions=8", "nonsense=1"])
async def test_a_url_that_cannot_be_right_is_refused(redis_url: str, option: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        await opened(f"{redis_url}?{option}")
    assert refusal.value.code == "bad_store_url"


async def test_a_database_that_is_no_number_is_refused(redis_url: str) -> None:
    """The driver would take it for the first one."""
    with pytest.raises(ConfigError) as refusal:
        await opened(f"{redis_url.rpartition('/')[0]}/orders")
    assert refusal.value.code == "bad_store_url"


async def test_a_ledger_that_is_not_there_is_named(redis_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"no ledger \{nothere\} is there"):
        await verify(f"{redis_url}?prefix=nothere")


async def test_nobody_answers() -> None:
    with pytest.raises(StoreUnavailable) as refusal:
        await opened("redis://127.0.0.1:1/0")
    assert refusal.value.code == "store_unavailable"


async def test_a_newer_format_is_refused(ledger: str) -> None:
    await opened(ledger)
    await ask(ledger, "HSET", "state", "format", "99")
    with pytest.raises(SchemaMismatch) as refusal:
        await opened(ledger)
    assert refusal.value.code == "schema_too_new"


@pytest.mark.req("A-62")
def test_replicas_need_a_ring_that_all_of_them_have(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    with pytest.raises(ConfigError) as refusal:
        open_vault(ledger)
    assert refusal.value.code == "keys_required"
    assert isinstance(open_store(ledger), RedisStore)


@pytest.mark.req("A-84", "REG-6-09")
async def test_what_redis_cannot_promise_is_refused_by_name(ledger: str) -> None:
    async with RedisStore(ledger) as store:
        assert store.takes_statements is False
        change = Change(answer=None, statements=(Statement(sql="SELECT 1", rows=[()]),))
        with pytest.raises(StoreError) as refusal:
            await store.transact(AdHocCommand((), lambda _records: change))
        assert refusal.value.code == "no_sql"
    with pytest.raises(ConfigError) as refused:
        Registrar(ledger)
    assert refused.value.code == "unknown_store"
