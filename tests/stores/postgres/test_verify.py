"""What was changed in the database behind the store is found, as in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import asyncpg  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from tests.stores.orders import HandClock, Orders
from tests.stores.postgres.replicas import KEYS
from tests.stores.schemas import Schema
from twophp.cli import main
from twophp.core.errors import SchemaMismatch
from twophp.core.records import JournalEvent
from twophp.engine.intents import Intents
from twophp.kernel.commands import MakeChange
from twophp.ports import Change
from twophp.stores.chains import Chain
from twophp.stores.postgres import PostgresStore
from twophp.stores.postgres.verify import verify
from twophp.stores.sqlite.verify import ProvenHead
from twophp.stores.testing.scene import confirm, finish, register, reserve, sealed, settle
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

pytestmark = pytest.mark.anyio
OPEN = "ALTER TABLE twophp.{} DISABLE TRIGGER ALL"


async def filled(schema: Schema) -> None:
    """Two writers at once, one intent handed from one to the other, and one that is open."""
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        first = await register(here, arrived_at=here.now(), seals={"payload": sealed(b"payload")})
        await settle(here, await confirm(there, first), seals={"response": sealed(b"answer")})
        names = [f"more {number}" for number in range(20)]
        stores = (here, there)
        payload = {"payload": sealed(b"payload")}
        await asyncio.gather(
            *(register(stores[n % 2], name, arrived_at=here.now(), seals=payload) for n, name in enumerate(names))  # type: ignore[arg-type]
        )
        await reserve(here, "o", "k")
        await finish(there, "o")


@pytest.mark.req("A-47", "A-52")
async def test_the_chains_of_all_writers_hold_as_one(schema: Schema) -> None:
    await filled(schema)
    told: list[tuple[int, int]] = []
    report = await verify(schema.url, progress=lambda done, total: told.append((done, total)))
    assert (report.findings, report.lines, report.records) == ((), 3 + 20 + 2, 1 + 20 + 1)
    assert told[-1][0] == told[-1][1] > report.lines
    async with PostgresStore(schema.url) as store:
        await register(store, "later", arrived_at=store.now(), seals={"payload": sealed(b"payload")})
    assert (await verify(schema.url, expect=report.head)).findings == ()
    forged = ProvenHead(report.head.seq, bytes(32))
    assert [one.what for one in (await verify(schema.url, expect=forged)).findings] == ["other_history"]


HARM: list[tuple[Sequence[str], set[str]]] = [
    (("UPDATE twophp.intent SET phase = 'WAITING_CONFIRM' WHERE phase = 'COMMITTED'",), {"record_differs"}),
    (("UPDATE twophp.intent SET path = '/other' WHERE phase = 'COMMITTED'",), {"record_differs"}),
    (("UPDATE twophp.intent SET resource_id = 'other' WHERE phase = 'COMMITTED'",), {"record_differs"}),
    (("UPDATE twophp.intent SET payload = NULL WHERE phase = 'COMMITTED'",), {"seal_missing"}),
    (("DELETE FROM twophp.intent WHERE phase = 'COMMITTED'",), {"record_missing"}),
    (
        (
            OPEN.format("link"),
            "UPDATE twophp.link SET lines = overlay(lines PLACING 'X'::bytea FROM 60) WHERE seq = 1 AND writer = 1",
        ),
        {"edited_line", "record_differs"},
    ),
    (
        (OPEN.format("link"), "DELETE FROM twophp.link WHERE id = (SELECT max(id) FROM twophp.link)"),
        {"truncated", "record_differs"},
    ),
    ((OPEN.format("writer"), "DELETE FROM twophp.writer WHERE id = 1"), {"rewritten_head"}),
    (("UPDATE twophp.writer SET previous = -1 WHERE id = 2",), {"rewritten_head", "edited_line"}),
    (("UPDATE twophp.writer SET joined = 1 WHERE id = 2",), {"edited_line"}),
    (("UPDATE twophp.joined_head SET lines = 1",), {"truncated"}),
]


def _name(harm: object) -> str:
    """The same in every process: a set has no order of its own."""
    return " ".join(sorted(harm)) if isinstance(harm, set) else str(harm)[-60:]


@pytest.mark.req("A-47")
@pytest.mark.parametrize(("statements", "expected"), HARM, ids=_name)
async def test_harm_is_found(schema: Schema, statements: Sequence[str], expected: set[str]) -> None:
    await filled(schema)
    await verify(schema.url)
    for statement in statements:
        await schema.run(statement)
    assert {one.what for one in (await verify(schema.url)).findings} == expected


EXECUTED = "DELETE FROM twophp.intent WHERE id = (SELECT max(id) FROM twophp.intent)"


async def execute(store: PostgresStore, name: str) -> Chain:
    """One intent runs to its end. Where the writer of its handle had come to before."""
    assert store._writer is not None
    before = store._writer.chain
    intent = await register(store, name, arrived_at=store.now(), seals={"payload": sealed(b"payload")})
    await settle(store, await confirm(store, intent), seals={"response": sealed(b"answer")})
    return before


async def set_back(schema: Schema, to: Chain) -> None:
    """The writer's row says that it has written no more than this."""
    statement = "UPDATE twophp.writer SET seq = $2, link = $3, lines = $4, hash = $5 WHERE id = $1"
    await schema.run(statement, to.id, to.seq, to.link, to.lines, to.hash)


async def forget_writer(schema: Schema, writer: int) -> None:
    await schema.run(OPEN.format("writer"))
    await schema.run("DELETE FROM twophp.writer WHERE id = $1", writer)


async def found_in(schema: Schema, expect: ProvenHead | None = None) -> set[str]:
    return {one.what for one in (await verify(schema.url, expect=expect)).findings}


@pytest.mark.req("A-47")
async def test_what_a_writer_without_a_row_has_written_is_still_told(schema: Schema) -> None:
    """Its links were joined by nobody before somebody deleted the row, and an intent that it had executed."""
    async with PostgresStore(schema.url) as here:
        await execute(here, "one")
        noted = (await verify(schema.url)).head
        async with PostgresStore(schema.url) as there:
            writer = (await execute(there, "two")).id
        await schema.run(EXECUTED)
        await forget_writer(schema, writer)
        assert await found_in(schema, noted) == {"rewritten_head", "record_missing"}
        assert len(await here.journal(0, 100)) == 3 + 3


@pytest.mark.req("A-47")
async def test_what_a_writer_that_was_set_back_has_written_is_still_told(schema: Schema) -> None:
    async with PostgresStore(schema.url) as here:
        await execute(here, "one")
        noted = (await verify(schema.url)).head
        before = await execute(here, "two")
        await schema.run(EXECUTED)
        await set_back(schema, before)
        assert await found_in(schema, noted) == {"rewritten_head", "record_missing"}


@pytest.mark.req("A-47")
async def test_what_was_cut_off_without_a_trace_is_found_by_a_head_that_was_noted_later(schema: Schema) -> None:
    """Links, their places, the writer's row and the records: nothing that is left speaks of them but the note."""
    async with PostgresStore(schema.url) as here:
        await execute(here, "one")
        first = (await verify(schema.url)).head
        before = await execute(here, "two")
        noted = (await verify(schema.url)).head
        await schema.run(EXECUTED)
        await set_back(schema, before)
        for name, statement in (("link", "id > $1"), ("joined", "link > $1")):
            await schema.run(OPEN.format(name))
            await schema.run(f"DELETE FROM twophp.{name} WHERE {statement}", before.link)  # noqa: S608
        assert await found_in(schema) == {"truncated"}
        await schema.run("UPDATE twophp.joined_head SET lines = $1, hash = $2", first.seq, first.digest)
        assert await found_in(schema, first) == set()
        assert await found_in(schema, noted) == {"other_history"}


@pytest.mark.req("A-47")
async def test_a_writer_that_is_gone_with_all_that_it_has_written_leaves_a_gap(schema: Schema) -> None:
    """Nobody had joined its links. The writer that began after it names it."""
    async with PostgresStore(schema.url) as here:
        await execute(here, "one")
        async with PostgresStore(schema.url) as there:
            writer = (await execute(there, "two")).id
        async with PostgresStore(schema.url) as there:
            await execute(there, "three")
        await schema.run("DELETE FROM twophp.intent WHERE client_correlation_id = 'client-two'")
        await forget_writer(schema, writer)
        await schema.run(OPEN.format("link"))
        await schema.run("DELETE FROM twophp.link WHERE writer = $1", writer)
        assert await found_in(schema) == {"rewritten_head"}


@pytest.mark.req("A-47")
@pytest.mark.parametrize("name", ["link", "joined", "writer"])
async def test_nothing_of_the_journal_is_deleted_by_mistake(schema: Schema, name: str) -> None:
    await filled(schema)
    await verify(schema.url)
    with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="append-only"):
        await schema.run(f"DELETE FROM twophp.{name}")  # noqa: S608


@pytest.mark.req("A-47")
async def test_links_that_were_slipped_in_before_joined_ones_are_found(schema: Schema) -> None:
    await filled(schema)
    await verify(schema.url)
    copied = "id - id % (1::bigint << 40), writer, seq, count, at, next_id, hash, lines"
    await schema.run(f"INSERT INTO twophp.link SELECT {copied} FROM twophp.link WHERE seq = 1 AND writer = 1")  # noqa: S608
    assert await found_in(schema) == {"edited_line"}


@pytest.mark.req("A-52")
async def test_where_there_is_no_ledger_nothing_is_made(schema: Schema) -> None:
    with pytest.raises(SchemaMismatch) as refusal:
        await verify(schema.url)
    assert refusal.value.code == "schema_too_old"
    assert await schema.run("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema.name) == []


@pytest.mark.req("A-29", "A-47")
async def test_a_line_that_is_ahead_of_its_writers_time_keeps_its_place(schema: Schema) -> None:
    """Another replica's clock was ahead by what a message takes: time goes on from there, and so does the chain."""
    async with PostgresStore(schema.url) as store:
        ahead = store.now() + 60_000
        event = JournalEvent("test", "1", "said", "", "", ahead, ahead)
        await store.transact(MakeChange(Change(answer=None, journal=(event,))))
        assert store.now() >= ahead
        await register(store, arrived_at=store.now(), seals={"payload": sealed(b"payload")})
        links = await schema.run("SELECT at FROM twophp.link ORDER BY id")
        assert links[0]["at"] <= links[1]["at"]
    assert (await verify(schema.url)).findings == ()


SWAP = """
UPDATE twophp.intent AS t SET payload = other.payload FROM twophp.intent AS other
WHERE t.client_correlation_id = 'c1' AND other.client_correlation_id = 'c2'
"""


@pytest.mark.req("A-62", "A-47")
async def test_a_sealed_part_that_was_moved_to_another_record_is_found(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is bound to its own. Without the ring nobody can tell."""
    monkeypatch.setenv("TWOPHP_KEYS", KEYS)
    clock, vault = HandClock(), open_vault(schema.url)
    async with PostgresStore(schema.url, clock=clock) as store:
        intents = Intents(store, vault, await open_ledger(store, "orders", lambda: "ledger"))
        service = Orders(cast("Any", store), vault, intents, clock)
        for number in (1, 2):
            await service.take(number)
        await reserve(store, "o", "k")
    assert (await verify(schema.url, vault=vault)).findings == ()
    await schema.run(SWAP)
    assert (await verify(schema.url)).findings == ()
    found = (await verify(schema.url, vault=vault)).findings
    assert [(one.what, one.subject) for one in found] == [("seal_unopened", "s1")]
    told = await asyncio.to_thread(CliRunner().invoke, main, ["ledger", "verify", schema.url, "--open-seals", "--json"])
    assert (told.exit_code, json.loads(told.stdout)["holds"]) == (1, False)
