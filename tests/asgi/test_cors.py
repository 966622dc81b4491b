"""Browsers: a script of another origin reads our fields only when an answer allows it (A-19)."""

from __future__ import annotations

import pytest
from starlette.middleware.cors import CORSMiddleware

from tests.asgi.driver import CLIENT, ENABLED, STATE, Exchange, a_scope, serving
from twophp.asgi import CORS_ALLOW_HEADERS, CORS_EXPOSE_HEADERS, ExposeFields
from twophp.asgi.messages import App, Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio

ORIGIN = {"origin": "https://shop.example"}
EXPOSE = "access-control-expose-headers"


@pytest.mark.req("A-19")
async def test_the_helper_exposes_our_fields_where_there_are_any() -> None:
    async with serving(around=ExposeFields) as service:
        registered = await service.request("POST", "/orders", {**ENABLED, **ORIGIN, CLIENT: "c-1"})
        exposed = (registered.get(EXPOSE) or "").split(", ")
        assert {name.lower() for name in exposed} >= set(registered.ours())
        plain = await service.request("POST", "/orders", ORIGIN)
        assert plain.get(EXPOSE) is None


@pytest.mark.req("A-19")
async def test_an_answer_without_headers_is_left_as_it_is() -> None:
    """ASGI lets an application leave them out."""
    said: list[Message] = [{"type": "http.response.start", "status": 204}, {"type": "http.response.body"}]

    async def silent(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in said:
            await send(message)

    exchange = Exchange(b"")
    await ExposeFields(silent)(a_scope("GET", "/", ORIGIN), exchange.receive, exchange.send)
    assert exchange.sent == said


@pytest.mark.req("A-19")
async def test_without_an_origin_nothing_is_added() -> None:
    async with serving(around=ExposeFields) as service:
        registered = await service.request("POST", "/orders", {**ENABLED, CLIENT: "c-1"})
        assert (registered.get(STATE), registered.get(EXPOSE)) == ("WAITING_CONFIRM", None)


@pytest.mark.req("A-19")
async def test_the_two_lists_are_what_a_cors_middleware_asks_for() -> None:
    def around(app: App) -> App:
        return CORSMiddleware(
            app,
            allow_origins=["https://shop.example"],
            allow_methods=["POST"],
            allow_headers=CORS_ALLOW_HEADERS,
            expose_headers=CORS_EXPOSE_HEADERS,
        )

    wanted = ", ".join(CORS_ALLOW_HEADERS).lower()
    asks = {**ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": wanted}
    async with serving(around=around) as service:
        preflight = await service.request("OPTIONS", "/orders", asks)
        assert (preflight.status, service.orders.runs) == (200, 0)
        registered = await service.request("POST", "/orders", {**ENABLED, **ORIGIN, CLIENT: "c-1"})
        assert registered.get(EXPOSE) == ", ".join(CORS_EXPOSE_HEADERS)
