"""Uvicorn as a whole with the short-cut: how it starts, drains and ends, and what ``twophp serve`` makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.sync.client import connect

from tests.asgi_frameworks.serving import options, request, served, undated
from tests.patience import PATIENCE_S
from twophp.asgi import TwoPhaseMiddleware
from twophp.uvicorn import Protocol

ROOT = Path(__file__).parents[2]
CLIENT, SERVER = "DTT-2PHP-Client-Correlation-ID", "DTT-2PHP-Server-Correlation-ID"
WAYS: dict[str, Any] = {"plain": "httptools", "short": Protocol}


def opted_in(client_id: str, server_id: str | None = None) -> dict[str, str]:
    ids = {"DTT-2PHP-Enabled": "true", CLIENT: client_id}
    return ids if server_id is None else {**ids, SERVER: server_id}


def shop(folder: Path, *routes: Any) -> Starlette:
    app = Starlette(routes=list(routes))
    app.add_middleware(TwoPhaseMiddleware, **options(folder))
    return app


async def hello(_request: Request) -> Response:
    return PlainTextResponse("hello")


@pytest.mark.req("A-107", "P-0-b")
@pytest.mark.parametrize("way", WAYS)
def test_a_shutdown_waits_for_what_is_being_answered(way: str, tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def think(_request: Request) -> Response:
        entered.set()
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        return PlainTextResponse("thought")

    said: list[httpx.Response] = []
    with served(shop(tmp_path, Route("/orders", think, methods=["POST"])), lifespan="on", http=WAYS[way]) as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            registered = http.post("/orders", headers=opted_in("c"))
        confirm = opted_in("c", registered.headers[SERVER])
        thread = threading.Thread(
            target=lambda: said.append(httpx.post(f"{server.url}/orders/confirm", headers=confirm, timeout=PATIENCE_S))
        )
        thread.start()
        assert entered.wait(PATIENCE_S)
        server.stop()
        go_on.set()
    thread.join(PATIENCE_S)
    assert said[0].text == "thought"


@pytest.mark.req("P-11-e")
def test_websockets_work_as_ever(tmp_path: Path) -> None:
    async def echo(peer: WebSocket) -> None:
        await peer.accept()
        await peer.send_text(await peer.receive_text())
        await peer.close()

    with (
        served(shop(tmp_path, WebSocketRoute("/echo", echo)), http=Protocol) as server,
        connect(f"ws://127.0.0.1:{server.port}/echo") as websocket,
    ):
        websocket.send("is anybody there?")
        assert websocket.recv(PATIENCE_S) == "is anybody there?"


@pytest.mark.req("P-11-e")
@pytest.mark.parametrize("lifespan", ["on", "auto", "off"])
def test_default_headers_and_the_count_of_requests_are_uvicorns(lifespan: str, tmp_path: Path) -> None:
    heard: dict[str, bytes] = {}
    for way, http in WAYS.items():
        (tmp_path / way).mkdir()
        app = shop(tmp_path / way, Route("/orders", hello, methods=["POST"]))
        asked = request("POST", "/orders", "DTT-2PHP-Enabled: true", f"{CLIENT}: not an id", body=b"{}")
        with served(
            app, lifespan=lifespan, http=http, headers=[("x-powered", "by us")], limit_max_requests=1
        ) as server:
            heard[way] = undated(server.talk(asked))
            server.thread.join(PATIENCE_S)
            assert not server.thread.is_alive(), "one request was enough"
    assert heard["short"] == heard["plain"]
    assert b"x-powered: by us" in heard["short"]


def test_a_server_that_would_bypass_middleware_does_not_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Own:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    app = shop(tmp_path, Route("/orders", hello, methods=["POST"]))
    app.add_middleware(Own)
    with pytest.raises(AssertionError, match="did not start"), served(app, http=Protocol):
        pass
    assert "error[bypassed_middleware]" in caplog.text
    assert "Own" in caplog.text
    assert not list(tmp_path.iterdir()), "nothing was opened"
    with served(app, http="httptools") as server:  # Off unless asked for.
        assert server.talk(request("POST", "/orders", body=b"x")).endswith(b"hello")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "twophp.cli", "serve", *words]


@pytest.mark.req("P-0-b")
def test_twophp_serve_with_workers(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # Open before the server runs, so that no client has to wait.
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command("tests.asgi.shop:app", "--workers", "2", "--fd", str(listening.fileno())),
            pass_fds=[listening.fileno()],
            env={**os.environ, "SHOP": str(tmp_path), "TWOPHP_ALLOW_INSECURE": "1"},
            cwd=ROOT,
            stderr=subprocess.STDOUT,
            stdout=log,
        )
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()
    try:
        with httpx.Client(base_url=url, timeout=60) as http:
            registered = http.post("/orders", headers=opted_in("c"), content=b"{}")
        confirm = opted_in("c", registered.headers[SERVER])
        done = [httpx.post(f"{url}/orders/confirm", headers=confirm, timeout=60) for _again in range(4)]
        assert {(reply.status_code, reply.text) for reply in done} == {(200, '{"id":"7","bytes":2}')}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert b"Traceback" not in (tmp_path / "log").read_bytes(), (tmp_path / "log").read_text()


@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
@pytest.mark.parametrize(
    ("app", "why"),
    [("bare:make", ["error[no_middleware]", "app.add_middleware(...)"]), ("bare:none", ['"none" not found'])],
)
def test_twophp_serve_names_what_it_refuses(app: str, why: list[str], more: list[str], tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from starlette.applications import Starlette\ndef make(): return Starlette()\n")
    run = subprocess.run(  # noqa: S603 - our own interpreter and module
        command(app, "--factory", "--port", "0", *more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert all(words in run.stderr for words in why), run.stderr
    assert "Traceback" not in run.stderr


def test_twophp_serve_teaches_and_offers_uvicorns_options() -> None:
    told = subprocess.run(command("--help"), capture_output=True, text=True, check=True).stdout  # noqa: S603
    wanted = "--bypass-middleware --host --port --workers --uds --root-path --proxy-headers --forwarded-allow-ips"
    wanted += (
        " --limit-concurrency --timeout-keep-alive --timeout-graceful-shutdown --ssl-keyfile --factory --log-level"
    )
    for option in wanted.split():
        assert option in told
    assert "\n  --http " not in told
    assert "twophp serve shop.main:app" in told
