"""Opening: what would not be durable is refused, keys are required, and everything has a code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.stores.schemas import Schema
from twophp.core.errors import (
    ConfigError,
    ConstraintViolation,
    SchemaMismatch,
    StorePoisoned,
    StoreUnavailable,
    TwoPHPError,
)
from twophp.core.intent import Phase
from twophp.core.obligation import by_id
from twophp.core.records import Instant, Key
from twophp.kernel.commands import ReadRecords
from twophp.ports import Tail
from twophp.stores.chains import Chain
from twophp.stores.postgres import PostgresStore, driver
from twophp.stores.postgres import opening as opens
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.verify import verify
from twophp.stores.testing.scene import confirm, register, reserve, sealed, settle, verified_journal
from twophp.stores.urls import absolute_url, open_blocking, open_store, open_vault, opening, parse_store_url

pytestmark = pytest.mark.anyio
MANY = 8


async def code_of(url: str) -> str:
    with pytest.raises(TwoPHPError) as refusal:
        await PostgresStore(url).open()
    assert "secret" not in str(refusal.value)
    return refusal.value.code


@pytest.mark.req("A-84", "P-12.2-a")
async def test_what_is_weaker_than_promised_is_refused(schema: Schema) -> None:
    assert await code_of(f"{schema.url}&synchronous_commit=off") == "weak_durability"


@pytest.mark.req("A-52")
async def test_a_standby_or_what_cannot_be_reached_is_not_available(schema: Schema) -> None:
    assert await code_of(f"{schema.url}&default_transaction_read_only=on") == "store_read_only"
    assert await code_of("postgresql://u:secret@127.0.0.1:1/none") == "store_unavailable"
    assert await code_of(schema.url.replace("/postgres?", "/nowhere?")) == "no_such_database"


@pytest.mark.req("A-52")
async def test_an_url_that_says_something_else_is_refused(schema: Schema) -> None:
    for options in ("schema=Drop--", "schema=", "pgbouncer=yes"):
        assert await bad_url(f"{schema.server}?{options}") == "bad_store_url"


async def bad_url(url: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        PostgresStore(url)
    return refusal.value.code


@pytest.mark.req("A-62")
async def test_without_a_key_ring_nothing_starts(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is the place for a ring that every replica needs."""
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)
    with pytest.raises(ConfigError) as refusal:
        open_vault(schema.url)
    assert refusal.value.code == "keys_required"
    vault = open_vault(schema.url, f"one:{'a' * 43}=")
    assert vault.open(vault.seal(b"x", context=b"y"), context=b"y") == b"x"


@pytest.mark.req("A-52")
async def test_it_is_opened_by_its_url(schema: Schema) -> None:
    assert parse_store_url(schema.url).kind == "postgresql"
    assert absolute_url(schema.url) == schema.url
    assert open_blocking(schema.url) is None
    async with opening(schema.url) as store:
        assert await store.get_or_set_meta("service", "orders") == "orders"
        await store.close()
    store = open_store(schema.url)
    with pytest.raises(StoreUnavailable) as refusal:
        await store.read((by_id("1"),))
    assert refusal.value.code == "store_not_open"


@pytest.mark.req("A-52")
async def test_many_that_open_at_once_migrate_once(schema: Schema) -> None:
    stores = [PostgresStore(schema.url) for _ in range(MANY)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))
    assert [row["number"] for row in await schema.run("SELECT number FROM twophp.schema_version")] == [1, 2, 3, 4]
    assert len(await schema.run("SELECT id FROM twophp.writer")) == MANY
    await schema.run("INSERT INTO twophp.schema_version VALUES (99)")
    with pytest.raises(SchemaMismatch) as refusal:
        await stores[0].__class__(schema.url).open()
    assert refusal.value.code == "schema_too_new"


async def older(schema: Schema, monkeypatch: pytest.MonkeyPatch, steps: int = 1) -> PostgresStore:
    """A handle of a version of twophp that knows only the first schema, on that."""
    script = Script(schema.name)
    known = script.migrations()[:steps]
    with monkeypatch.context() as patch:
        patch.setattr(Script, "migrations", lambda _self: known)
        patch.setattr(opens, "begin_writer", begin_writer_of_the_first)
        store = PostgresStore(schema.url)
        await store.open()
    return store


async def begin_writer_of_the_first(connection: Any, script: Script, name: str) -> tuple[Chain, Instant]:
    """As the first version did."""
    statement = script.spelled(
        "INSERT INTO twophp.writer SELECT nextval('twophp.writer_id'), $1, 0, 0, 0, ''::bytea,"
        " (SELECT coalesce(max(at), 0) FROM twophp.writer), false RETURNING id, at"
    )
    id_, at = await connection.fetchrow(statement, name)
    return Chain(id_), at


@pytest.mark.req("A-52", "A-42")
async def test_a_handle_of_an_older_version_writes_no_more_after_a_migration(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can it begin anew. What it wrote before is there, and holds."""
    old = await older(schema, monkeypatch)
    intent = await register(old, arrived_at=old.now(), seals={"payload": sealed(b"payload")})
    async with PostgresStore(schema.url) as new:
        with pytest.raises(StorePoisoned):
            await register(old, "late", arrived_at=old.now())
        monkeypatch.setattr(opens, "begin_writer", begin_writer_of_the_first)
        with pytest.raises(ConstraintViolation):
            await old.reopen()
        monkeypatch.undo()
        monkeypatch.setattr(Script, "migrations", lambda _self: [(1, "")])
        with pytest.raises(StoreUnavailable) as refusal:
            await old.reopen()
        assert refusal.value.code == "schema_too_new"
        monkeypatch.undo()
        assert (await confirm(new, intent)).phase is Phase.PROCESSING
    await old.close()
    assert (await verify(schema.url)).findings == ()


@pytest.mark.req("A-52")
async def test_a_migration_waits_for_a_batch_that_is_under_way(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await older(schema, monkeypatch)
    await register(old, arrived_at=old.now())
    batch = await schema.hold("UPDATE twophp.writer SET seq = seq")
    new = PostgresStore(schema.url)
    starting = asyncio.create_task(new.open())
    await waiting(schema, "transactionid")
    await batch.execute("COMMIT")
    await batch.close()
    await starting
    await new.close()
    await old.close()


@pytest.mark.req("A-52")
async def test_who_waits_for_a_migration_is_not_cut_off(
    schema: Schema, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However short the time is in which a statement must be answered. The log says why nothing happens."""
    caplog.set_level("INFO", "twophp.store")
    monkeypatch.setattr(driver, "STATEMENT_S", 0.5)
    migrates = await schema.hold(Script(schema.name).named("lock_schema"))
    monkeypatch.setitem(driver._SETTINGS, "lock_timeout", "500ms")
    store = PostgresStore(schema.url)
    starting = asyncio.create_task(store.open())
    await waiting(schema, "advisory")
    await schema.run("SELECT pg_sleep(1)")  # Longer than either limit.
    assert not starting.done()
    await migrates.close()
    await starting
    await store.close()
    assert any("waiting for it" in record.message for record in caplog.records)


async def waiting(schema: Schema, what: str) -> None:
    """Until somebody waits for such a lock."""
    async with asyncio.timeout(30):
        while not await schema.run("SELECT 1 FROM pg_stat_activity, pg_sleep(0.01) WHERE wait_event = $1", what):
            pass


@pytest.mark.req("A-52")
async def test_without_prepared_statements_and_sessions_it_works_as_well(schema: Schema) -> None:
    """As behind PgBouncer: the URL says so."""
    async with PostgresStore(f"{schema.url}&pgbouncer=1") as store:
        intent = await settle(store, await confirm(store, await register(store, arrived_at=store.now())))
        await reserve(store, "o")
        await store.news_of(intent.server_correlation_id, 0)
        assert [row.phase for row in await store.entries(Tail())] == [Phase.COMMITTED]
        assert len(await verified_journal(store)) == 3 + 1


@pytest.mark.req("A-84")
async def test_what_it_does_not_keep_is_refused_by_name(schema: Schema) -> None:
    async with PostgresStore(schema.url) as store:
        with pytest.raises(TwoPHPError) as refusal:
            await store.transact(ReadRecords((Key("order.id", ("1",)),)))
        assert refusal.value.code == "unknown_record"
