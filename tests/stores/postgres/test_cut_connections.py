"""The connection to the database is cut at every boundary of a message: clients hear what is true, or to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.asgi.driver import SERVER, STATE, Orders, Reply, serving
from tests.patience import PATIENCE_S
from tests.stores.postgres.proxy import Proxy, proxied
from tests.stores.postgres.replicas import KEYS
from tests.stores.schemas import Schema
from twophp.core.policy import Policy
from twophp.stores.postgres.verify import verify

pytestmark = pytest.mark.anyio


async def insist(ask: Callable[..., Awaitable[Reply]], *arguments: Reply | str) -> Reply:
    """As a client does: whatever is no answer says when to come again."""
    while (reply := await ask(*arguments)).status == 503:
        assert reply.get("retry-after")
    return reply


async def cut_everywhere(proxy: Proxy, url: str) -> int:
    """A handshake for each of its messages, with the connection cut before that one. How many those are."""
    orders, policies = Orders(), {"POST /orders": Policy.standard()}
    async with asyncio.timeout(PATIENCE_S), serving(orders, store=url, keys=KEYS, policies=policies) as service:
        for number in count():
            name, runs = f"c-{number}", orders.runs
            proxy.arm(number)
            registered = await insist(service.register, name)
            assert registered.get(STATE) == "WAITING_CONFIRM"
            told = await insist(service.confirm, registered, name)
            assert (told.get(STATE), orders.runs) == ("COMMITTED", runs + 1)
            again = await service.confirm(registered, name)
            assert (again.status, again.get(STATE), again.body) == (told.status, "COMMITTED", told.body)
            assert (await service.register(name)).get(SERVER) == registered.get(SERVER)
            if not proxy.has_cut:
                break
    return number


@pytest.mark.req("A-42", "A-52", "P-6-a", "P-8.1-a", "P-9.1-a")
async def test_a_connection_that_is_cut_anywhere_loses_nothing_and_repeats_nothing(schema: Schema) -> None:
    async with proxied(schema.server) as proxy:
        through = urlunsplit(urlsplit(schema.url)._replace(netloc=f"twophp@{proxy.address}"))
        cuts = await cut_everywhere(proxy, f"{through}&sslmode=disable")
    assert cuts > 100, "a handshake has that many messages"
    assert (await verify(schema.url)).findings == ()
