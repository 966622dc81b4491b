"""``on_crash="rerun"`` in a framework: a handler that is run again finds what every other handler finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tests.asgi.crashed import confirmed_by_the_dead
from tests.asgi.driver import CLIENT, ENABLED, OUTGOING, SERVER, STATE, Clock, Orders, Service, a_scope
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import App, Message
from twophp.engine.exchange import StoredRequest, decode_request, encode

pytestmark = pytest.mark.anyio

LEASE_MS: Final = 30_000
POLICIES: Final = {"POST /orders": Policy.standard(lease_ms=LEASE_MS, on_crash="rerun")}


async def make(request: Request) -> JSONResponse:
    found = {"id": "7", "root": request.scope["root_path"], "db": request.app.state.db}
    return JSONResponse(found | {name: getattr(request.state, name, None) for name in ("pool", "user")}, 201)


@asynccontextmanager
async def with_a_pool(_app: Any) -> AsyncIterator[dict[str, str]]:
    yield {"pool": "open"}


def starlette() -> Starlette:
    app = Starlette(routes=[Route("/orders", make, methods=["POST"])], lifespan=with_a_pool)
    app.state.db = "orders"
    return app


def fastapi() -> Starlette:
    app = FastAPI(lifespan=with_a_pool)
    app.add_api_route("/orders", make, methods=["POST"], response_model=None)
    app.state.db = "orders"
    return app


def mounted(app: App) -> App:
    """Starlette tells what is mounted nothing of its lifespan."""
    return Starlette(routes=[Mount("/api", app=app)], lifespan=with_a_pool)


@asynccontextmanager
async def living(app: App) -> AsyncIterator[None]:
    """The lifespan of an application, from its start to its end."""
    events: asyncio.Queue[Message] = asyncio.Queue()
    told: asyncio.Queue[Message] = asyncio.Queue()
    events.put_nowait({"type": "lifespan.startup"})
    life = asyncio.create_task(_lived(app, events, told))
    assert (await told.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        events.put_nowait({"type": "lifespan.shutdown"})
        await life


async def _lived(app: App, events: asyncio.Queue[Message], told: asyncio.Queue[Message]) -> None:
    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, events.get, told.put)


@asynccontextmanager
async def a_process(
    folder: Path, app: Starlette, clock: Clock, around: Callable[[App], App] = lambda app: app
) -> AsyncIterator[Service]:
    """One process of the service, with the middleware added as its users add it."""
    made: list[TwoPhaseMiddleware] = []

    def ours(inner: App) -> App:
        made.append(
            TwoPhaseMiddleware(
                inner,
                service="shop",
                store=f"sqlite:///{folder}/shop.db",
                identify=anonymous,
                policies=POLICIES,
                clock=clock,
                sweep_interval_s=3_600.0,
                outgoing=OUTGOING,
            )
        )
        return made[0]

    app.add_middleware(ours)
    app.middleware_stack = app.build_middleware_stack()
    outermost = around(app)
    async with living(outermost):
        try:
            yield Service(outermost, Orders(), made[0], clock)
        finally:
            await made[0].stop()  # A middleware inside a mount gets no lifespan event.


async def run_again(service: Service) -> None:
    """What the first sweep after the lease does."""
    service.clock.now += LEASE_MS
    await service.server.sweep()
    assert await service.server.executions.drain(5) == []


@pytest.mark.req("A-34", "A-03", "A-01")
@pytest.mark.parametrize("root_path", ["", "/api"])
@pytest.mark.parametrize("build", [starlette, fastapi])
async def test_the_application_and_its_lifespan_state_are_there_again(
    build: Callable[[], Starlette], root_path: str, tmp_path: Path
) -> None:
    clock = Clock()
    async with a_process(tmp_path, build(), clock) as service:
        registered = await service.register(path=f"{root_path}/orders", root_path=root_path)
        await confirmed_by_the_dead(service, registered.get(SERVER) or "")
    async with a_process(tmp_path, build(), clock) as service:
        await run_again(service)
        done = await service.confirm(registered, path=f"{root_path}/orders/confirm", root_path=root_path)
        found = {"id": "7", "root": root_path, "db": "orders", "pool": "open", "user": None}
        assert (done.get(STATE), msgspec.json.decode(done.body)) == ("COMMITTED", found)


@pytest.mark.req("A-34", "A-03", "A-01")
@pytest.mark.parametrize("build", [starlette, fastapi])
async def test_inside_a_mount_a_live_request_tells_whose_it_is_and_nothing_of_who_sent_it(
    build: Callable[[], Starlette], tmp_path: Path
) -> None:
    clock = Clock()
    async with a_process(tmp_path, build(), clock, mounted) as service:
        registered = await service.register(path="/api/orders")
        await confirmed_by_the_dead(service, registered.get(SERVER) or "")
    async with a_process(tmp_path, build(), clock, mounted) as service:
        another = a_scope("POST", "/api/orders", {**ENABLED, CLIENT: "c-2"})
        another["state"]["user"] = "somebody else"  # As a framework's authentication leaves it there.
        await service.send(another)
        await run_again(service)
        done = await service.confirm(registered, path="/api/orders/confirm")
        found = {"id": "7", "root": "/api", "db": "orders", "pool": None, "user": None}
        assert (done.get(STATE), msgspec.json.decode(done.body)) == ("COMMITTED", found)


@pytest.mark.req("A-03")
def test_a_request_that_was_sealed_without_its_root_path_still_opens() -> None:
    old = ("POST", "/orders", b"/orders", b"a=1", [(b"content-type", b"text/plain")], b"tea")
    opened = decode_request(msgspec.msgpack.encode(old))
    assert opened == StoredRequest("POST", "/orders", b"/orders", b"a=1", ((b"content-type", b"text/plain"),), b"tea")
    assert decode_request(encode(opened)) == opened
