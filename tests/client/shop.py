"""The other side of a call: a service behind the real middleware and a real socket, with everything it heard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks import serving
from tests.asgi_frameworks.serving import Served, wrapped
from twophp import Policy
from twophp.core.entry import LedgerEntry
from twophp.ports import Find, Question, Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import verify

MUTATIONS = ("POST", "PUT", "PATCH", "DELETE")
BUSY_MS = 5_000
POLICIES = {
    "/later": Policy.standard(mode="async"),
    "/unwritable-later": Policy.standard(mode="async"),
    "*": Policy.standard(),
}


@contextmanager
def served(app: Any, **config: Any) -> Iterator[Served]:
    """A server that does not hang up on an idle connection: on a loaded machine that would be a lost answer."""
    with serving.served(app, **({"timeout_keep_alive": 120} | config)) as server:
        yield server


class Heard:
    """One request as it came over the wire."""

    def __init__(self, scope: Any, body: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode()
        self.query: bytes = scope["query_string"]
        self.headers: dict[str, str] = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.body = body

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"

    def dtt(self, name: str) -> str | None:
        return self.headers.get(f"dtt-2php-{name}")


class Unwritable(Response):
    """Says that all is done, with a status that no ledger can keep: the handler's effects are unknown."""

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": "201", "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Shop:
    """An application with orders, and a note of every request that reached its door and of every run of a handler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.heard: list[Heard] = []
        self.runs: list[str] = []
        self.at_entry: list[list[tuple[str, ...]]] = []
        self.watched: Path | None = None  # A client's ledger to look into when a handler is entered.
        self.on_heard: Callable[[Heard], object] | None = None  # Called before the middleware sees the request.
        self.may_end = threading.Event()
        self.may_end.set()
        routes = [
            Route("/orders", self._create, methods=["POST"]),
            Route("/orders/{id}", self._create, methods=[*MUTATIONS, "GET"]),
            Route("/later", self._create, methods=["POST"]),
            Route("/broken", self._break, methods=["POST"]),
            Route("/invalid", self._refuse, methods=["POST"]),
            Route("/unwritable", self._lose, methods=["POST"]),
            Route("/unwritable-later", self._lose, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def _create(self, request: Request) -> Response:
        self.runs.append(f"{request.method} {request.url.path}")
        if self.watched is not None:
            self.at_entry.append(committed(self.watched))
        await asyncio.to_thread(self.may_end.wait)
        body = await request.body()
        return JSONResponse({"id": f"order-{len(self.runs)}", "sent": body.decode()}, 201, {"x-shop": "yes"})

    async def _break(self, _request: Request) -> Response:
        self.runs.append("broken")
        raise RuntimeError("the handler failed")

    async def _refuse(self, _request: Request) -> Response:
        self.runs.append("invalid")
        return JSONResponse({"why": "no such thing"}, 422, {"x-shop": "yes"})

    async def _lose(self, _request: Request) -> Response:
        self.runs.append("unwritable")
        return Unwritable()

    def lines(self) -> list[str]:
        return [heard.line for heard in self.heard]

    def rows(self, question: Question | None = None) -> list[LedgerEntry]:
        """The server's own ledger."""
        return ledger(self.folder / "orders.db", question)


def tapped(app: Any, shop: Shop) -> Any:
    """The application, with a note of every request before anything else sees it."""

    async def tap(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body", False):
            messages.append(await receive())
        heard = Heard(scope, b"".join(message.get("body", b"") for message in messages))
        shop.heard.append(heard)
        if shop.on_heard is not None:
            shop.on_heard(heard)
        waiting = iter(messages)

        async def again() -> Any:
            for message in waiting:
                return message
            return await receive()

        await app(scope, again, send)

    return tap


@contextmanager
def shop(folder: Path, **settings: Any) -> Iterator[Shop]:
    """A shop that is open."""
    folder.mkdir(exist_ok=True)
    made = Shop(folder)
    app = wrapped(made.app, folder, **({"policies": POLICIES} | settings))
    with served(tapped(app, made)) as server:
        made.url = server.url
        try:
            yield made
        finally:
            made.may_end.set()


def committed(path: Path) -> list[tuple[str, ...]]:
    """The ids and phase of each client row that is durable right now."""
    return read(path, "SELECT client_correlation_id, server_correlation_id, phase FROM entry WHERE actor = 'client'")


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What a database says to a connection of its own."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(BUSY_MS)
        return connection.execute(query).fetchall()


def ledger(path: Path, question: Question | None = None) -> list[LedgerEntry]:
    """The rows of a ledger, and its proof that no row was changed."""

    async def read() -> list[LedgerEntry]:
        async with SQLiteStore(str(path)) as store:
            return list(await store.entries(question or Tail(1_000)))

    report = verify(str(path))
    assert report.holds, report.findings
    return asyncio.run(read())


def pair(path: Path, client_correlation_id: str) -> LedgerEntry:
    """The one row of a call."""
    (row,) = ledger(path, Find(client_correlation_id))
    return row
