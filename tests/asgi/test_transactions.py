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
from twophp import ConstraintViolation, Policy, current_intent
from twophp.asgi.messages import Send
from twophp.asgi.server import INDETERMINATE
from twophp.core.errors import Refused, StoreUnavailable
from twophp.core.intent_commands import Settle
from twophp.engine.current import RunningIntent
from twophp.engine.exchange import encode
from twophp.stores.sqlite import SQLiteStore
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
        with pytest.raises(ConstraintViolation):  # Its server's to answer, as it would be without us.
            await service.request("POST", "/orders", {}, b"b")
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
        failed = await thinking  # Its rows came second, though they were the first that were tried.
        assert (failed.status, failed.get(STATE)) == (409, "FAILED")
        assert b"constraint_violated" in failed.body
        assert await service.confirm(slow, "c-1") == failed
        assert rows(tmp_path) == 3


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


def running() -> RunningIntent:
    intent = current_intent()
    assert intent is not None
    return intent


def told_in_a_thread(sku: str) -> int:
    """A handler that is a plain function: what the database refuses is its own answer."""
    try:
        with running().transaction() as tx:
            tx.execute(ADD, ("one", sku))
    except ConstraintViolation:
        return 409
    return 201


async def told(sku: str) -> int:
    try:
        async with running().transaction() as tx:
            tx.execute(ADD, ("one", sku))
    except ConstraintViolation:
        return 409
    return 201


@pytest.mark.req("A-108", "A-34")
@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_violation_is_raised_at_the_end_of_the_block_and_is_the_handlers_to_answer(
    in_a_thread: bool, tmp_path: Path
) -> None:
    async def handler(_app: Orders, seen: Seen, send: Send) -> None:
        sku = seen.body.decode()
        status = await asyncio.to_thread(told_in_a_thread, sku) if in_a_thread else await told(sku)
        await answer(send, status, {}, b"taken" if status == 409 else b"")

    async with shopping(tmp_path, handler) as service:
        _registered, first = await service.both("c-1", body=b"a")
        registered, second = await service.both("c-2", body=b"b")
        assert (first.status, first.get(STATE)) == (200, "COMMITTED")
        assert (second.status, second.get(STATE), second.body) == (409, "FAILED", b"taken")
        assert await service.confirm(registered, "c-2") == second
        assert rows(tmp_path) == 1
    assert verify(str(tmp_path / "shop.db")).holds


@pytest.mark.req("A-34")
async def test_a_block_that_is_refused_takes_only_its_own_rows_with_it(tmp_path: Path) -> None:
    async def handler(_app: Orders, _seen: Seen, send: Send) -> None:
        async with running().transaction() as tx:
            tx.execute(ADD, ("one", "a"))
        with suppress(ConstraintViolation):
            async with running().transaction() as tx:
                tx.execute(ADD, ("two", "b"))
                tx.execute(ADD, ("one", "the first block has it"))
        await answer(send)

    async with shopping(tmp_path, handler) as service:
        _registered, done = await service.both()
        assert (done.get(STATE), rows(tmp_path)) == ("COMMITTED", 1)


@pytest.mark.req("A-34")
@pytest.mark.parametrize(
    "refused",
    [
        "INSERT INTO shop (id) VALUES ('two')",
        "INSERT OR ROLLBACK INTO shop VALUES ('one', 'b')",
        "INSERT OR FAIL INTO shop VALUES ('one', 'b')",
        "INSERT INTO bill VALUES ('nobody')",
        "INSERT INTO slip VALUES ('nobody')",
        "INSERT INTO slip VALUES ('x'), ('too long')",
    ],
)
async def test_every_rule_of_the_database_is_told_in_the_block_and_harms_nobody_beside_it(
    refused: str, tmp_path: Path
) -> None:
    """NOT NULL, a key with each way to resolve it, foreign keys at once and deferred, a CHECK."""
    statuses: list[str] = []

    async def handler(_app: Orders, seen: Seen, send: Send) -> None:
        try:
            async with running().transaction() as tx:
                tx.execute(refused if seen.body == b"refused" else ADD.replace("?, ?", f"'{seen.body.decode()}', ''"))
        except ConstraintViolation as error:
            statuses.append(error.code)
            await answer(send, 409)
            return
        await answer(send)

    async with shopping(tmp_path, handler) as service:
        connection = apsw.Connection(str(tmp_path / "shop.db"))
        connection.execute("CREATE TABLE bill (shop TEXT REFERENCES shop)")
        connection.execute(
            "CREATE TABLE slip (shop TEXT REFERENCES shop DEFERRABLE INITIALLY DEFERRED CHECK (length(shop) < 8))"
        )
        connection.close()
        await service.both("c-0", body=b"one")
        others = [service.both(f"c-{number}", body=f"n{number}".encode()) for number in range(1, 9)]
        (_registered, failed), *done = await asyncio.gather(service.both("c-9", body=b"refused"), *others)
        assert (failed.status, failed.get(STATE), statuses) == (409, "FAILED", ["constraint"])
        assert {reply.get(STATE) for _registered, reply in done} == {"COMMITTED"}
        assert rows(tmp_path) == 9
    assert verify(str(tmp_path / "shop.db")).holds


async def test_a_select_is_refused_where_it_is_written(tmp_path: Path) -> None:
    codes: list[str] = []

    async def handler(_app: Orders, _seen: Seen, send: Send) -> None:
        async with running().transaction() as tx:
            try:
                tx.execute(COUNT)
            except Refused as error:
                codes.append(error.code)
            try:
                tx.executemany(COUNT, [()])
            except Refused as error:
                codes.append(error.code)
            tx.execute(ADD, ("one", "a"))
        await answer(send)

    async with shopping(tmp_path, handler) as service:
        _registered, done = await service.both()
        assert (codes, done.get(STATE), rows(tmp_path)) == (["select_refused"] * 2, "COMMITTED", 1)


@pytest.mark.req("A-34")
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_handler_whose_intent_was_taken_over_is_told_so(is_known: bool, tmp_path: Path) -> None:
    """At the end of its block at the latest; at its beginning, if the heartbeat was there before."""
    told: list[str] = []

    async def handler(app: Orders, _seen: Seen, send: Send) -> None:
        app.entered.set()
        await app.may_go_on.wait()
        try:
            async with running().transaction():
                told.append("entered")
        except Refused as error:
            told.append(error.code)
        await answer(send)

    async with shopping(tmp_path, handler, replay_wait_ms=0) as service:
        registered = await service.register()
        confirm = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        service.clock.now += 30_001
        server = service.server
        server.store.owners.release(server.owner)  # As if another host had taken it for dead.
        (taken,) = await server.intents.sweep(server.policy_of, "another", before=service.clock.now + 1)
        if is_known:
            await server.executions.renew()
        service.orders.may_go_on.set()
        assert taken.intent is not None
        failed = Settle(fence=taken.intent.fence, succeeded=False, status=INDETERMINATE.status)
        await server.intents.settle(taken.intent, failed, encode(INDETERMINATE), server.policy_of)
        assert (await confirm).get(STATE) == "FAILED"
        assert told == (["intent_not_running"] if is_known else ["entered", "intent_not_running"])
        assert rows(tmp_path) == 0


async def test_a_store_that_is_away_at_the_end_of_the_block_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    async def busy(_store: SQLiteStore, *_args: Any) -> None:
        nonlocal tried
        tried += 1
        if tried > 3:
            monkeypatch.undo()
        raise StoreUnavailable("not now")

    async def handler(_app: Orders, _seen: Seen, send: Send) -> None:
        async with running().transaction() as tx:
            tx.execute(ADD, ("one", "a"))
            monkeypatch.setattr(SQLiteStore, "transact", busy)
        await answer(send)

    async with shopping(tmp_path, handler) as service:
        _registered, done = await service.both()
        assert (done.get(STATE), rows(tmp_path), tried) == ("COMMITTED", 1, 4)
