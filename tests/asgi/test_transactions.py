"""``intent.transaction()``: the business rows and COMMITTED in one commit, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.asgi.driver import MESSAGE, SERVER, STATE, Behaviour, Orders, Seen, Service, answer, created, serving
from twophp import Policy, current_intent
from twophp.asgi.messages import Send
from twophp.stores.sqlite.verify import verify

pytestmark = pytest.mark.anyio

TABLE = "CREATE TABLE shop (id TEXT PRIMARY KEY, sku TEXT NOT NULL)"
ADD = "INSERT INTO shop (id, sku) VALUES (?, ?)"
COUNT = "SELECT count(*) FROM shop"


@asynccontextmanager
async def shopping(tmp_path: Path, behave: Behaviour = created, **settings: Any) -> AsyncIterator[Service]:
    """A service whose ledger file has a business table in it."""
    async with serving(Orders(behave), store=f"sqlite:///{tmp_path}/shop.db", **settings) as service:
        await service.rows()
        connection = apsw.Connection(str(tmp_path / "shop.db"))
        connection.execute(TABLE)
        connection.close()
        yield service


def rows(tmp_path: Path) -> int:
    connection = apsw.Connection(str(tmp_path / "shop.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        (count,) = next(connection.execute(COUNT))
    finally:
        connection.close()
    assert isinstance(count, int)
    return count


async def adds(app: Orders, seen: Seen, send: Send) -> None:
    intent = current_intent()
    assert intent is not None
    async with intent.transaction() as tx:
        tx.execute(ADD, ("one", seen.body.decode()))
        tx.executemany(ADD, [("two", "b"), ("three", "c")])
    if seen.body == b"wait":
        app.entered.set()
        await app.may_go_on.wait()
    await answer(send, 422 if seen.body == b"invalid" else 201)


@pytest.mark.req("A-34", "P-5.3.2-c")
async def test_rows_and_outcome_are_one_commit(tmp_path: Path) -> None:
    async with shopping(tmp_path, adds) as service:
        registered = await service.register(body=b"wait")
        confirm = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        assert (rows(tmp_path), await service.phase(registered.get(SERVER))) == (0, "PROCESSING")
        service.orders.may_go_on.set()
        assert (await confirm).get(STATE) == "COMMITTED"
        assert rows(tmp_path) == 3
        await service.confirm(registered)
        assert (rows(tmp_path), service.orders.runs) == (3, 1)


@pytest.mark.req("A-34")
async def test_a_handler_that_says_no_leaves_no_rows(tmp_path: Path) -> None:
    async with shopping(tmp_path, adds) as service:
        registered = await service.register(body=b"invalid")
        assert (await service.confirm(registered)).status == 422
        assert rows(tmp_path) == 0


@pytest.mark.req("A-108", "P-5.3.2-e")
async def test_rows_that_are_refused_fail_the_intent_and_leave_nothing(tmp_path: Path) -> None:
    async with shopping(tmp_path, adds) as service:
        await service.both("c-1")
        registered = await service.register("c-2")
        failed = await service.confirm(registered, "c-2")
        assert (failed.status, failed.get(STATE), failed.get(MESSAGE)) == (500, "FAILED", "Processing failed.")
        assert await service.confirm(registered, "c-2") == failed
        assert rows(tmp_path) == 3


@pytest.mark.req("A-108", "A-37")
async def test_refused_rows_are_no_success_for_a_plain_client_either(tmp_path: Path) -> None:
    policies = Policy.standard(transparent=True)
    async with shopping(tmp_path, adds, policies=policies) as service:
        assert (await service.request("POST", "/orders", {}, b"a")).status == 201
        assert (await service.request("POST", "/orders", {}, b"b")).status == 500
        assert rows(tmp_path) == 3
        assert sorted(row.phase for row in await service.rows()) == ["COMMITTED", "FAILED"]


@pytest.mark.req("A-34")
async def test_a_block_that_ends_badly_counts_for_nothing(tmp_path: Path) -> None:
    async def gives_up(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        with suppress(ZeroDivisionError):
            async with intent.transaction() as tx:
                tx.execute(ADD, ("one", "a"))
                raise ZeroDivisionError
        await answer(send)

    async with shopping(tmp_path, gives_up) as service:
        _registered, done = await service.both()
        assert (done.get(STATE), rows(tmp_path)) == ("COMMITTED", 0)


@pytest.mark.req("P-9.3-a")
async def test_a_transaction_that_thinks_holds_no_lock(tmp_path: Path) -> None:
    async with shopping(tmp_path, adds) as service:
        slow = await service.register("c-1", body=b"wait")
        thinking = asyncio.create_task(service.confirm(slow, "c-1"))
        await service.orders.entered.wait()
        _registered, done = await service.both("c-2")
        assert (done.status, rows(tmp_path)) == (200, 3)
        service.orders.may_go_on.set()
        assert (await thinking).get(STATE) == "FAILED"  # Its rows came second.


async def test_a_store_without_sql_says_so_where_it_is_asked() -> None:
    async with serving(Orders(adds)) as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (500, "FAILED")


@pytest.mark.parametrize(
    "ends",
    ["COMMIT", "commit;", "/* now */ ROLLBACK", f"{ADD.replace('?', '1')}; END", "SAVEPOINT mine", "RELEASE mine"],
)
async def test_no_statement_ends_the_transaction_it_shares(ends: str, tmp_path: Path) -> None:
    async def ending(_app: Orders, seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        async with intent.transaction() as tx:
            tx.execute(ADD, ("one", "a"))
            if seen.body == b"ends":
                tx.execute(ends)
        await answer(send)

    async with shopping(tmp_path, ending) as service:
        failed = await service.confirm(await service.register("c-1", body=b"ends"), "c-1")
        assert (failed.status, failed.get(STATE), rows(tmp_path)) == (500, "FAILED", 0)
        done = await service.confirm(await service.register("c-2", body=b"stays"), "c-2")
        assert (done.get(STATE), rows(tmp_path)) == ("COMMITTED", 1)
    assert verify(str(tmp_path / "shop.db")).holds


@pytest.mark.parametrize("parameters", [{"id": "one", "sku": "tea"}, "ab", b"ab"])
async def test_parameters_are_given_by_position(parameters: Any, tmp_path: Path) -> None:
    async def naming(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        async with intent.transaction() as tx:
            tx.execute(ADD, parameters)
        await answer(send)

    async with shopping(tmp_path, naming) as service:
        assert ((await service.both())[1].get(STATE), rows(tmp_path)) == ("FAILED", 0)
