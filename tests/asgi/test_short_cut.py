"""The short-cut below ASGI: the same bytes, the same log lines, the same runs as without it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.asgi.driver import OUTGOING, START_MS
from tests.asgi.sockets import Listener
from tests.core.profile import STEADY
from twophp import Policy, TwoPHPError, anonymous, current_intent
from twophp.asgi import ExposeFields, TwoPhaseMiddleware
from twophp.identity.head import Head
from twophp.uvicorn import Protocol, short_cut_of

pytestmark = pytest.mark.anyio

ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SERVER_LINE = re.compile(rb"dtt-2php-server-correlation-id: (\S+)")
ON = "DTT-2PHP-Enabled: true"
WAYS: dict[str, type[asyncio.Protocol]] = {"plain": HttpToolsProtocol, "short": Protocol}


class Odd(Response):
    """An answer with fields that Starlette would not write."""

    def init_headers(self, headers: Any = None) -> None:
        self.raw_headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]


ANSWERS: dict[str, Callable[[Request], Response]] = {
    "orders": lambda _request: JSONResponse({"id": "7"}, 201, {"location": "/orders/7", "X-Mixed-Case": "kept"}),
    "refusing": lambda _request: JSONResponse({"detail": "no"}, 409),
    "failing": lambda _request: PlainTextResponse("sorry", 503),
    "empty": lambda _request: Response(status_code=204),
    "elsewhere": lambda _request: RedirectResponse("/orders/7", 303),
    "streaming": lambda _request: StreamingResponse(iter([b"one", b"two"])),
    "closing": lambda _request: PlainTextResponse("bye", headers={"connection": "close"}),
    "short": lambda _request: Odd(b"three", headers={"content-length": "3"}),
    "unframed": lambda _request: Odd(b"three", headers={"content-type": "text/plain"}),
    "broken": lambda _request: Odd(b"ok", headers={"x-broken": "a\x01b", "content-length": "2"}),
    "mailing": lambda _request: PlainTextResponse("sent", background=BackgroundTask(asyncio.sleep, 0)),
    "later": lambda _request: JSONResponse({"id": "8"}, 201),
    "reading": lambda request: (
        JSONResponse({"scheme": request.url.scheme, "client": request.client, "app": True})
        if request.app
        else JSONResponse({})
    ),
}


async def handle(request: Request) -> Response:
    await request.body()
    name = request.path_params["name"]
    if name == "raising":
        raise ZeroDivisionError("mine")
    return ANSWERS.get(name, ANSWERS["orders"])(request)


def who(head: Head) -> str:
    if head.headers.get("x-user") == "trouble":
        raise ZeroDivisionError("no such user")  # Not an answer: identify answers 401 for what it does not know.
    return head.headers.get("x-user", "ada")


def check(_head: Head, body: bytes) -> None:
    if body == b"trouble":
        raise ZeroDivisionError("not checked")
    if body == b"invalid":
        raise ValueError("not valid")


def shop(make: Callable[..., Any] = Starlette, identify: Any = who, **more: Any) -> Any:
    app = make(routes=[Route("/{name}", handle, methods=["GET", "POST", "PUT"])], **more)
    app.add_middleware(
        TwoPhaseMiddleware,
        service="shop",
        store="memory:",
        identify=identify,
        prevalidate=check,
        policies={"POST /later": Policy.standard(mode="async"), "*": Policy.standard()},
        allow_insecure=True,
        max_body_bytes=1_000,
        clock=lambda: START_MS,
        outgoing=OUTGOING,
    )
    return app


def ask(method: str, target: str, *lines: str, body: bytes = b"", close: bool = True, version: str = "1.1") -> bytes:
    head = [f"{method} {target} HTTP/{version}", "Host: shop", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    if close:
        head.append("Connection: close")
    return "\r\n".join([*head, "", ""]).encode() + body


def one(
    client: str, target: str = "/orders", *more: str, method: str = "POST", body: bytes = b"{}", **how: Any
) -> bytes:
    return ask(method, target, ON, f"DTT-2PHP-Client-Correlation-ID: {client}", *more, body=body, **how)


def two(client: str, target: str = "/orders/confirm", *more: str, method: str = "POST", **how: Any) -> bytes:
    known = (f"DTT-2PHP-Client-Correlation-ID: {client}", "DTT-2PHP-Server-Correlation-ID: SERVER_ID")
    return ask(method, target, ON, *known, *more, **how)


Script = list[list[bytes]]
"""One connection after another, each the pieces that are sent over it."""


def whole(name: str) -> Script:
    """A handshake and a replay."""
    return [[one("c", f"/{name}")], [two("c", f"/{name}/confirm")], [two("c", f"/{name}/confirm")]]


SCRIPTS: dict[str, Script] = {
    **{f"a handshake: {name}": whole(name) for name in (*ANSWERS, "raising")},
    **{
        f"auto-confirm: {name}": [[one("c", f"/{name}", "DTT-2PHP-Auto-Confirm: true")]] * 2
        for name in (*ANSWERS, "raising")
    },
    "a repeat of phase 1": [[one("c")], [one("c")], [one("c", body=b"other")]],
    "status reads": [
        [one("c")],
        [two("c", "/orders", method="GET")],
        [two("c", "/x", method="HEAD")],
        [two("c")],
        [two("c", "/_2php/intents/SERVER_ID", method="GET")],
        [ask("GET", "/_2php/intents/SERVER_ID")],
    ],
    "an asynchronous one": [[one("c", "/later")], [two("c", "/later/confirm")], [ask("GET", "/later/SERVER_ID")]],
    "nobody's intent": [
        [two("c")],
        [one("c")],
        [two("d")],
        [two("c", "/other/confirm")],
        [two("c", "/orders/confirm", "X-User: eve")],
    ],
    "refusals": [
        [ask("POST", "/orders", ON)],
        [one("not an id")],
        [one("c", "/orders", "DTT-2PHP-Enabled: false")],
        [one("c", "/orders/confirm")],
        [one("c", body=b"invalid")],
        [one("c", body=b"x" * 1_001)],
        [one("c", "/orders", "DTT-2PHP-Auto-Confirm: true", "DTT-2PHP-Callback: http://plain")],
    ],
    "what the service's own code raises": [[one("c", "/orders", "X-User: trouble")], [one("c", body=b"trouble")]],
    "the application's alone": [
        [one("c", method="GET")],
        [ask("OPTIONS", "/orders", ON)],
        [ask("POST", "/orders", "DTT-2PHP-Enabled: maybe", body=b"{}")],
        [ask("POST", "/orders", body=b"{}")],
        [ask("GET", "/nowhere/at/all", ON)],
        [ask("GET", "/_2php/readyz")],
    ],
    "other targets": [
        [one("c", "/orders?a=1&b=%20")],
        [two("c")],
        [one("d", "/%6frders")],
        [two("d", "/%6frders/confirm")],
        [one("e", "http://shop/orders")],
        [one("f", "/a/b/c")],
    ],
    "expect: 100-continue": [
        [one("c", "/orders", "Expect: 100-continue")],
        [one("d", "/orders", "Expect: 100-continue", body=b"x" * 2_000)],
        [one("", "/orders", "Expect: 100-continue")],
    ],
    "a chunked body": [
        [one("c", "/orders", "Transfer-Encoding: chunked", body=b"") + b"3\r\nabc\r\n", b"1\r\nd\r\n0\r\n\r\n"],
        [two("c")],
    ],
    "byte by byte": [[bytes([byte]) for byte in one("c")], [bytes([byte]) for byte in two("c")]],
    "the head and then the body": [[one("c")[:-2], b"{}"], [two("c")]],
    "http/1.0": [[one("c", version="1.0", close=False)], [two("c", version="1.0", close=False)]],
    "one after another on a connection": [[one("c", close=False), one("d", close=False), ask("GET", "/orders")]],
    "a pipeline": [
        [one("c", close=False) + one("d", close=False) + ask("GET", "/orders", close=False) + one("", close=True)],
        [two("d", close=False) + one("e", close=False) + two("d", close=False) + ask("GET", "/orders")],
        [one("f", close=False) + one("g", close=False) + b"nonsense\r\n\r\n"],
    ],
    "no http at all": [[b"\x16\x03\x01\r\n\r\n"], [one("c")[:20] + b"\x00\r\n\r\n"]],
    "a proxy": [
        [one("c", "/reading", "X-Forwarded-Proto: https", "X-Forwarded-For: 203.0.113.9, 127.0.0.1")],
        [two("c", "/reading/confirm", "X-Forwarded-Proto: https", "X-Forwarded-For: 203.0.113.9")],
        [two("c", "/reading/confirm", "X-Forwarded-For: 203.0.113.9:80")],
    ],
}


async def played(app: Any, way: str, script: Script, **config: Any) -> list[bytes]:
    """What comes back over each connection, but for the ids that the server makes up."""
    listener = Listener(app, WAYS[way], **config)
    heard: list[bytes] = []
    server_id = b"00000000-0000-4000-8000-000000000000"
    for pieces in script:
        answer = await listener.talk([piece.replace(b"SERVER_ID", server_id) for piece in pieces])
        found = SERVER_LINE.findall(answer)
        server_id = found[-1] if found else server_id
        heard.append(ID.sub(b"ID", answer))
    await stopped(app)
    return heard


async def stopped(app: Any) -> None:
    while not isinstance(app, TwoPhaseMiddleware):
        app = app.middleware_stack if hasattr(app, "middleware_stack") else app.app
        if app is None:  # No request was let in, so nothing was opened.
            return
    await app.stop()


async def both(script: Script, make: Callable[[], Any] = shop, **config: Any) -> list[bytes]:
    plain = await played(make(), "plain", script, **config)
    assert await played(make(), "short", script, **config) == plain
    return plain


@pytest.mark.req("P-0-b", "P-11-e")
@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_answer_has_the_same_bytes(name: str) -> None:
    heard = await both(SCRIPTS[name], forwarded_allow_ips="*", proxy_headers=True)
    assert all(heard) or "broken" in name, "what uvicorn refuses to send, it does not send"


@pytest.mark.req("P-0-b", "P-11-e")
@pytest.mark.parametrize("name", SCRIPTS)
async def test_answers_at_hand_have_the_same_bytes(name: str) -> None:
    await both(SCRIPTS[name], lambda: shop(identify=anonymous), proxy_headers=True)


@pytest.mark.req("P-0-b")
async def test_a_thousand_repeats_in_a_pipeline() -> None:
    replays = two("c", close=False) * 1_000
    heard = await both(
        [[one("c")], [two("c")], [replays + two("c")], [one("d", close=False) + replays + ask("GET", "/orders")]],
        lambda: shop(identify=anonymous),
    )
    assert heard[2].count(b"COMMITTED") == 1_001
    assert heard[3].count(b"HTTP/1.1 ") == 1_002


@pytest.mark.req("P-0-b", "P-11-e")
@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("name", ["a handshake: orders", "status reads", "what the service's own code raises"])
async def test_fastapi_and_a_root_path_make_no_difference(name: str) -> None:
    heard = await both(SCRIPTS[name], lambda: shop(FastAPI, root_path="/api"))
    assert all(heard)
    await both(SCRIPTS[name], root_path="/mounted")


@pytest.mark.req("P-0-b")
@pytest.mark.parametrize("name", ["a handshake: orders", "refusals", "a pipeline", "a proxy", "http/1.0"])
async def test_the_access_log_has_the_same_lines(name: str, caplog: pytest.LogCaptureFixture) -> None:
    lines: dict[str, list[str]] = {}
    for way in WAYS:
        caplog.clear()
        with caplog.at_level(logging.INFO, "uvicorn.access"):
            await played(shop(), way, SCRIPTS[name], access_log=True, proxy_headers=True, forwarded_allow_ips="*")
        lines[way] = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert lines["short"] == lines["plain"] != []


async def test_a_limit_on_concurrency_is_kept() -> None:
    heard = await both([[one("c")], [ask("GET", "/orders")]], limit_concurrency=1)
    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in heard)


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["Enabled", "Client-Correlation-ID", "Server-Correlation-ID", "Auto-Confirm", "Requested-TTL"]),
        st.sampled_from(["true", "TRUE", "false", "c-1", "c-2", "SERVER_ID", "c-1, c-1", "", "5000", "x" * 200]),
    ).map(lambda pair: f"DTT-2PHP-{pair[0]}: {pair[1]}"),
    max_size=4,
)
REQUESTS = st.builds(
    lambda method, target, fields, body, cut: (ask(method, target, *fields, body=body), cut),
    st.sampled_from(["POST", "PUT", "GET", "HEAD", "DELETE"]),
    st.sampled_from(["/orders", "/orders/confirm", "/empty", "/empty/confirm", "/streaming/confirm", "/confirm", "/"]),
    FIELDS.map(lambda more: [ON, "DTT-2PHP-Client-Correlation-ID: c-1", *more]),
    st.binary(max_size=20),
    st.integers(0, 200),
)


@pytest.mark.req("A-12", "P-0-b")
@settings(STEADY, max_examples=60)
@given(st.lists(REQUESTS, min_size=1, max_size=5))
def test_whatever_comes_the_bytes_are_the_same(requests: list[tuple[bytes, int]]) -> None:
    script = [[piece for piece in (raw[:cut], raw[cut:]) if piece] for raw, cut in requests]
    asyncio.run(both([[one("c-1")], *script]))
    asyncio.run(both([[one("c-1")], [two("c-1")], *script], lambda: shop(identify=anonymous)))


class Watching:
    """A middleware of a user: notes what it sees, and which client the application is run for."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(f"{scope['method']} {scope['path']}")
        scope["user"] = "ada"
        await self.app(scope, receive, send)


def refused(app: Any) -> TwoPHPError:
    with pytest.raises(TwoPHPError) as error:
        short_cut_of(Listener(app, Protocol).config)
    return error.value


def by_function(app: Any) -> Callable[..., Awaitable[None]]:
    async def outer(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return outer


@pytest.mark.req("P-11-e")
def test_middleware_around_ours_keeps_the_server_from_starting() -> None:
    app = shop()
    app.add_middleware(Watching)
    error = refused(app)
    assert error.code == "bypassed_middleware"
    assert "tests.asgi.test_short_cut.Watching" in str(error)
    assert "--bypass-middleware" in str(error)
    assert refused(by_function(shop())).code == "bypassed_middleware"

    class Own(Starlette):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)

    assert "Own" in str(refused(shop(Own)))


@pytest.mark.req("P-11-e")
def test_without_the_middleware_in_front_the_server_does_not_start() -> None:
    assert refused(Starlette()).code == "no_middleware"
    assert refused(Starlette(routes=[Mount("/shop", app=shop())])).code == "no_middleware"


@pytest.mark.req("P-11-e")
async def test_told_to_bypass_only_what_runs_the_application_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_BYPASS_MIDDLEWARE", "1")
    app = shop()
    app.add_middleware(Watching)
    script = [[one("c")], [two("c")], [two("c")], [two("c", "/x", method="GET")], [ask("GET", "/orders")]]
    heard = await played(app, "short", [*script, [one("d", "/orders", "DTT-2PHP-Auto-Confirm: true")]])
    assert [answer.split(b" ")[1] for answer in heard] == [b"200", b"200", b"200", b"200", b"201", b"201"]
    assert app.middleware_stack.app.seen == ["POST /orders/confirm", "GET /orders", "POST /orders"]


@pytest.mark.req("A-19")
async def test_what_a_browser_asks_goes_through_what_answers_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    def exposing() -> Any:
        app = shop()
        app.add_middleware(ExposeFields)
        return app

    def sharing() -> Any:
        app = exposing()
        app.add_middleware(CORSMiddleware, allow_origins=["https://page.test"])
        return app

    origin = ("/orders", "Origin: https://page.test")
    plain, exposed = await both([[one("c")], [one("d", *origin)]], exposing)
    assert b"access-control-expose-headers" not in plain
    assert b"access-control-expose-headers" in exposed
    assert "CORSMiddleware" in str(refused(sharing()))
    monkeypatch.setenv("TWOPHP_BYPASS_MIDDLEWARE", "1")
    (shared,) = await both([[one("e", *origin)]], sharing)
    assert b"access-control-allow-origin: https://page.test" in shared


@pytest.mark.req("A-107")
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_changes_nothing(way: str) -> None:
    entered, go_on, runs = asyncio.Event(), asyncio.Event(), []

    async def thinks(_request: Request) -> Response:
        intent = current_intent()
        assert intent is not None
        runs.append(intent.client_correlation_id)
        entered.set()
        await go_on.wait()
        return PlainTextResponse("thought")

    app = shop()
    app.router.routes.insert(0, Route("/orders", thinks, methods=["POST"]))
    listener = Listener(app, WAYS[way])
    _reader, leaving = await listener.connect()
    leaving.write(one("gone", close=False))
    leaving.transport.abort()
    server_id = SERVER_LINE.findall(await listener.talk([one("c")]))[0]
    _reader, leaving = await listener.connect()
    leaving.write(two("c", close=False).replace(b"SERVER_ID", server_id))
    await entered.wait()
    leaving.transport.abort()
    go_on.set()
    again = await listener.talk([two("c").replace(b"SERVER_ID", server_id)])
    assert again.endswith(b"thought")
    assert runs == ["c"]
    await stopped(app)


@pytest.mark.req("P-0-b")
@pytest.mark.parametrize("way", WAYS)
async def test_a_request_that_follows_a_repeat_is_not_cut_off_as_an_idle_connection(way: str) -> None:
    go_on = asyncio.Event()

    async def thinks(_request: Request) -> Response:
        await go_on.wait()
        return PlainTextResponse("thought")

    app = shop(identify=anonymous)
    app.router.routes.insert(0, Route("/thinking", thinks))
    listener = Listener(app, WAYS[way], timeout_keep_alive=0)
    server_id = SERVER_LINE.findall(await listener.talk([one("c")]))[0]
    confirm = two("c", close=False).replace(b"SERVER_ID", server_id)
    await listener.talk([confirm])
    reader, writer = await listener.connect()
    writer.write(confirm + ask("GET", "/thinking"))
    assert b"COMMITTED" in await reader.readuntil(b'{"id":"7"}')  # By now the time of an idle connection is over.
    go_on.set()
    assert (await reader.read()).endswith(b"thought")
    writer.close()
    await stopped(app)


@pytest.mark.req("P-0-b")
async def test_a_client_that_does_not_read_is_waited_for() -> None:
    text = "x" * 4_000_000

    async def much(_request: Request) -> Response:
        return PlainTextResponse(text)

    app = shop()
    app.router.routes.insert(0, Route("/orders", much, methods=["POST"]))
    listener = Listener(app, Protocol)
    server_id = SERVER_LINE.findall(await listener.talk([one("c")]))[0]
    reader, writer = await listener.connect()
    confirm = two("c", close=False).replace(b"SERVER_ID", server_id)
    writer.write(confirm * 3 + ask("GET", "/refusing"))
    await writer.drain()
    heard = await reader.read()
    assert heard.count(text.encode()) == 3
    assert heard.endswith(b'{"detail":"no"}')
    writer.close()
    await stopped(app)
