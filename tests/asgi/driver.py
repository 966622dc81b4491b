"""A tiny ASGI driver: raw messages in, raw messages out, and a clock that moves when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.asgi.sockets import Listener, exchange
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import App, Message, Receive, Scope, Send
from twophp.asgi.outgoing import Outgoing
from twophp.asgi.server import Server
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Intent, by_pair
from twophp.delivery.egress import default_tls
from twophp.identity.head import Head
from twophp.ports import Tail

START_MS = 1_800_000_000_000
through: type[asyncio.Protocol] | None = None
"""The protocol of uvicorn's that requests go through, over a socket; None: they are made as calls."""
CLIENT, SERVER = "DTT-2PHP-Client-Correlation-ID", "DTT-2PHP-Server-Correlation-ID"
STATE, RESOURCE, MESSAGE = "DTT-2PHP-Phase-State", "DTT-2PHP-Resource-ID", "DTT-2PHP-Message"
TTL, DEADLINE = "DTT-2PHP-TTL", "DTT-2PHP-PONR-Deadline"
ENABLED = {"DTT-2PHP-Enabled": "true"}
AUTO = {**ENABLED, "DTT-2PHP-Auto-Confirm": "true"}


async def unknown_name(host: str, port: int) -> list[str]:
    """No name server: nothing leaves this machine."""
    raise OSError(host, port)


# To read all certificates for every service would take most of the time.
OUTGOING = Outgoing(ssl_context=default_tls(), resolver=unknown_name)


class Clock:
    """The only time there is."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now


@dataclass(frozen=True)
class Reply:
    """A response, whole."""

    status: int
    raw: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def get(self, name: str) -> str | None:
        """The one value of a field; a second one is a failure of its own."""
        found = [value for key, value in self.raw if key.lower() == name.lower().encode()]
        assert len(found) <= 1, found
        return found[0].decode("latin-1") if found else None

    def names(self) -> set[str]:
        return {key.decode().lower() for key, _value in self.raw}

    def ours(self) -> dict[str, str]:
        """The fields of the protocol."""
        return {k.decode().lower(): v.decode() for k, v in self.raw if k.lower().startswith(b"dtt-2php-")}


class Exchange:
    """One request on its way: feeds the body, gathers the answer, may hang up."""

    def __init__(self, body: bytes | tuple[bytes, ...], *, truncated: bool = False) -> None:
        chunks = body if isinstance(body, tuple) else (body,)
        self._messages: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": truncated or number < len(chunks)}
            for number, chunk in enumerate(chunks, 1)
        ]
        self._hung_up = asyncio.Event()
        if truncated:
            self._hung_up.set()
        self.sent: list[Message] = []
        self.is_answered = asyncio.Event()
        self.read = 0

    async def receive(self) -> Message:
        if self._messages:
            self.read += 1
            return self._messages.pop(0)
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_answered.set()

    def hang_up(self) -> None:
        self._hung_up.set()

    def reply(self) -> Reply:
        """What came back. ASGI's own rules are checked on the way: one start, then bodies, the last one the last."""
        start, *bodies = self.sent
        assert start["type"] == "http.response.start"
        assert [part.get("more_body", False) for part in bodies] == [True] * (len(bodies) - 1) + [False]
        raw = tuple((bytes(key), bytes(value)) for key, value in start["headers"])
        return Reply(start["status"], raw, b"".join(part.get("body", b"") for part in bodies))


def a_scope(
    method: str,
    path: str,
    headers: Mapping[str, str] | list[tuple[bytes, bytes]] = {},  # noqa: B006 - never changed
    *,
    query: str = "",
    scheme: str = "https",
    client: tuple[str, int] | None = ("192.0.2.7", 4711),
    root_path: str = "",
) -> Scope:
    """An HTTP scope as uvicorn makes it of a raw path."""
    raw = headers if isinstance(headers, list) else [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": raw,
        "client": client,
        "server": ("testserver", 443),
        "state": {"from": "lifespan"},
        "extensions": {"http.response.pathsend": {}},
    }


@dataclass
class Seen:
    """What the application was given."""

    scope: Scope
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value.decode() for key, value in self.scope["headers"] if key == name.encode()]


Behaviour = Callable[["Orders", Seen, Send], Awaitable[None]]


async def answer(
    send: Send, status: int = 201, headers: Mapping[str, str] | None = None, body: bytes = b'{"id": "7"}'
) -> None:
    """The application's way to answer."""
    fields = {"content-type": "application/json", "location": "/orders/7"} if headers is None else headers
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def created(_app: Orders, _seen: Seen, send: Send) -> None:
    """The ordinary case: 201, a Location and a JSON body."""
    await answer(send)


@dataclass
class Orders:
    """The wrapped application: notes what it sees and does what the test says."""

    behave: Behaviour = created
    seen: list[Seen] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append(Seen(scope, body))
        await self.behave(self, self.seen[-1], send)

    @property
    def runs(self) -> int:
        return len(self.seen)


async def held(app: Orders, seen: Seen, send: Send) -> None:
    """A handler that thinks until the test lets it go on."""
    app.entered.set()
    await app.may_go_on.wait()
    await created(app, seen, send)


def by_header(head: Head) -> str:
    """The user that the ``x-user`` header names; none without the header."""
    return head.headers["x-user"]


@dataclass
class Service:
    """A service under test: its application, its middleware, its clock, and a client to speak to it."""

    app: App
    orders: Orders
    middleware: TwoPhaseMiddleware
    clock: Clock
    headers: dict[str, str] = field(default_factory=dict)
    handlers_go_on: bool = False  # After they have answered; no request waits for that.
    calls: set[asyncio.Task[None]] = field(default_factory=set)  # Those that were answered and have not returned.
    listener: Listener | None = None

    @property
    def server(self) -> Server:
        assert self.middleware._server is not None
        return self.middleware._server

    async def send(self, scope: Scope, body: bytes | tuple[bytes, ...] = b"") -> Reply:
        """One request, until the call returns; or until it is answered, where a handler goes on after that."""
        if through is not None:
            return await self._send_over_a_socket(scope, body)
        exchange = Exchange(body)
        if not self.handlers_go_on:
            await self.app(scope, exchange.receive, exchange.send)
            return exchange.reply()
        call = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        answered = asyncio.ensure_future(exchange.is_answered.wait())
        await asyncio.wait([call, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        if call.done():
            call.result()
        else:
            self.calls.add(call)
        return exchange.reply()

    async def _send_over_a_socket(self, scope: Scope, body: bytes | tuple[bytes, ...]) -> Reply:
        assert through is not None
        self.listener = self.listener or Listener(self.app, through)
        status, raw, answer = await exchange(self.listener, scope, body, self.calls if self.handlers_go_on else None)
        return Reply(status, tuple(raw), answer)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] = {},
        body: bytes | tuple[bytes, ...] = b"",
        **facts: Any,
    ) -> Reply:
        return await self.send(a_scope(method, path, {**self.headers, **headers}, **facts), body)

    async def register(
        self,
        client_id: str = "c-1",
        *,
        method: str = "POST",
        path: str = "/orders",
        body: bytes = b'{"sku": 1}',
        more: Mapping[str, str] = {},
        **facts: Any,
    ) -> Reply:
        """Phase 1."""
        return await self.request(method, path, {**ENABLED, CLIENT: client_id, **more}, body, **facts)

    async def confirm(
        self,
        registered: Reply | str,
        client_id: str = "c-1",
        *,
        path: str = "/orders/confirm",
        more: Mapping[str, str] = {},
        body: bytes = b"",
        **facts: Any,
    ) -> Reply:
        """Phase 2."""
        server_id = registered if isinstance(registered, str) else registered.get(SERVER)
        assert server_id is not None
        headers = {**ENABLED, CLIENT: client_id, SERVER: server_id, **more}
        return await self.request("POST", path, headers, body, **facts)

    async def read(self, server_id: str, client_id: str = "c-1", *, method: str = "GET", **facts: Any) -> Reply:
        """The status read (A-04)."""
        headers = {**ENABLED, CLIENT: client_id, SERVER: server_id, **facts.pop("more", {})}
        return await self.request(method, facts.pop("path", f"/_2php/intents/{server_id}"), headers, **facts)

    async def both(self, client_id: str = "c-1", **facts: Any) -> tuple[Reply, Reply]:
        """A whole handshake."""
        registered = await self.register(client_id, **facts)
        return registered, await self.confirm(registered, client_id)

    async def intent(self, server_id: str | None, client_id: str = "c-1") -> Intent | None:
        assert server_id is not None
        return await self.server.intents.look(client_id, server_id)

    async def phase(self, server_id: str | None, client_id: str = "c-1") -> str | None:
        intent = await self.intent(server_id, client_id)
        return None if intent is None else str(intent.phase)

    async def journal(self, server_id: str, client_id: str = "c-1") -> list[tuple[str, str]]:
        lines = await self.server.store.history(by_pair(client_id, server_id))
        return [(line.event.before, line.event.after) for line in lines]

    async def rows(self) -> list[LedgerEntry]:
        """The ledger, newest row first."""
        if self.middleware._server is None:
            await self.middleware.start()
        return list(await self.server.store.entries(Tail(limit=10_000)))


@asynccontextmanager
async def serving(
    orders: Orders | None = None,
    *,
    app: App | None = None,
    store: str = "memory:",
    policies: Mapping[str, Policy] | Policy | None = None,
    headers: Mapping[str, str] = {},
    around: Callable[[App], App] | None = None,
    **settings: Any,
) -> AsyncIterator[Service]:
    """A service with a clock of its own. Sweeps happen when a test asks for them."""
    orders, clock = orders or Orders(), Clock()
    settings.setdefault("identify", anonymous)
    settings.setdefault("sweep_interval_s", 3_600.0)
    settings.setdefault("outgoing", OUTGOING)
    policies = policies or {"POST /orders": Policy.standard()}
    middleware = TwoPhaseMiddleware(
        app or orders, service="shop", store=store, policies=policies, clock=clock, **settings
    )
    outermost = middleware if around is None else around(middleware)
    service = Service(outermost, orders, middleware, clock, dict(headers))
    try:
        yield service
    finally:
        orders.may_go_on.set()
        await middleware.stop()
        await asyncio.gather(*service.calls)
