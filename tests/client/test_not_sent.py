"""Where nothing was sent, the HTTP library's own error comes out and may be retried; only there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import requests

from tests.client.callers import caller
from twophp.client import Advice, PhaseError

LIBRARIES = {"httpx": httpx, "httpx2": httpx2}
CLOSED = "127.0.0.1:1"
REFUSAL = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def listening(answer: Callable[[socket.socket, bytes], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Each client that connects sends something, and ``answer`` decides what becomes of the connection."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _address = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    heard.append(connection.recv(65_536))
                    answer(connection, heard[-1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def no_tls(connection: socket.socket, _hello: bytes) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def hang_up(_connection: socket.socket, _heard: bytes) -> None:
    """Without a word."""


def refuse(connection: socket.socket, _heard: bytes) -> None:
    connection.sendall(REFUSAL)


def library_errors(kind: str) -> tuple[type[Exception], ...]:
    library = LIBRARIES.get(kind.partition(" ")[0])
    return (requests.RequestException,) if library is None else (library.TransportError,)


def through_proxy(kind: str, proxy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The proxy settings of the transport, and those of the request."""
    library: Any = LIBRARIES.get(kind.partition(" ")[0])
    if library is None:
        return {}, {"proxies": {"https": proxy, "http": proxy}}
    inner = library.AsyncHTTPTransport if kind.endswith("async") else library.HTTPTransport
    return {"transport": inner(proxy=proxy)}, {}


@pytest.mark.req("A-42")
@pytest.mark.parametrize("how", [no_tls, hang_up])
def test_a_tls_handshake_that_fails_has_sent_nothing(how: Any, kind: str, tmp_path: Path) -> None:
    with listening(how) as (where, heard), caller(kind, tmp_path) as http, pytest.raises(library_errors(kind)):
        http.post(f"https://{where}/orders")
    assert not any(b"POST" in said for said in heard)


@pytest.mark.req("A-42")
def test_a_proxy_that_is_not_there_has_sent_nothing(kind: str, tmp_path: Path) -> None:
    settings, request = through_proxy(kind, f"http://{CLOSED}")
    with caller(kind, tmp_path, **settings) as http, pytest.raises(library_errors(kind)):
        http.post("http://orders.example/orders", **request)


@pytest.mark.req("A-42")
def test_a_proxy_that_refuses_a_tunnel_has_sent_nothing(kind: str, tmp_path: Path) -> None:
    with listening(refuse) as (where, heard):
        settings, request = through_proxy(kind, f"http://{where}")
        with caller(kind, tmp_path, **settings) as http, pytest.raises(library_errors(kind)):
            http.post("https://orders.example/orders", **request)
    assert [said.partition(b" ")[0] for said in heard] == [b"CONNECT"]


@pytest.mark.req("A-42", "A-06")
def test_what_a_proxy_took_may_have_been_sent(kind: str, tmp_path: Path) -> None:
    with listening(hang_up) as (where, heard):
        settings, request = through_proxy(kind, f"http://{where}")
        with caller(kind, tmp_path, **settings) as http, pytest.raises(PhaseError) as raised:
            http.post("http://orders.example/orders", **request)
    assert (raised.value.code, raised.value.advice, len(heard)) == ("answer_lost", Advice.CHECK, 1)
