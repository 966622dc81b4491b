"""What one caller's change raises is its own refusal: whatever else is in its batch is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import product
from random import Random
from string import ascii_letters
from typing import Any

import pytest

from tests.stores.schemas import Schema
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable, TwoPHPError
from twophp.core.intent import Intent, Phase
from twophp.kernel.commands import AdHocCommand
from twophp.kernel.intents import TryStatements
from twophp.ports import Change, Statement
from twophp.stores.postgres import PostgresStore, batch
from twophp.stores.testing.scene import confirm, pair_of, read, register, reserve, settle, verified_journal

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


async def together(*changes: Awaitable[Any]) -> list[Any]:
    """In one batch, and what each of them hears."""
    return list(await asyncio.gather(*changes, return_exceptions=True))


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
        refusal, settled, made = await together(
            store.transact(command), settle(store, one), register(store, "new", arrived_at=store.now())
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
        settled, refusal = await together(settle(store, intent), reserve(store, "o", key))
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
        refusal, settled = await together(
            store.transact(writing(Statement(sql=insert, rows=[("a",)]))), settle(store, intent)
        )
        assert isinstance(refusal, StoreError)
        assert refusal.code == "bad_change"
        assert isinstance(settled, Intent)
        assert not await schema.run("SELECT id FROM twophp.orders")


@pytest.mark.req("A-52")
@pytest.mark.parametrize(
    "sql", ["/* a /* b */ */ COMMIT", "--x\rCOMMIT\n", "-- x\n;/**/;COMMIT", "/*/* */-- */ROLLBACK", "/**//**/END"]
)
@pytest.mark.parametrize("is_tried", [False, True])
async def test_no_comment_hides_a_commit(schema: Schema, sql: str, is_tried: bool) -> None:
    async with PostgresStore(schema.url) as store:
        intent, bad = await executing(store, "one"), Statement(sql=sql, rows=[()])
        command = TryStatements(intent, (bad,)) if is_tried else writing(bad, BAD["no such number"])
        refusal, made = await together(store.transact(command), register(store, "new", arrived_at=store.now()))
        assert isinstance(refusal, StoreError)
        assert refusal.code == "not_in_transaction"
        assert isinstance(made, Intent)
        await settle(store, intent)


@pytest.mark.req("A-52", "A-42")
@pytest.mark.parametrize(
    ("end", "how"),
    [
        *product(["COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "ROLLBACK AND CHAIN"], ["written", "tried", "tried alone"]),
        *product(["COMMIT", "COMMIT AND CHAIN", "ROLLBACK"], ["written and refused"]),
    ],
)
async def test_a_transaction_that_was_ended_all_the_same_stops_the_handle(
    schema: Schema, monkeypatch: pytest.MonkeyPatch, end: str, how: str
) -> None:
    """A part of the batch may be durable: nobody else is told of a refusal, and opening anew finds out."""
    async with PostgresStore(schema.url) as store:
        one, other = await executing(store, "one"), await executing(store, "other")
        with monkeypatch.context() as patch:
            patch.setattr(batch, "_first_word", len)  # It is not seen.
            ends = Statement(sql=end, rows=[()])
            bad = (ends, BAD["no such number"]) if how == "written and refused" else (ends,)
            command = TryStatements(other, bad) if how.startswith("tried") else writing(*bad)
            with_it = () if how == "tried alone" else (settle(store, one),)
            refusal, *others = await together(store.transact(command), *with_it)
        assert isinstance(refusal, StoreError)
        if not others:
            assert (type(refusal), refusal.code) == (StoreError, "not_in_transaction")
        assert all(isinstance(unsure, CommitUnknown | StorePoisoned) for unsure in others)
        with pytest.raises(StorePoisoned):
            await read(store, pair_of(one))
        await store.reopen()
        is_durable = bool(others) and end.startswith("COMMIT")
        assert (await read(store, pair_of(one))).phase is (Phase.COMMITTED if is_durable else Phase.PROCESSING)
        await settle(store, other)
        assert len(await verified_journal(store)) == 5 + is_durable


FORGED = "INSERT INTO twophp.link SELECT id + 1, writer, seq, count, at, next_id, hash, lines FROM twophp.link"


@pytest.mark.req("A-42")
@pytest.mark.parametrize("harm", [FORGED, "UPDATE twophp.writer SET seq = seq + 1"])
async def test_a_link_or_a_row_that_somebody_else_wrote_stops_the_handle(schema: Schema, harm: str) -> None:
    """It is no refusal of the change: this handle cannot write any more, and the next one can."""
    async with PostgresStore(schema.url) as store:
        intent = await register(store, arrived_at=store.now())
        await schema.run(harm)
        with pytest.raises(StorePoisoned):
            await confirm(store, intent)
        with pytest.raises(StorePoisoned):
            await read(store, pair_of(intent))
        await store.reopen()
        assert (await confirm(store, intent)).phase is Phase.PROCESSING
