"""A server that knows nothing of 2PHP has simply done it: once, and the client confirms nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.client.callers import caller
from tests.client.shop import Shop, ledger, served, shop
from twophp import Policy
from twophp.client import Advice, PhaseError, exchange
from twophp.wire.targets import Target

SCRIPT = Path(__file__).with_name("plain_server.js")
MODULES = Path("/usr/share/nodejs")  # Where Debian's packages of JavaScript libraries are.


class Plain:
    """Where it is, and what it was asked."""

    def __init__(self, url: str, lines: Callable[[], list[str]]) -> None:
        self.url = url
        self.lines = lines


@contextmanager
def starlette() -> Iterator[Plain]:
    lines: list[str] = []

    async def create(request: Request) -> Response:
        lines.append(f"{request.method} {request.url.path}")
        return JSONResponse({"id": "order-1", "sent": await request.json()}, 201)

    routes = [Route("/{path:path}", create, methods=["POST", "GET"])]
    with served(Starlette(routes=routes)) as server:
        yield Plain(server.url, lambda: lines)


@contextmanager
def stdlib() -> Iterator[Plain]:
    lines: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            lines.append(f"{self.command} {self.path}")
            sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps({"id": "order-1", "sent": sent}).encode()
            self.send_response(201)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Plain(f"http://127.0.0.1:{server.server_port}", lambda: lines)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def express() -> Iterator[Plain]:
    node = shutil.which("node")
    if node is None or not (MODULES / "express").is_dir():
        pytest.skip("needs node-express")
    environment = os.environ | {"NODE_PATH": str(MODULES)}  # Not every build of node looks there by itself.
    with subprocess.Popen([node, str(SCRIPT)], stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        lines: list[str] = []

        def read() -> list[str]:
            process.kill()
            assert process.stdout is not None
            lines.extend(process.stdout.read().split("\n")[:-1])
            return lines

        try:
            yield Plain(f"http://127.0.0.1:{port}", read)
        finally:
            process.kill()


SERVERS: dict[str, Any] = {"starlette": starlette, "http.server": stdlib, "express": express}


@pytest.mark.req("A-06", "P-11-b", "P-5.1-b")
@pytest.mark.parametrize("server", SERVERS)
def test_it_is_executed_once_and_never_confirmed(server: str, kind: str, tmp_path: Path) -> None:
    with SERVERS[server]() as plain:
        with caller(kind, tmp_path) as http:
            said = http.post(f"{plain.url}/orders")
        assert plain.lines() == ["POST /orders"]
    assert said.headers.get("x-powered-by") == ("Express" if server == "express" else None)
    assert (said.status, said.json) == (201, {"id": "order-1", "sent": {"item": 1}})
    assert (said.info["mode"], said.info["phase"], said.info["server_correlation_id"]) == ("plain", None, None)
    assert ledger(tmp_path / "checkout.db") == [], "no row: there is no second side to it"


@pytest.mark.req("A-06")
def test_who_requires_2php_hears_that_it_was_done_without(kind: str, tmp_path: Path) -> None:
    with starlette() as plain:
        with caller(kind, tmp_path, require_2php=True) as http, pytest.raises(PhaseError) as raised:
            http.post(f"{plain.url}/orders")
        assert plain.lines() == ["POST /orders"]
    error = raised.value
    assert (error.code, error.advice) == ("not_two_phase", Advice.CHECK)
    assert error.response.status_code == 201
    assert error.response.json()["id"] == "order-1"


@pytest.mark.req("A-06", "P-11-c")
def test_an_endpoint_that_is_not_enrolled_is_a_plain_one(tmp_path: Path) -> None:
    with shop(tmp_path, policies={"POST /later": Policy.standard()}) as orders, caller("httpx2", tmp_path) as http:
        said = http.post(f"{orders.url}/orders")
        assert (said.status, said.info["mode"]) == (201, "plain")
        assert (orders.lines(), orders.runs) == (["POST /orders"], ["POST /orders"])


@pytest.mark.req("A-28")
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("kind", ["httpx2", "requests"])
def test_no_status_makes_it_send_again(status: int, kind: str, tmp_path: Path) -> None:
    lines: list[str] = []

    async def refuse(request: Request) -> Response:
        lines.append(request.url.path)
        return Response(status_code=status, headers={"retry-after": "0"})

    with (
        served(Starlette(routes=[Route("/orders", refuse, methods=["POST"])])) as server,
        caller(kind, tmp_path) as http,
    ):
        assert http.post(f"{server.url}/orders").status == status
    assert lines == ["/orders"]


def test_a_refusal_of_the_middleware_is_an_answer(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        said = http.post(f"{orders.url}/orders", json={"item": "x" * 1_100_000})
    assert (said.status, said.info["mode"], said.json["code"]) == (413, "refused", "body_too_large")
    assert orders.runs == []


class Interrupted(dict[tuple[str, str], bool]):
    """Another thread learns of an endpoint while this one looks for the oldest."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        found = super().__iter__()
        self.setdefault(("PUT", "https://orders.internal/another"), False)
        return found


def test_what_is_known_of_endpoints_is_bounded_whichever_thread_learns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST", 2)
    endpoints = exchange.KnownEndpoints()
    endpoints._known = Interrupted()
    for number in range(3):
        endpoints.add("PUT", Target("https://orders.internal", f"/{number}"))
    assert len(endpoints._known) == 2
    assert endpoints.has("PUT", Target("https://orders.internal", "/2"))
