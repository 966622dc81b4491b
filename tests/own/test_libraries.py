"""Each library, with real servers: what a handler may do in its own transaction, and SIGKILL at every step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

import pytest

from tests.crash.caller import OPT_IN, TRIES, Answer, Connection, client_id, request, server_id
from tests.own.serving import COMMITTED, PLACES, Replica
from tests.own.shops import SHOPS
from tests.stores.schemas import Schema
from twophp.stores.postgres.verify import verify

pytestmark = pytest.mark.anyio

INTERRUPTED = "Processing was interrupted and nothing happened; it is safe to resubmit."
Start = Callable[..., Replica]


class Caller:
    """One client of one replica; its calls have names, which are their ids and the skus that they want."""

    def __init__(self, replica: Replica, path: str = "orders") -> None:
        self._connection = Connection(replica.port)
        self._path = path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self._connection.close()

    async def register(self, name: str, **body: Any) -> str:
        sent = json.dumps({"sku": name, **body}).encode()
        fields = (OPT_IN, client_id(name), "Content-Type: application/json")
        answer = await self._connection.insist(request(f"POST /{self._path}", *fields, body=sent))
        return answer.server_id

    async def confirm(self, name: str, server: str) -> Answer | None:
        return await self._connection.ask(self._confirming(name, server))

    async def outcome(self, name: str, server: str) -> Answer:
        """Also at another replica than the one that was asked first. A 409 is an answer of the handler."""
        for _try in range(TRIES):
            answer = await self.confirm(name, server)
            if answer is not None and answer.status != 503:
                return answer
        raise AssertionError(f"no answer after {TRIES} tries: {name}")

    def _confirming(self, name: str, server: str) -> bytes:
        return request(f"POST /{self._path}/confirm", OPT_IN, client_id(name), server_id(server))

    async def call(self, name: str, **body: Any) -> tuple[int, str, Any]:
        """Both phases; a repeat is told the same."""
        server = await self.register(name, **body)
        answer = await self.outcome(name, server)
        assert await self.outcome(name, server) == answer
        told = answer.body.startswith(b"{")
        return answer.status, answer.phase, json.loads(answer.body) if told else None


async def skus(shop: Schema) -> list[str]:
    return [row["sku"] for row in await shop.run("SELECT sku FROM twophp.orders ORDER BY sku")]


@pytest.mark.req("A-34", "A-108")
@pytest.mark.parametrize("library", SHOPS)
async def test_a_handler_works_in_its_own_transaction(library: str, replica: Start, shop: Schema) -> None:
    async with Caller(replica(library)) as caller:
        assert await caller.call("tea") == (
            200,
            "COMMITTED",
            {"id": "1", "seen": 1},
        )  # Its own write, its generated id.
        taken = (409, "FAILED", {"detail": "the sku is taken"})
        assert await caller.call("tea-again", sku="tea") == taken  # Raised inside the block, answered by the handler.
        assert await caller.call("refused", then="refuse") == (402, "FAILED", {"detail": "not today"})
        assert (await caller.call("raised", then="raise"))[:2] == (500, "FAILED")
        status, phase, problem = await caller.call("deferred", then="defer")  # As the database finds at COMMIT.
        assert (status, phase, problem["code"]) == (409, "FAILED", "constraint_violated")
        assert (await caller.call("by-itself", then="commit"))[:2] == (200, "COMMITTED")
    assert await skus(shop) == ["by-itself", "tea"]
    assert (await verify(shop.url)).findings == ()


@pytest.mark.req("A-34")
@pytest.mark.parametrize("library", SHOPS)
async def test_a_handler_that_commits_by_raw_sql_is_noticed(library: str, replica: Start, shop: Schema) -> None:
    """Its rows are durable without the outcome, so nobody may call it failed."""
    async with Caller(replica(library)) as caller:
        status, phase, problem = await caller.call("tea", then="raw commit")
        assert (status, phase, problem["code"]) == (500, "FAILED", "outcome_indeterminate")
        assert await skus(shop) == ["tea"]
        assert (await caller.call("coffee"))[:2] == (200, "COMMITTED")
    assert (await verify(shop.url)).findings == ()


@pytest.mark.req("A-34", "A-108", "P-8.1-a")
@pytest.mark.parametrize("library", ["sqlalchemy", "sqlalchemy-blocking", "psycopg", "asyncpg", "django"])
async def test_after_sigkill_both_are_there_or_neither(library: str, replica: Start, shop: Schema) -> None:
    """A replica dies at each place; another one, which lives, says how its intent has ended."""
    survivor = replica(library)
    async with Caller(survivor) as caller:
        assert (await caller.call("first"))[:2] == (200, "COMMITTED")
    places = (*PLACES, "on_commit") if library == "django" else PLACES  # Its functions run after the commit.
    await asyncio.gather(*(dies(place, "orders", library, replica, survivor, shop) for place in places))
    await asyncio.gather(*(dies(place, "again", library, replica, survivor, shop) for place in ("wrote", "written")))
    assert (await verify(shop.url)).findings == ()


async def dies(place: str, path: str, library: str, replica: Start, survivor: Replica, shop: Schema) -> None:
    name = f"{place}-{path}"
    victim = replica(library, place)
    async with Caller(victim, path) as caller:
        server = await caller.register(name)
        told = await caller.confirm(name, server)
        assert told is None or place == "committing"  # It may be quicker than what kills it.
    await victim.dead()
    async with Caller(survivor, path) as caller:
        answer = await caller.outcome(name, server)
    assert told in (None, answer)
    rows = [row["intent"] for row in await shop.run("SELECT intent FROM twophp.orders WHERE sku = $1", name)]
    assert rows == [server] * (answer.phase == "COMMITTED")
    if place in COMMITTED or path == "again":
        assert (answer.status, answer.phase) == (200, "COMMITTED"), (place, answer)
    elif place != "committing":  # Died while it was under way: either, and both as one.
        assert (answer.status, answer.phase, answer["dtt-2php-message"]) == (500, "FAILED", INTERRUPTED), place
