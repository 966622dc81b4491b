"""Five ways to make the same call: httpx and httpx2, blocking and awaiting, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx
import httpx2
import requests

from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, Reconciliation, TwoPhaseTransport
from twophp.client.requests import TwoPhaseAdapter

KINDS = ("httpx", "httpx2", "httpx async", "httpx2 async", "requests")
LIBRARIES = {"httpx": httpx, "httpx2": httpx2}


class Said:
    """A final answer, whichever library brought it."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.status: int = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.text: str = response.text
        self.info: dict[str, Any] = (
            response.extensions["twophp"] if hasattr(response, "extensions") else response.twophp
        )

    @property
    def json(self) -> Any:
        return self.response.json()


class Caller:
    """One client. ``send`` makes a request and reads its answer."""

    def __init__(self, send: Callable[..., Any], reconcile: Callable[..., Reconciliation]) -> None:
        self._send = send
        self.reconcile = reconcile

    def get(self, url: str) -> Any:
        return self._send("GET", url)

    def request(self, method: str, url: str, **more: Any) -> Said:
        return Said(self._send(method, url, **more))

    def post(self, url: str, **more: Any) -> Said:
        return self.request("POST", url, **({"json": {"item": 1}} | more))


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Nothing happens in the background unless a test says so."""
    usual = {
        "ledger": f"sqlite:///{folder}/checkout.db",
        "source": "checkout",
        "allow_insecure": True,
        "reconcile_every_s": None,
    }
    return usual | changes


@contextmanager
def caller(kind: str, folder: Path, **changes: Any) -> Iterator[Caller]:
    """A client of this kind, with everything closed in the end."""
    options = settings(folder, **changes)
    name, _space, colour = kind.partition(" ")
    if name == "requests":
        with requests.Session() as session:
            adapter = TwoPhaseAdapter(**options)
            for scheme in ("http://", "https://"):
                session.mount(scheme, adapter)
            yield Caller(session.request, adapter.reconcile)
        return
    library: Any = LIBRARIES[name]
    if colour:
        yield from _awaiting(library, options)
        return
    transport = TwoPhaseTransport(**options)
    with library.Client(transport=transport, timeout=PATIENCE_S) as client:
        yield Caller(client.request, transport.reconcile)


def _awaiting(library: Any, options: dict[str, Any]) -> Iterator[Caller]:
    with asyncio.Runner() as runner:

        async def begin() -> tuple[Any, AsyncTwoPhaseTransport]:
            transport = AsyncTwoPhaseTransport(**options)
            client = library.AsyncClient(transport=transport, timeout=PATIENCE_S)
            await client.__aenter__()
            return client, transport

        client, transport = runner.run(begin())

        async def send(*args: Any, **more: Any) -> Any:
            return await client.request(*args, **more)

        async def reconcile(**how: Any) -> Reconciliation:
            return await transport.reconcile(**how)

        try:
            yield Caller(
                lambda *args, **more: runner.run(send(*args, **more), context=copy_context()),
                lambda **how: runner.run(reconcile(**how)),
            )
        finally:
            runner.run(client.aclose())


class Losing(httpx2.BaseTransport):
    """A real connection whose answers get lost: the server has heard, the client has not.

    ``plan`` names, per kind of request, how many answers in a row are lost; ``unsent_...``, how many requests do not
    even leave. What was tried is noted, and ``after`` is called for every answer before the client receives it.
    """

    def __init__(self, after: Callable[[str], object] | None = None, **plan: int) -> None:
        self._inner = httpx2.HTTPTransport()
        self._after = after
        self.plan = plan
        self.sent: list[str] = []
        self.on_unsent: Callable[[], object] = lambda: None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        kind = _kind(request)
        self.sent.append(kind)
        if self.plan.get(f"unsent_{kind}", 0):
            self.plan[f"unsent_{kind}"] -= 1
            self.on_unsent()
            raise httpx2.ConnectError("the server is not there")
        response = self._inner.handle_request(request)
        if self._after is not None:
            self._after(kind)
        if self.plan.get(kind, 0):
            self.plan[kind] -= 1
            response.read()
            response.close()
            raise httpx2.ReadError("the connection was reset")
        return response

    def close(self) -> None:
        self._inner.close()


class Forgetful(httpx2.HTTPTransport):
    """Breaks a header of every confirm on its way."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/confirm"):
            request.headers["DTT-2PHP-Client-Correlation-ID"] = "not the one, not even an id"
        return super().handle_request(request)


def _kind(request: httpx2.Request) -> str:
    if "dtt-2php-server-correlation-id" not in request.headers:
        return "phase_1"
    return "status" if request.method == "GET" else "phase_2"


class HandTime:
    """A steady clock that moves when the client waits, or when a test says so."""

    def __init__(self) -> None:
        self.now = 50_000
        self.waits: list[float] = []

    def __call__(self) -> int:
        return self.now

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += round(seconds * 1_000)
