"""What one caller's change raises is its own refusal: whatever else is in its batch is written."""

from __future__ import annotations

import asyncio
from random import Random
from string import ascii_letters

import pytest

from tests.stores.schemas import Schema
from twophp.core.errors import StoreError, StoreUnavailable, TwoPHPError
from twophp.core.intent import Intent, Phase
from twophp.kernel.commands import AdHocCommand
from twophp.kernel.intents import TryStatements
from twophp.ports import Change, Statement
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import confirm, register, reserve, settle, verified_journal

pytestmark = pytest.mark.anyio

TOO_LOW = """
CREATE FUNCTION twophp.too_low() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the stock is too low'; END $$
"""
REFUSED_LATE = """
CREATE FUNCTION twophp.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'too late'; END $$;
CREATE TABLE twophp.orders (id text);
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON twophp.orders DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION twophp.late();
"""
BAD = {
    "no such table": Statement(sql="INSERT INTO nowhere VALUES ($1)", rows=[("a",)]),
    "no such syntax": Statement(sql="INSRT 1", rows=[()]),
    "too many values": Statement(sql="SELECT $1::text", rows=[("a", "b")]),
    "too few values": Statement(sql="SELECT $1::text, $2::text", rows=[("a",)]),
    "another type": Statement(sql="SELECT $1::int", rows=[("a",)]),
    "raised": Statement(sql="SELECT twophp.too_low()", rows=[()]),
    "no such number": Statement(sql="SELECT 1 / 0", rows=[()]),
    "canceled": Statement(sql="SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(9)", rows=[()]),
}


def writing(*statements: Statement) -> AdHocCommand:
    return AdHocCommand((), lambda _records: Change(answer=None, statements=statements))


async def executing(store: PostgresStore, name: str) -> Intent:
    return await confirm(store, await register(store, name, arrived_at=store.now()))


@pytest.mark.req("A-52")
@pytest.mark.parametrize("is_tried", [False, True])
@pytest.mark.parametrize("name", BAD)
async def test_a_statement_that_the_database_refuses_harms_nobody_else(
    schema: Schema, name: str, is_tried: bool
) -> None:
    """Neither a settlement in the same batch nor the session: an innocent one that fails would be run again."""
    async with PostgresStore(schema.url) as store:
        await schema.run(TOO_LOW)
        one, other = await executing(store, "one"), await executing(store, "other")
        bad = Statement(sql=BAD[name].sql.replace("twophp.", f"{schema.name}."), rows=BAD[name].rows)
        session = store._writer._connection  # type: ignore[union-attr]
        command = TryStatements(other, (bad,)) if is_tried else writing(bad)
        refusal, settled, made = await asyncio.gather(
            store.transact(command),
            settle(store, one),
            register(store, "new", arrived_at=store.now()),
            return_exceptions=True,
        )
        assert isinstance(refusal, StoreError)
        assert not isinstance(refusal, StoreUnavailable)
        assert refusal.code == "bad_change"
        assert isinstance(settled, Intent)
        assert settled.phase is Phase.COMMITTED
        assert isinstance(made, Intent)
        assert store._writer._connection is session, "it is well"  # type: ignore[union-attr]
        assert len(await verified_journal(store)) == 6


@pytest.mark.req("A-52")
async def test_a_key_too_long_for_an_index_is_its_callers_alone(schema: Schema) -> None:
    async with PostgresStore(schema.url) as store:
        intent, key = await executing(store, "one"), "".join(Random(1).choices(ascii_letters, k=9_000))  # noqa: S311
        settled, refusal = await asyncio.gather(settle(store, intent), reserve(store, "o", key), return_exceptions=True)
        assert isinstance(settled, Intent)
        assert isinstance(refusal, TwoPHPError)
        assert refusal.code == "bad_change"


@pytest.mark.req("A-52", "A-42")
async def test_what_is_refused_at_the_commit_is_certain(schema: Schema) -> None:
    """All of it was rolled back: the handle goes on, and the others are written without it."""
    async with PostgresStore(schema.url) as store:
        connection = await schema.hold("SELECT 1")
        await connection.execute(REFUSED_LATE.replace("twophp.", f"{schema.name}."))
        await connection.execute("COMMIT")
        await connection.close()
        intent = await executing(store, "one")
        insert = "INSERT INTO twophp.orders VALUES ($1)".replace("twophp", schema.name)
        refusal, settled = await asyncio.gather(
            store.transact(writing(Statement(sql=insert, rows=[("a",)]))),
            settle(store, intent),
            return_exceptions=True,
        )
        assert isinstance(refusal, StoreError)
        assert refusal.code == "bad_change"
        assert isinstance(settled, Intent)
        assert not await schema.run("SELECT id FROM twophp.orders")
