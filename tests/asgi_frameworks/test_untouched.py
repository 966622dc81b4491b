"""Requests without the opt-in pass untouched, byte for byte over a real socket (draft §11)."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.asgi_frameworks.raw_app import RawApp
from tests.asgi_frameworks.serving import Served, Until, both_ways, request, served, undated, wrapped
from tests.patience import PATIENCE_S

CHUNKED = "Transfer-Encoding: chunked"
NOT_OPTED_IN = ["false", "1", "yes", "?1", "", '"true"', "truee"]

PLAIN = {
    "get": request("GET", "/any?a=1&a=2&%20"),
    "post": request("POST", "/orders", "Content-Type: text/plain", body=b"x" * 300),
    "post without a body": request("POST", "/orders", "Content-Length: 0"),
    "put": request("PUT", "/orders/7/lines/3", body=b"{}"),
    "patch": request("PATCH", "/orders/7", body=b"{}"),
    "delete": request("DELETE", "/orders/7"),
    "an unknown method": request("BREW", "/pot"),
    "head": request("HEAD", "/any"),
    "options": request("OPTIONS", "/orders", "Origin: https://shop.test", "Access-Control-Request-Method: POST"),
    "preflight for our field": request(
        "OPTIONS", "/orders", "Origin: https://shop.test", "Access-Control-Request-Headers: dtt-2php-enabled"
    ),
    "repeated request fields": request("GET", "/any", "X-A: 1", "X-B: 0", "X-A: 2", "x-a: 3"),
    "repeated response fields": request("POST", "/repeats", body=b"x"),
    "escaped path": request("POST", "/or%2Fders/%C3%A9//x", body=b"x"),
    "a route of its own that ends in confirm": request("POST", "/orders/confirm", body=b"x"),
    "our other fields alone": request("POST", "/any", "DTT-2PHP-Client-Correlation-ID: x", body=b"x"),
    "streamed response": request("GET", "/stream"),
    "streamed response to HTTP/1.0": b"GET /stream HTTP/1.0\r\n\r\n",
    "head of a stream": request("HEAD", "/stream"),
    "an application that fails": request("GET", "/boom"),
    "no request at all": b"\x00\x01\r\n\r\n",
    "trace context": request("POST", "/any", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """The bare application and the wrapped one, side by side."""
    two_phase = wrapped(RawApp(), tmp_path_factory.mktemp("pair"))
    with served(RawApp()) as bare, served(two_phase) as other:
        yield bare, other


@pytest.mark.req("P-11-a", "P-1-b", "P-5.1-c", "P-11-d", "P-11-e", "A-17", "A-19", "A-68")
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_request_is_answered_with_the_very_same_bytes(name: str, pair: tuple[Served, Served]) -> None:
    bare, two_phase = (undated(server.talk(PLAIN[name])) for server in pair)
    assert bare
    assert two_phase == bare


@pytest.mark.req("P-5.1-c", "A-11")
@pytest.mark.parametrize("value", NOT_OPTED_IN)
def test_any_value_but_true_is_no_opt_in(value: str, tmp_path: Path) -> None:
    asked = request("POST", "/orders", f"DTT-2PHP-Enabled: {value}", body=b"x")
    bare, two_phase = both_ways(RawApp, tmp_path, asked)
    assert bare.startswith(b"HTTP/1.1 200")
    assert two_phase == bare
    rows = apsw.Connection(f"{tmp_path}/orders.db").execute("SELECT count(*) FROM intent").get
    assert rows == 0


@pytest.mark.req("P-11-a", "A-15")
def test_an_opted_in_read_is_the_applications_alone(tmp_path: Path) -> None:
    asked = request("GET", "/any", "DTT-2PHP-Enabled: true")
    bare, two_phase = both_ways(RawApp, tmp_path, asked)
    assert two_phase == bare


@pytest.mark.req("P-5.1-b", "P-11-b")
def test_a_server_without_the_middleware_just_answers(tmp_path: Path) -> None:
    with served(RawApp()) as bare:
        told = bare.talk(request("POST", "/orders", "DTT-2PHP-Enabled: true", body=b"x"))
    assert told.startswith(b"HTTP/1.1 200")
    assert not list(tmp_path.iterdir())


@pytest.mark.req("P-11-a")
def test_a_streamed_request_arrives_piece_by_piece(tmp_path: Path) -> None:
    """Each piece is sent only after the one before was answered: a layer that gathered the body would wait for ever."""
    head = request("POST", "/echo-chunks", CHUNKED)
    pieces = (head, b"3\r\none\r\n", Until(b"<one>"), b"4\r\ntwo!\r\n", Until(b"<two!>"), b"0\r\n\r\n")
    bare, two_phase = both_ways(RawApp, tmp_path, *pieces)
    assert b"<one>" in bare
    assert two_phase == bare


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_100_continue_is_sent_when_the_application_reads(http: str, tmp_path: Path) -> None:
    head = request("POST", "/any", "Expect: 100-continue", "Content-Length: 4")
    bare, two_phase = both_ways(RawApp, tmp_path, head, Until(b"100 Continue\r\n"), b"body", http=http)
    assert b"b'body'" in bare
    assert two_phase == bare


@pytest.mark.req("P-11-a")
@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_100_continue_is_not_sent_to_a_body_nobody_wants(http: str, tmp_path: Path) -> None:
    head = request("POST", "/refuse-unread", "Expect: 100-continue", "Content-Length: 4")
    bare, two_phase = both_ways(RawApp, tmp_path, head, http=http)
    assert bare.startswith(b"HTTP/1.1 413")
    assert two_phase == bare


@pytest.mark.req("P-11-a")
def test_a_connection_is_kept_and_pipelined_as_before(tmp_path: Path) -> None:
    kept = b"GET /any HTTP/1.1\r\nHost: orders.test\r\n\r\n"
    bare, two_phase = both_ways(RawApp, tmp_path, kept, kept, PLAIN["post"])
    assert bare.count(b"HTTP/1.1 200") == 3
    assert two_phase == bare


@pytest.mark.req("P-11-a", "P-11-e")
def test_a_websocket_is_the_same_frame_by_frame(tmp_path: Path) -> None:
    key = base64.b64encode(b"sixteen bytes ok").decode()
    upgrade = (
        "GET /socket HTTP/1.1\r\nHost: orders.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: orders\r\n"
        "DTT-2PHP-Enabled: true\r\n\r\n"
    )
    hello = b"\x81\x85\x00\x00\x00\x00hello"  # A masked text frame, under a mask that changes nothing.
    close = b"\x88\x82\x00\x00\x00\x00" + struct.pack("!H", 4001)
    pieces = (upgrade.encode(), Until(b"\r\n\r\n"), hello, Until(b"enough"), close)
    bare, two_phase = both_ways(RawApp, tmp_path, *pieces, ws="websockets-sansio")
    assert bare.startswith(b"HTTP/1.1 101")
    assert b"HELLO" in bare
    assert two_phase == bare


@pytest.mark.req("P-11-a")
def test_the_application_hears_of_a_client_that_left(tmp_path: Path) -> None:
    app = RawApp()
    with served(wrapped(app, tmp_path)) as server:
        with server.connect() as connection:
            connection.sendall(request("POST", "/until-gone", body=b"x"))
            Until(b"hello").read(connection)
            connection.shutdown(socket.SHUT_RDWR)
        assert app.disconnected.wait(PATIENCE_S)
    assert "http.disconnect" in app.seen


@pytest.mark.req("P-11-a")
def test_what_runs_after_the_answer_still_runs(tmp_path: Path) -> None:
    app = RawApp()
    with served(wrapped(app, tmp_path)) as server:
        assert server.talk(request("POST", "/background", body=b"x")).startswith(b"HTTP/1.1 202")
        assert app.background_done.wait(PATIENCE_S)


@pytest.mark.req("P-11-a")
def test_start_up_and_shutdown_reach_the_application_in_order(tmp_path: Path) -> None:
    app = RawApp()
    with served(wrapped(app, tmp_path), lifespan="on") as server:
        server.talk(PLAIN["get"])
    assert app.seen == ["lifespan.startup", "lifespan.shutdown"]
