"""What may become of an intent that is settled in a transaction of the application's own: each end, by its cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from tests.asgi.crashed import confirmed_by_the_dead, swept
from tests.asgi.driver import OUTGOING, STATE, Orders, Reply, Seen, Service, answer, serving
from tests.own.serving import KEYS
from tests.stores.schemas import Schema
from twophp import Policy, Quota, current_intent
from twophp.asgi import Hooks
from twophp.asgi.messages import Send
from twophp.core.errors import ConfigError, Refused
from twophp.core.obligation import by_id
from twophp.engine.current import RunningIntent
from twophp.stores.postgres.lent.of_asyncpg import OfAsyncpg
from twophp.stores.postgres.verify import verify

pytestmark = pytest.mark.anyio

POLICIES = {"POST /orders": Policy.standard(effects="transaction")}
ADD = "INSERT INTO {schema}.orders (sku, intent) VALUES ($1, $2)"
_numbers = count(1)
Write = Callable[[RunningIntent], Awaitable[None]]


def here() -> RunningIntent:
    intent = current_intent()
    assert intent is not None
    return intent


def doing(work: Write, status: int = 201) -> Orders:
    """A handler that does this and answers."""

    async def behave(_app: Orders, _seen: Seen, send: Send) -> None:
        await work(here())
        await answer(send, status)

    return Orders(behave)


class Shop:
    """A pool, and the handler that writes one row through it."""

    def __init__(self, schema: Schema, pool: Any) -> None:
        self.schema = schema
        self.pool = pool
        self.add = ADD.format(schema=schema.name)

    async def write(self, intent: RunningIntent) -> None:
        async with intent.transaction(self.pool) as connection:
            await connection.execute(self.add, intent.client_correlation_id, intent.server_correlation_id)

    @asynccontextmanager
    async def serving(self, work: Write | None = None, **settings: Any) -> AsyncIterator[Service]:
        settings.setdefault("policies", POLICIES)
        async with serving(doing(work or self.write), store=self.schema.url, keys=KEYS, **settings) as service:
            yield service

    async def rows(self) -> list[str]:
        return [row["sku"] for row in await self.schema.run("SELECT sku FROM twophp.orders ORDER BY sku")]


@pytest.fixture
async def shop_here(shop: Schema) -> AsyncIterator[Shop]:
    async with asyncpg.create_pool(shop.server, min_size=1, max_size=4) as pool:
        yield Shop(shop, pool)


def code(reply: Reply) -> str:
    found: str = json.loads(reply.body)["code"]
    return found


@pytest.mark.req("A-34")
async def test_an_intent_that_was_taken_over_writes_nothing(shop_here: Shop) -> None:
    """The owner before has lost its fence when it answers: its rows go, and its answer is not stored."""

    async def slow(intent: RunningIntent) -> None:
        await shop_here.write(intent)
        service.clock.now += 60_000
        found = await service.intent(intent.server_correlation_id)
        assert found is not None
        [taken] = await service.server.intents.sweep(lambda _intent: Policy.standard(), "another", before=2**60)
        assert taken.intent is not None
        assert (taken.intent.owner, taken.intent.fence) == ("another", 2)
        service.server.executions.begin(taken.intent, other)

    async def other(work: Any, answered: Any) -> None:
        await shop_here.write(work.running)
        answered(service.server.executions._failed)

    async with shop_here.serving(slow) as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE), code(done)) == (500, "FAILED", "handler_failed")  # The other one's.
        assert await shop_here.rows() == []
    assert (await verify(shop_here.schema.url)).findings == ()


@pytest.mark.req("A-42")
@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_that_nobody_answers_is_found_out(
    shop_here: Shop, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = OfAsyncpg.commit

    async def cut(self: Any) -> None:
        if happened:
            await commit(self)
        self._connection.terminate()
        raise ConnectionError("cut")

    monkeypatch.setattr(OfAsyncpg, "commit", cut)
    async with shop_here.serving() as service:
        registered, done = await service.both()
        monkeypatch.undo()
        assert (done.status, done.get(STATE)) == ((200, "COMMITTED") if happened else (500, "FAILED"))
        assert await shop_here.rows() == ["c-1"] * happened
        assert await service.confirm(registered) == done
        assert (await service.both("c-2"))[1].get(STATE) == "COMMITTED"
    assert (await verify(shop_here.schema.url)).findings == ()


@pytest.mark.req("A-34", "A-108")
async def test_a_session_that_the_server_ends_has_done_nothing(shop_here: Shop) -> None:
    """A restart of the database, or its operator."""

    async def ended(intent: RunningIntent) -> None:
        async with intent.transaction(shop_here.pool) as connection:
            await connection.execute(shop_here.add, "tea", "")
            pid = connection.get_server_pid()
        await shop_here.schema.run("SELECT pg_terminate_backend($1)", pid)

    async with shop_here.serving(ended) as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE), code(done)) == (500, "FAILED", "handler_failed")
        assert (await service.rows())[0].indeterminate is False
        assert await shop_here.rows() == []


@pytest.mark.req("A-34")
async def test_a_crash_is_determinate_where_all_effects_are_inside(shop_here: Shop) -> None:
    async with shop_here.serving() as service:
        registered = await service.register()
        found = await service.intent(registered.get("DTT-2PHP-Server-Correlation-ID"))
        assert found is not None
        await confirmed_by_the_dead(service, found.server_correlation_id)
        service.clock.now += 60_000
        await swept(service)
        done = await service.confirm(registered)
        assert (done.status, done.get(STATE), code(done)) == (500, "FAILED", "interrupted")
        assert (await service.rows())[0].indeterminate is False


@pytest.mark.req("A-34")
@pytest.mark.parametrize("refused", [True, False])
async def test_obligations_are_settled_in_the_same_commit(shop_here: Shop, refused: bool) -> None:
    held: list[str] = []

    async def both(intent: RunningIntent) -> None:
        held.append(await intent.obligations.reserve("publish", {"key": "k1"}, key="k1"))
        await shop_here.write(intent)
        if refused:
            raise ZeroDivisionError

    async with shop_here.serving(both) as service:
        _registered, done = await service.both()
        (obligation,) = await service.server.store.read([by_id(held[0])])
        assert str(obligation.state) == ("RolledBack" if refused else "Committed")
        assert await shop_here.rows() == ([] if refused else ["c-1"])
        assert done.get(STATE) == ("FAILED" if refused else "COMMITTED")
    assert (await verify(shop_here.schema.url)).findings == ()


@pytest.mark.req("A-34")
async def test_what_a_principal_has_open_is_counted_exactly(shop_here: Shop) -> None:
    """A settlement locks no count, which all intents of a principal share: the next registration subtracts it."""
    async with shop_here.serving(quota=Quota(open_intents=2)) as service:
        for number in range(5):
            assert (await service.both(f"c-{number}"))[1].get(STATE) == "COMMITTED"
        open_now = [await service.register(f"open-{number}") for number in range(3)]
        assert [reply.status for reply in open_now] == [200, 200, 429]
        assert (await service.confirm(open_now[0], "open-0")).get(STATE) == "COMMITTED"
        assert (await service.register("open-3")).status == 200
        assert (await service.register("open-4")).status == 429
        assert (await shop_here.schema.run("SELECT count(*) FROM twophp.released"))[0][0] == 0


@pytest.mark.req("A-34")
async def test_one_principals_settlements_do_not_wait_for_each_other(shop_here: Shop) -> None:
    """Many at once, and each has its own chain while it settles."""
    async with shop_here.serving() as service:
        done = await asyncio.gather(*(service.both(f"c-{number}") for number in range(40)))
        assert {reply.get(STATE) for _registered, reply in done} == {"COMMITTED"}
        assert len(await shop_here.rows()) == 40
        (writers,) = await shop_here.schema.run("SELECT count(*) FROM twophp.writer")
        assert writers[0] <= 1 + 4  # The pool has four connections.
    assert (await verify(shop_here.schema.url)).findings == ()


@pytest.mark.req("A-34")
async def test_an_intent_has_one_transaction(shop_here: Shop) -> None:
    said: list[str] = []

    async def lost(intent: RunningIntent) -> None:
        async with intent.transaction(shop_here.pool) as connection:
            await connection.execute(shop_here.add, "lost", "")
            raise ZeroDivisionError

    async def twice(intent: RunningIntent) -> None:
        with pytest.raises(ZeroDivisionError):
            await lost(intent)
        await shop_here.write(intent)  # One that ended badly is gone, and another may follow.
        for again in (lambda: intent.transaction(shop_here.pool), intent.transaction):
            with pytest.raises(Refused) as refusal:
                async with again():
                    pass
            said.append(refusal.value.code)

    async with shop_here.serving(twice) as service:
        assert (await service.both())[1].get(STATE) == "COMMITTED"
        assert said == ["transaction_open"] * 2
        assert await shop_here.rows() == ["c-1"]


@pytest.mark.req("A-34")
async def test_an_empty_block_is_settled_as_well(shop_here: Shop) -> None:
    engine = create_async_engine(shop_here.schema.server.replace("postgresql:", "postgresql+asyncpg:"))

    async def nothing(intent: RunningIntent) -> None:
        async with intent.transaction(engine):
            pass

    async with shop_here.serving(nothing) as service:
        assert (await service.both())[1].get(STATE) == "COMMITTED"
    await engine.dispose()


class Anything:
    """What a transaction may be asked of by mistake."""


async def entering(intent: RunningIntent, source: Any, *, blocks: bool) -> None:
    if blocks:
        with intent.transaction(source):
            return
    async with intent.transaction(source):
        return


async def refusal(shop: Shop, source: Any, *, blocks: bool = False, **settings: Any) -> str:
    """The code with which a block is refused where it begins."""
    said: list[str] = []

    async def asks(intent: RunningIntent) -> None:
        with pytest.raises(ConfigError) as refused:
            await entering(intent, source, blocks=blocks)
        said.append(refused.value.code)

    store = settings.pop("store", shop.schema.url)
    async with serving(doing(asks), store=store, keys=KEYS) as service:
        done = (await service.both(f"c-{next(_numbers)}"))[1]
        assert done.get(STATE) == "COMMITTED"  # The handler is told, and may go on without.
    return said[0]


@pytest.mark.req("A-34")
async def test_what_cannot_settle_here_is_refused_by_name(shop_here: Shop, tmp_path: Any) -> None:
    url = shop_here.schema.server
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    assert await refusal(shop_here, engine) == "wrong_with"
    assert await refusal(shop_here, shop_here.pool, blocks=True) == "wrong_with"
    assert await refusal(shop_here, Anything()) == "unknown_connection"
    assert await refusal(shop_here, create_engine("sqlite://")) == "unknown_connection"
    assert await refusal(shop_here, async_sessionmaker()) == "unknown_connection"
    for store in ("memory:", f"sqlite:///{tmp_path}/shop.db"):
        assert await refusal(shop_here, engine, blocks=True, store=store) == "no_own_transaction"
    engine.dispose()


@pytest.mark.req("A-34")
async def test_another_database_and_a_role_without_rights_are_refused(shop_here: Shop) -> None:
    schema = shop_here.schema
    for statement in (
        f"CREATE DATABASE other_{schema.name}",
        f"CREATE ROLE clerk_{schema.name} LOGIN",
        f"CREATE ROLE reader_{schema.name} LOGIN",
    ):
        await schema.run(statement)
    async with shop_here.serving():
        pass  # Makes the ledger.
    await schema.run(f"GRANT USAGE ON SCHEMA {schema.name} TO reader_{schema.name}")
    await schema.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema.name} TO reader_{schema.name}")
    host = schema.server.partition("@")[2]
    urls = {
        "other_database": f"postgresql://twophp@{host.replace('/postgres', f'/other_{schema.name}')}",
        "no_privilege": f"postgresql://clerk_{schema.name}@{host}",
    }
    found = {}
    for expected, url in urls.items():
        found[expected] = await refused_over(shop_here, url)
    assert found == {name: name for name in urls}
    assert await refused_over(shop_here, f"postgresql://reader_{schema.name}@{host}") == "no_privilege"
    await schema.run(f"DROP OWNED BY reader_{schema.name}")
    for kind, name in (("DATABASE", "other"), ("ROLE", "clerk"), ("ROLE", "reader")):
        await schema.run(f"DROP {kind} {name}_{schema.name}")


RIGHTS = (
    *("SELECT, UPDATE ON {0}.intent", "SELECT, INSERT, UPDATE ON {0}.job, {0}.obligation"),
    *("SELECT, INSERT, UPDATE, DELETE ON {0}.seal, {0}.budget", "INSERT ON {0}.released, {0}.link"),
    *("SELECT, UPDATE ON {0}.writer", "USAGE ON SEQUENCE {0}.record_id", "USAGE ON SCHEMA {0}"),
    *("INSERT ON {0}.orders", "USAGE ON SEQUENCE {0}.orders_id_seq"),
)


@pytest.mark.req("A-34")
async def test_a_role_with_the_rights_that_are_asked_for_settles(shop_here: Shop) -> None:
    """With what follows from the outcome: a delivery that is owed, and an obligation with a payload."""
    schema, role, hooks = shop_here.schema, f"clerk_{shop_here.schema.name}", Hooks()

    @hooks.on_phase("COMMITTED", name="note")
    def note(_event: object) -> None:
        """It is owed, and that is all."""

    async def work(intent: RunningIntent) -> None:
        held.append(await intent.obligations.reserve("publish", {"key": "k1"}))
        async with intent.transaction(pool) as connection:
            await connection.execute(shop_here.add, intent.client_correlation_id, "")

    held: list[str] = []
    await schema.run(f"CREATE ROLE {role} LOGIN")
    url = f"postgresql://{role}@{schema.server.partition('@')[2]}"
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        async with shop_here.serving(work, outgoing=replace(OUTGOING, hooks=hooks)) as service:
            assert (await service.both())[1].get(STATE) == "FAILED"  # Nothing is granted yet.
            for right in RIGHTS:
                await schema.run(f"GRANT {right.format(schema.name)} TO {role}")
            assert (await service.both("c-2"))[1].get(STATE) == "COMMITTED"
            (obligation,) = await service.server.store.read([by_id(held[1])])
            assert str(obligation.state) == "Committed"
            assert len(await schema.run("SELECT 1 FROM twophp.job")) == 1
        assert await shop_here.rows() == ["c-2"]
    await schema.run(f"DROP OWNED BY {role}")
    await schema.run(f"DROP ROLE {role}")


async def refused_over(shop: Shop, url: str) -> str:
    engine: AsyncEngine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        return await refusal(shop, engine)
    finally:
        await engine.dispose()
