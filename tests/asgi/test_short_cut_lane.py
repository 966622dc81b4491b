"""The lane of the short-cut: an ordinary request without a cycle of uvicorn's, and how it leaves that lane."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.server import ServerState

from tests.asgi.sockets import Listener
from tests.asgi.test_short_cut import ON, SERVER_LINE, WAYS, ask, both, one, shop, stopped, two
from twophp import anonymous

pytestmark = pytest.mark.anyio


@pytest.mark.req("P-0-b")
async def test_a_request_may_be_cut_at_any_byte() -> None:
    raw = one("c", close=False), two("c", close=False), ask("POST", "/orders", body=b"{}")
    for request, before in zip(raw, ([], [[raw[0]]], []), strict=True):
        cuts = range(1, len(request), 3)
        ended = [[request[:cut], request[cut:] + ask("GET", "/orders")] for cut in cuts]
        await both([*[[*some, ask("GET", "/orders")] for some in before], *ended])


@pytest.mark.req("P-0-b")
@pytest.mark.parametrize("more", ["Origin: x", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "X-Empty:"])
async def test_what_is_unusual_about_an_ordinary_request_makes_no_difference(more: str) -> None:
    script = [[one("c", "/orders", more)], [two("c", "/orders/confirm", more)], [two("c", "/orders/confirm", more)]]
    await both(script)
    await both(script, lambda: shop(identify=anonymous))


@pytest.mark.req("P-0-b")
async def test_a_body_past_what_is_read_ahead() -> None:
    await both([[one("c", body=b"x" * 70_000)], [one("d", body=b"x" * 65_537)], [one("e", body=b"x" * 900)]])


@pytest.mark.req("P-0-b")
async def test_spellings_and_names_that_only_look_like_ours() -> None:
    loud = one("c").replace(b"DTT-2PHP", b"dTt-2pHp")
    near = ask("POST", "/orders", "X-DTT-2PHP-Enabled: true", "DTT-2PHP-Enable: true", body=b"dtt-2php-enabled")
    far = ask("POST", "/orders", "X-Long: " + "y" * 3_000, ON, "DTT-2PHP-Client-Correlation-ID: d", body=b"{}")
    await both([[loud], [near], [far], [loud[:30], loud[30:]]])


@pytest.mark.req("A-107")
@pytest.mark.parametrize("way", WAYS)
async def test_what_waited_too_long_for_a_shutdown_is_cancelled_and_told(way: str) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def thinks(_request: Request) -> Response:
        entered.set()
        await go_on.wait()
        return PlainTextResponse("thought")

    app, state = shop(), ServerState()
    app.router.routes.insert(0, Route("/orders", thinks, methods=["POST"]))
    listener = Listener(app, WAYS[way])
    server_id = SERVER_LINE.findall(await listener.talk([one("c")]))[0]
    reader, writer = await listener.connect(state=state)
    writer.write(two("c", close=False).replace(b"SERVER_ID", server_id))
    await entered.wait()
    (task,) = state.tasks
    (protocol,) = state.connections
    protocol.shutdown()
    task.cancel()
    assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
    assert (state.tasks, state.total_requests) == (set(), 1)
    go_on.set()
    assert (await listener.talk([two("c").replace(b"SERVER_ID", server_id)])).endswith(b"thought")
    writer.close()
    await stopped(app)
