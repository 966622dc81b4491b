"""Polling as draft §5.3.3 has it, read literally: no field of ours in the request, and it ends (A-04)."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi.driver import (
    CLIENT,
    ENABLED,
    RESOURCE,
    SERVER,
    STATE,
    Orders,
    Reply,
    Seen,
    answer,
    by_header,
    held,
    serving,
)
from tests.asgi_frameworks.serving import served
from twophp import Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import Send

MOST_POLLS = 10_000
ASYNC = {"POST /orders": Policy.standard(mode="async")}
ADA, EVE = {"x-user": "ada"}, {"x-user": "eve"}


def exchange(url: str, method: str, path: str, *fields: str) -> tuple[int, dict[str, str], bytes]:
    """One request over a socket of its own, and the whole answer."""
    parts = urlsplit(url)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close", *fields]
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=60) as peer:
        peer.sendall("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())
        received = b""
        while chunk := peer.recv(65_536):
            received += chunk
    head, _blank, body = received.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    named = {name.lower(): value.strip() for name, _colon, value in (line.partition(":") for line in headers)}
    return int(status.split()[1]), named, body


class Shop:
    """Orders that are made in the background, and kept under the id that the handler chose."""

    def __init__(self, folder: Path, *, keeps: bool, fails: bool) -> None:
        self.may_end, self._keeps, self._fails = threading.Event(), keeps, fails
        self.made: set[str] = set()
        app = Starlette(routes=[Route("/orders", self._make, methods=["POST"]), Route("/orders/{id}", self._show)])
        store = f"sqlite:///{folder}/shop.db"
        self.app = TwoPhaseMiddleware(
            app, service="shop", store=store, identify=anonymous, policies=ASYNC, allow_insecure=True
        )

    async def _make(self, _request: Request) -> Response:
        await asyncio.to_thread(self.may_end.wait)
        intent = current_intent()
        assert intent is not None
        if self._fails:
            return JSONResponse({"why": "no such sku"}, 422)
        made = intent.provisional_resource_id if self._keeps else "7"
        self.made.add(made)
        return JSONResponse({"id": made}, 201)

    async def _show(self, request: Request) -> Response:
        known = request.path_params["id"] in self.made
        return JSONResponse({"order": known}, 200 if known else 404)


@pytest.mark.req("P-5.3.3-d", "P-5.3.3-e", "A-04", "A-05")
@pytest.mark.parametrize("where", ["location", "resource"])
@pytest.mark.parametrize(
    ("keeps", "fails", "end"),
    [(True, False, "COMMITTED"), (False, False, "COMMITTED"), (False, True, "FAILED")],
)
def test_a_literal_reader_ends(where: str, keeps: bool, fails: bool, end: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, keeps=keeps, fails=fails)
    with served(shop.app) as server:
        opt_in = ("DTT-2PHP-Enabled: true", "DTT-2PHP-Client-Correlation-ID: c-1")
        _status, registered, _body = exchange(server.url, "POST", "/orders", *opt_in)
        both = (*opt_in, f"{SERVER}: {registered[SERVER.lower()]}")
        status, accepted, _body = exchange(server.url, "POST", "/orders/confirm", *both)
        assert (status, accepted[STATE.lower()]) == (202, "PROCESSING")
        path = accepted["location"] if where == "location" else f"/orders/{accepted[RESOURCE.lower()]}"
        states: list[str] = []
        while len(states) < MOST_POLLS and (not states or states[-1] not in ("COMMITTED", "FAILED")):
            _status, headers, body = exchange(server.url, "GET", path)
            states.append(headers.get(STATE.lower(), "?"))
            shop.may_end.set()
    assert (states[0], states[-1], set(states)) == ("PROCESSING", end, {"PROCESSING", end})
    if end == "COMMITTED":
        assert headers[RESOURCE.lower()] in shop.made
        assert body == (b'{"order":true}' if keeps and where == "resource" else body)
    else:
        assert b"no such sku" in body


# --- which clients get an answer -------------------------------------------------------------------------------------

anyio_mark = pytest.mark.anyio


async def fails(_app: Orders, seen: Seen, send: Send) -> None:
    await answer(send, 404 if seen.scope["method"] == "GET" else 422, {}, b"no")


def server_id(reply: Reply) -> str:
    found = reply.get(SERVER)
    assert found is not None
    return found


@anyio_mark
@pytest.mark.req("A-04", "A-67", "P-13.2-b")
async def test_another_identity_learns_nothing(store: str) -> None:
    async with serving(Orders(held), policies=ASYNC, identify=by_header, store=store) as service:
        registered = await service.register(more=ADA)
        accepted = await service.confirm(registered, more=ADA)
        location, resource = accepted.get("location") or "", f"/orders/{accepted.get(RESOURCE)}"
        service.orders.may_go_on.set()
        await service.server.executions.drain(5)
        assert (await service.request("GET", location, ADA)).get(STATE) == "COMMITTED"
        unknown = await service.request("GET", "/_2php/intents/3f8e5a70-0000-4000-8000-000000000000", ADA)
        assert (unknown.status, unknown.get(STATE)) == (404, None)
        assert await service.request("GET", location, EVE) == unknown
        assert (await service.request("GET", location)).status == 401
        assert (await service.request("GET", location, ADA, scheme="http")).status == 403
        for headers, scheme in ((EVE, "https"), ({}, "https"), (ADA, "http")):
            before = service.orders.runs
            plain = await service.request("GET", resource, headers, scheme=scheme)
            assert (plain.status, plain.ours(), service.orders.runs) == (201, {}, before + 1)


@anyio_mark
@pytest.mark.req("A-04", "A-15")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_resource_path_says_how_it_stands_with_or_without_the_opt_in(method: str, store: str) -> None:
    async with serving(Orders(held), policies=ASYNC, store=store) as service:
        registered = await service.register()
        accepted = await service.confirm(registered)
        await service.orders.entered.wait()
        for headers in ({}, ENABLED, {**ENABLED, CLIENT: "c-1"}, {CLIENT: "c-1", SERVER: server_id(registered)}):
            for path in (accepted.get("location") or "", f"/orders/{accepted.get(RESOURCE)}"):
                read = await service.request(method, path, headers)
                assert (read.status, read.get(STATE), read.body) == (202, "PROCESSING", b"")
        assert service.orders.runs == 1


@anyio_mark
@pytest.mark.req("A-04", "A-21")
async def test_what_is_not_confirmed_or_not_there_is_the_applications() -> None:
    async with serving(Orders(fails), policies=ASYNC) as service:
        registered = await service.register()
        waiting = server_id(registered)
        for path in (f"/orders/{waiting}", "/orders/3f8e5a70-0000-4000-8000-000000000000", f"/elsewhere/{waiting}"):
            read = await service.request("GET", path)
            assert (read.status, read.body, read.ours()) == (404, b"no", {})
        assert (await service.confirm(registered)).status == 202
        await service.server.executions.drain(5)
        assert (await service.request("GET", f"/orders/{waiting}")).get(STATE) == "FAILED"
        assert (await service.request("GET", f"/elsewhere/{waiting}")).ours() == {}
        assert (await service.request("POST", f"/_2php/intents/{waiting}")).ours() == {}


@anyio_mark
@pytest.mark.req("A-04")
async def test_a_restart_forgets_no_poll(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/shop.db"
    async with serving(policies=ASYNC, store=store) as service:
        registered = await service.register()
        location = (await service.confirm(registered)).get("location") or ""
        await service.server.executions.drain(5)
    async with serving(policies=ASYNC, store=store) as service:
        read = await service.request("GET", location)
        assert (read.status, read.get(STATE), read.get(RESOURCE)) == (200, "COMMITTED", "7")
        later = await service.request("GET", f"/orders/{server_id(registered)}")
        assert (later.get(STATE), later.get(RESOURCE)) == ("COMMITTED", "7")
