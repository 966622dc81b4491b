"""An application behaves as it does without the middleware, seen through its own framework's test client and server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.asgi_frameworks.serving import options, request, served, wrapped
from tests.patience import PATIENCE_S
from twophp import Policy, TwoPHPError
from twophp.asgi import TwoPhaseMiddleware

CLIENT, SERVER = "DTT-2PHP-Client-Correlation-ID", "DTT-2PHP-Server-Correlation-ID"
TRANSPARENT = {"*": Policy.standard(transparent=True)}
WAYS = ["plain", "transparent", "transparent by header", "two phases"]

App = Callable[[Any, Any, Any], Awaitable[None]]


def post(client: TestClient, way: str) -> Any:
    """The one POST of a test, in one of the ways a client can make it; the answer that ends the call."""
    if way in ("plain", "transparent"):
        return client.post("/orders", content=b"{}")
    opted_in = {"DTT-2PHP-Enabled": "true", CLIENT: str(uuid4())}
    if way == "transparent by header":
        return client.post("/orders", content=b"{}", headers={**opted_in, "DTT-2PHP-Auto-Confirm": "true"})
    registered = client.post("/orders", content=b"{}", headers=opted_in)
    return client.post("/orders/confirm", headers={**opted_in, SERVER: registered.headers[SERVER]})


def settings(folder: Path, way: str) -> dict[str, Any]:
    return options(folder, policies=TRANSPARENT) if way == "transparent" else options(folder)


@pytest.mark.req("P-11-a", "A-37")
@pytest.mark.parametrize("opened", [False, True], ids=["no lifespan", "lifespan"])
@pytest.mark.parametrize("way", WAYS)
def test_background_tasks_are_done_when_the_call_returns(way: str, opened: bool, tmp_path: Path) -> None:
    done: list[str] = []
    answered: list[asyncio.Event] = []

    async def mail() -> None:
        async with asyncio.timeout(PATIENCE_S):  # The answer does not wait for it; the call does.
            await answered[0].wait()
        done.append("mailed")

    async def create(_request: Request) -> Response:
        answered[:] = [asyncio.Event()]
        return JSONResponse({"id": 7}, background=BackgroundTask(mail))

    starlette = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    starlette.add_middleware(TwoPhaseMiddleware, **settings(tmp_path, way))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: MutableMapping[str, Any]) -> None:
            await send(message)
            if answered and message["type"] == "http.response.body" and not message.get("more_body", False):
                answered[0].set()

        await starlette(scope, receive, sending)

    client = TestClient(app)
    if opened:
        with client:
            assert post(client, way).status_code == 200
            assert done == ["mailed"]
    else:
        assert post(client, way).status_code == 200
        assert done == ["mailed"]


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("way", WAYS)
def test_receive_after_a_complete_answer_gives_a_disconnect(way: str, tmp_path: Path) -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        heard.append((await receive())["type"])
        await PlainTextResponse("done")(scope, receive, send)
        async with asyncio.timeout(PATIENCE_S):
            heard.append((await receive())["type"])

    client = TestClient(TwoPhaseMiddleware(app, **settings(tmp_path, way)))
    assert post(client, way).text == "done"
    assert heard == ["http.request", "http.disconnect"]


@pytest.mark.req("A-37")
@pytest.mark.parametrize("way", ["plain", "transparent", "transparent by header"])
def test_what_is_raised_after_the_answer_reaches_the_server(way: str, tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("no mail today")

    async def create(_request: Request) -> Response:
        return JSONResponse({"id": 7}, 201, background=BackgroundTask(fail))

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    middleware = TwoPhaseMiddleware(app, **settings(tmp_path, way))
    with pytest.raises(ValueError, match="no mail today"):
        post(TestClient(middleware), way)
    assert post(TestClient(middleware, raise_server_exceptions=False), way).status_code == 201


@pytest.mark.req("A-37")
@pytest.mark.parametrize("way", ["plain", "transparent", "transparent by header"])
def test_an_application_that_does_not_answer_is_the_servers_to_judge(way: str, tmp_path: Path) -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        return

    client = TestClient(TwoPhaseMiddleware(app, **settings(tmp_path, way)))
    with pytest.raises(AssertionError, match="did not receive any response"):  # As Starlette's client says it.
        post(client, way)


@pytest.mark.req("A-37", "A-16")
def test_a_plain_body_that_breaks_off_reaches_the_application_as_it_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    ended = threading.Event()

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while heard[-1:] != ["http.disconnect"]:
            message = await receive()
            heard.append(message["type"])
        ended.set()

    middleware = TwoPhaseMiddleware(app, **settings(tmp_path, "transparent"))
    with served(middleware, lifespan="off") as server:
        with server.connect() as connection:
            connection.sendall(b"POST /orders HTTP/1.1\r\nHost: orders.test\r\nContent-Length: 9\r\n\r\nhalf")
        assert ended.wait(PATIENCE_S)
    assert heard[-1] == "http.disconnect"
    assert (
        "served without being recorded: [body_broken_off] the client left before the end of its request" in caplog.text
    )


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("way", WAYS)
def test_context_variables_set_by_the_application_are_seen_around_it(way: str, tmp_path: Path) -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen: list[str] = []

    def logging_users(inner: App) -> App:
        async def outer(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    seen.append(f"answering {user.get()}")
                await send(message)

            user.set("unknown")
            await inner(scope, receive, sending)
            seen.append(f"answered {user.get()}")

        return outer

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert user.get() == "unknown"
        user.set("ada")
        await PlainTextResponse("done")(scope, receive, send)

    client = TestClient(logging_users(TwoPhaseMiddleware(app, **settings(tmp_path, way))))
    assert post(client, way).text == "done"
    assert seen[-2:] == ["answering ada", "answered ada"]


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("lifespan", ["on", "auto"])
def test_a_lifespan_that_raises_at_once_stops_the_start_where_it_would_without_us(
    lifespan: str, tmp_path: Path
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise ValueError("no lifespan here, or a broken one")
        await PlainTextResponse("served")(scope, receive, send)

    middleware = wrapped(app, tmp_path)
    with pytest.raises(ValueError, match="no lifespan here"), TestClient(middleware):
        pass
    if lifespan == "on":
        with pytest.raises(AssertionError, match="did not start"), served(middleware, lifespan="on"):
            pass
    else:
        with served(middleware, lifespan="auto") as server:
            assert server.talk(request("POST", "/orders", body=b"x")).endswith(b"served")
            opted_in = ("DTT-2PHP-Enabled: true", f"{CLIENT}: c-1")
            assert SERVER.lower().encode() in server.talk(request("POST", "/orders", *opted_in, body=b"x")).lower()


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    await PlainTextResponse(f"hello {len(await Request(scope, receive).body())}")(scope, receive, send)


@pytest.mark.req("A-37", "P-11-a")
@pytest.mark.parametrize("opened", [False, True], ids=["no lifespan", "lifespan"])
def test_under_trio_transparent_mode_fails_open(opened: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = TestClient(TwoPhaseMiddleware(hello, **settings(tmp_path, "transparent")), backend="trio")
    if opened:
        with client:
            assert post(client, "transparent").text == "hello 2"
    else:
        assert post(client, "transparent").text == "hello 2"
    assert "served without being recorded: [needs_asyncio] two-phase requests need asyncio" in caplog.text


@pytest.mark.req("P-11-a")
def test_under_trio_there_is_a_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    middleware = TwoPhaseMiddleware(hello, **settings(tmp_path, "two phases"))
    with pytest.raises(TwoPHPError, match="need asyncio") as refused, TestClient(middleware, backend="trio"):
        pass
    assert refused.value.code == "needs_asyncio"
    client = TestClient(middleware, backend="trio")
    assert post(client, "plain").text == "hello 2"
    with caplog.at_level(logging.ERROR):
        opted_in = client.post("/orders", headers={"DTT-2PHP-Enabled": "true", CLIENT: "c-1"})
    assert (opted_in.status_code, opted_in.json()["code"]) == (500, "needs_asyncio")
    assert post(TestClient(middleware), "two phases").text == "hello 2"  # Under asyncio the same service works.
    opted_in = client.post("/orders", headers={"DTT-2PHP-Enabled": "true", CLIENT: "c-2"})
    assert opted_in.json()["code"] == "needs_asyncio"
