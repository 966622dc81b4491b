"""What is known after a connection was lost: nothing was written, or nobody can tell and opening anew finds out."""

from __future__ import annotations

import asyncio

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.stores.schemas import Schema
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned
from twophp.core.intent import Phase
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Statement
from twophp.stores import group_commit
from twophp.stores.clock import system_clock
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import confirm, pair_of, read, register, sealed, settle, verified_journal

pytestmark = pytest.mark.anyio

# A commit that takes as long as somebody holds the row: at its end a deferred trigger waits for it.
SLOW_COMMIT = """
CREATE TABLE twophp.brake (one boolean);
INSERT INTO twophp.brake VALUES (true);
CREATE FUNCTION twophp.wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM twophp.brake FOR UPDATE;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON twophp.link DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION twophp.wait();
"""
HOLD = "SELECT 1 FROM twophp.brake FOR UPDATE"


async def backend_in_commit(schema: Schema) -> int:
    """The session that waits at the end of its commit."""
    while True:
        found = await schema.run(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ILIKE 'commit%'"
        )
        if found:
            return int(found[0][0])


@pytest.mark.req("A-42")
async def test_a_session_that_ended_while_nothing_was_under_way_is_replaced(schema: Schema) -> None:
    """The server was restarted, or somebody ended all sessions: the next change is written all the same."""
    async with PostgresStore(schema.url) as store:
        intent = await register(store, arrived_at=store.now())
        await schema.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'twophp'")
        assert (await confirm(store, intent)).phase is Phase.PROCESSING


@pytest.mark.req("A-42", "P-6-a")
@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_lost_commit_is_unknown_until_the_store_was_opened_anew(schema: Schema, is_committed: bool) -> None:
    """Opening anew waits until the server has come to an end with it."""
    async with PostgresStore(schema.url) as store:
        intent = await register(store, arrived_at=store.now())
        connection = await asyncpg.connect(schema.server)
        await connection.execute(SLOW_COMMIT.replace("twophp.", f"{schema.name}."))
        await connection.execute("BEGIN")
        await connection.execute(HOLD.replace("twophp.", f"{schema.name}."))
        change = asyncio.create_task(confirm(store, intent))
        pid = await backend_in_commit(schema)
        if is_committed:
            store._writer._connection.terminate()  # type: ignore[union-attr]  # The network is cut.
        else:
            await schema.run("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(CommitUnknown):
            await change
        with pytest.raises(StorePoisoned):
            await read(store, pair_of(intent))
        opens = asyncio.create_task(store.reopen())
        await asyncio.sleep(0)
        await connection.execute("COMMIT")
        await connection.close()
        await opens
        found = await read(store, pair_of(intent))
        assert found.phase is (Phase.PROCESSING if is_committed else Phase.WAITING_CONFIRM)
        await settle(store, found if is_committed else await confirm(store, found))
        assert len(await verified_journal(store)) == 3


@pytest.mark.req("A-29")
async def test_the_databases_time_counts(schema: Schema) -> None:
    """Whatever the machine's clock says; two replicas differ by less than a message takes."""
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        (said,) = await schema.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS at")
        assert abs(here.now() - said["at"]) < 5_000
        assert abs(here.now() - there.now()) < 1_000
        behind = system_clock() - 3_600_000
        await schema.run("UPDATE twophp.writer SET at = $1", behind + 7_200_000)
    async with PostgresStore(schema.url) as later:
        assert later.now() >= behind + 7_200_000, "time never runs backwards, whoever wrote last"


@pytest.mark.req("A-33")
async def test_whoever_waits_hears_of_another_replicas_answer(schema: Schema) -> None:
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        intent = await confirm(here, await register(here, arrived_at=here.now()))
        await there.news_of("nobody's", 0)  # It listens from here on.
        waits = asyncio.create_task(there.news_of(intent.server_correlation_id, 600))
        await asyncio.sleep(0)
        await settle(here, intent)
        async with asyncio.timeout(30):
            await waits
        assert (await read(there, pair_of(intent))).phase is Phase.COMMITTED


@pytest.mark.req("A-52")
async def test_business_rows_are_there_with_the_change_or_not_at_all(schema: Schema) -> None:
    """A statement that ends the transaction, or that the database refuses, is its caller's mistake alone."""
    async with PostgresStore(schema.url) as store:
        await schema.run("CREATE TABLE twophp.orders (id text PRIMARY KEY)")
        insert = "INSERT INTO twophp.orders VALUES ($1)".replace("twophp", schema.name)

        async def write(sql: str, *row: str) -> None:
            change = Change(answer=None, statements=(Statement(sql=sql, rows=[row]),))
            await store.transact(AdHocCommand((), lambda _records: change))

        outcomes = await asyncio.gather(
            write(insert, "a"),
            write(insert, "b"),
            write(insert, "a"),
            write(" /* so */ COMMIT"),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes[:2]] == [type(None)] * 2
        assert [outcome.code for outcome in outcomes[2:] if isinstance(outcome, StoreError)] == [
            "constraint",
            "not_in_transaction",
        ]
        assert len(await schema.run("SELECT 1 FROM twophp.orders")) == 2


@pytest.mark.req("A-108")
async def test_large_payloads_that_come_together_are_written_apart(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is one message; each half of it is written by itself, down to a single change of any size."""
    monkeypatch.setattr(group_commit, "MOST_BYTES", 1_000)
    async with PostgresStore(schema.url) as store:
        payloads = [sealed(bytes(600) + str(number).encode()) for number in range(8)]
        names = [str(number) for number in range(8)]
        made = await asyncio.gather(
            *(
                register(store, name, arrived_at=store.now(), seals={"payload": payload})
                for name, payload in zip(names, payloads, strict=True)
            )
        )
        assert [await store.unseal(pair_of(intent), "payload") for intent in made] == payloads
        assert [row.client_correlation_id for row in await store.changes(10)] == [f"client-{name}" for name in names]
        assert len(await schema.run("SELECT id FROM twophp.link")) == len(names)


@pytest.mark.req("A-34")
@pytest.mark.parametrize("option", ["", "&pgbouncer=1"])
async def test_a_replica_that_stands_still_in_a_batch_holds_its_rows_for_some_seconds_only(
    schema: Schema, option: str
) -> None:
    """The server ends a session that does nothing inside a transaction."""
    async with PostgresStore(schema.url + option) as store:
        connection = await store._pool.acquire()
        await connection.execute(store._script.begin)
        assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "10s"
        assert await connection.fetchval("SHOW lock_timeout") == "20s"
        await connection.execute("ROLLBACK")
        await store._pool.release(connection)
