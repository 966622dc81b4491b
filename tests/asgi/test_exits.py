"""``sys.exit`` in what a service brings along: a failure like any other, and never the end of the event loop."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from tests.asgi.driver import AUTO, CLIENT, RESOURCE, SERVER, STATE, Orders, Seen, answer, serving
from tests.patience import PATIENCE_S
from twophp.asgi.messages import Send
from twophp.engine.settlement import Settlement

pytestmark = pytest.mark.anyio


async def leaves(_app: Orders, _seen: Seen, _send: Send) -> None:
    sys.exit("not configured")


async def answers_and_leaves(_app: Orders, _seen: Seen, send: Send) -> None:
    await answer(send, headers={})
    sys.exit("good-bye")


@pytest.mark.req("A-08")
async def test_a_handler_that_exits_has_failed_and_others_go_on(store: str) -> None:
    async with serving(Orders(leaves), store=store) as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (500, "FAILED")
        service.orders.behave = answers_and_leaves
        assert (await service.both("c-2"))[1].get(STATE) == "COMMITTED"


async def test_a_client_that_changed_nothing_gets_the_exit_as_it_always_was() -> None:
    async with serving(Orders(leaves)) as service:
        with pytest.raises(SystemExit, match="not configured"):
            await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}")


@pytest.mark.req("A-05")
async def test_an_extractor_that_exits_costs_no_outcome() -> None:
    async with serving(Orders(answers_and_leaves), resource_id=sys.exit) as service:
        registered, done = await service.both()
        assert (done.get(STATE), done.get(RESOURCE)) == ("COMMITTED", registered.get(SERVER))


async def test_a_settlement_that_is_cut_off_beside_its_handler_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_off(*_given: Any) -> None:
        raise asyncio.CancelledError

    async def goes_on(app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send)
        await app.may_go_on.wait()

    async with serving(Orders(goes_on)) as service:
        registered = await service.register()
        monkeypatch.setattr(Settlement, "settle", cut_off)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):
                await service.confirm(registered)
