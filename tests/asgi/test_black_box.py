"""A real server, a real socket: what no in-process driver can show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.asgi.driver import AUTO, CLIENT, ENABLED, RESOURCE, SERVER, STATE
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
TLS = {"X-Forwarded-Proto": "https"}  # As a proxy on loopback says it.


class Shop:
    """A running service, and how often its handler ran."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=TLS, timeout=PATIENCE_S)

    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def confirm(self, registered: httpx.Response, client_id: str) -> httpx.Response:
        headers = {**ENABLED, CLIENT: client_id, SERVER: registered.headers[SERVER]}
        return self.http.post("/orders/confirm", headers=headers)


@pytest.fixture(scope="module", params=["httptools", "h11", "twophp.uvicorn:Protocol"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Uvicorn in a process of its own, on a socket that is open before it starts, so that no test has to wait."""
    folder = tmp_path_factory.mktemp("shop")
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    command = [sys.executable, "-m", "uvicorn", "tests.asgi.shop:app", "--fd", str(listening.fileno())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, "--http", request.param, "--no-proxy-headers"],
            pass_fds=[listening.fileno()],
            env={**os.environ, "SHOP": str(folder)},
            cwd=ROOT,
            stderr=subprocess.STDOUT,
            stdout=log,
        )
    service = Shop(folder, listening.getsockname()[1])
    listening.close()
    try:
        yield service
    finally:
        service.http.close()
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM), (folder / "log").read_text()  # Uvicorn passes it on.
    assert b"Traceback" not in (folder / "log").read_bytes(), (folder / "log").read_text()


@pytest.mark.req("P-0-b", "P-1-c", "P-5.3.2-b", "P-8.1-a", "P-8.1-b", "P-11-e")
def test_a_handshake_over_a_socket(shop: Shop) -> None:
    before = shop.runs()
    registered = shop.http.post("/orders", headers={**ENABLED, CLIENT: "h-1"}, json={"sku": 1})
    assert (registered.status_code, registered.content) == (200, b"")
    assert registered.headers[STATE] == "WAITING_CONFIRM"
    assert shop.runs() == before
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: shop.confirm(registered, "h-1"), range(50)))
    assert {(reply.status_code, reply.headers[STATE], reply.headers[RESOURCE]) for reply in replies} == {
        (200, "COMMITTED", "7")
    }
    assert len({reply.content for reply in replies}) == 1
    assert shop.runs() == before + 1
    assert shop.http.get("/orders/7").text == "an order"


@pytest.mark.req("P-0-b")
def test_a_handshake_by_hand(shop: Shop) -> None:
    with socket.create_connection(("127.0.0.1", shop.port), timeout=PATIENCE_S) as raw:
        stream = raw.makefile("rwb")
        stream.write(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nDTT-2PHP-Enabled: true\r\n"
            b"DTT-2PHP-Client-Correlation-ID: raw-1\r\nContent-Length: 2\r\n\r\n{}"
        )
        stream.flush()
        head = iter(stream.readline, b"\r\n")
        assert next(head).startswith(b"HTTP/1.1 200 ")
        fields = dict(line.lower().rstrip().split(b": ", 1) for line in head)
        stream.write(
            b"POST /orders/confirm HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nDTT-2PHP-Enabled: true\r\n"
            b"DTT-2PHP-Client-Correlation-ID: raw-1\r\nDTT-2PHP-Server-Correlation-ID: "
            + fields[b"dtt-2php-server-correlation-id"]
            + b"\r\n\r\n"
        )
        stream.flush()
        assert stream.readline().startswith(b"HTTP/1.1 200 ")


@pytest.mark.req("A-16")
def test_a_refusal_takes_the_place_of_100_continue(shop: Shop) -> None:
    before = shop.runs()
    with socket.create_connection(("127.0.0.1", shop.port), timeout=PATIENCE_S) as raw:
        raw.sendall(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nDTT-2PHP-Enabled: true\r\n"
            b"DTT-2PHP-Client-Correlation-ID: e-1\r\nContent-Length: 200000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert raw.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")
    assert shop.runs() == before


@pytest.mark.req("A-16")
def test_a_chunked_body_and_half_a_body(shop: Shop) -> None:
    before = shop.runs()
    registered = shop.http.post("/orders", headers={**ENABLED, CLIENT: "k-1"}, content=iter([b"abc", b"defg"]))
    assert shop.confirm(registered, "k-1").json() == {"id": "7", "bytes": 7}
    with socket.create_connection(("127.0.0.1", shop.port), timeout=PATIENCE_S) as raw:
        raw.sendall(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nDTT-2PHP-Enabled: true\r\n"
            b"DTT-2PHP-Client-Correlation-ID: k-2\r\nContent-Length: 10\r\n\r\nhalf"
        )
    # The id was not used up: with another body it is still free.
    again = shop.http.post("/orders", headers={**ENABLED, CLIENT: "k-2"}, content=b"another")
    assert (again.status_code, shop.runs()) == (200, before + 1)


@pytest.mark.req("P-13.6-a", "P-11-a", "P-1-b", "P-5.5.6-e")
def test_without_tls_and_without_the_opt_in(shop: Shop) -> None:
    with httpx.Client(base_url=shop.http.base_url, timeout=PATIENCE_S) as plain:
        assert plain.post("/orders", headers={**ENABLED, CLIENT: "t-1"}).status_code == 403
        bare = plain.post("/orders", content=b"x")
    transparent = shop.http.post("/orders", headers=AUTO, content=b"x")
    assert (bare.status_code, bare.content) == (transparent.status_code, transparent.content)
    assert {**bare.headers, "date": ""} == {**transparent.headers, "date": ""}
