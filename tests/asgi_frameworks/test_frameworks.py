"""One line adds two phases to an unchanged service, in every framework."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.asgi_frameworks.services import SERVICES, Book
from tests.asgi_frameworks.serving import Served, options, request, served, undated
from tests.patience import PATIENCE_S

ORDER = {"sku": "tea"}
CLIENT_ID = "7d3e7f4e-1b0a-4c52-9f6e-0a4f6c1d2e3f"
OPT_IN = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": CLIENT_ID}
JSON = "Content-Type: application/json"
PLAIN = {
    "post": request("POST", "/orders", JSON, body=b'{"sku":"tea"}'),
    "post, said no": request("POST", "/orders", JSON, "DTT-2PHP-Enabled: false", body=b'{"sku":"tea"}'),
    "put": request("PUT", "/orders/7/lines/3", JSON, body=b"{}"),
    "get": request("GET", "/orders/7"),
    "head": request("HEAD", "/orders/7"),
    "options": request("OPTIONS", "/orders", "Origin: https://shop.test"),
    "stream": request("GET", "/feed"),
    "not there": request("DELETE", "/nowhere"),
}


class Service:
    """One framework's service, behind the middleware."""

    def __init__(self, server: Served, book: Book) -> None:
        self.server = server
        self.book = book
        self.http = httpx.Client(base_url=server.url, timeout=PATIENCE_S)

    def confirm(self, path: str, registered: httpx.Response) -> httpx.Response:
        ids = {"DTT-2PHP-Server-Correlation-ID": registered.headers["DTT-2PHP-Server-Correlation-ID"]}
        return self.http.post(f"{path}/confirm", headers=OPT_IN | ids)


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    book = Book()
    with served(SERVICES[request.param](book, **options(tmp_path))) as server:
        service = Service(server, book)
        with service.http:
            yield service


@pytest.mark.req("P-12.1-a", "P-11-d", "P-2-f", "P-9.2-b")
def test_a_full_handshake(service: Service) -> None:
    registered = service.http.post("/orders", json=ORDER, headers=OPT_IN)
    assert registered.status_code == 200
    assert registered.headers["DTT-2PHP-Phase-State"] == "WAITING_CONFIRM"
    assert service.book.orders == []

    first = service.confirm("/orders", registered)
    assert first.status_code == 200
    assert first.json() == {"id": "42", "sku": "tea"}
    assert first.headers["DTT-2PHP-Phase-State"] == "COMMITTED"
    assert first.headers["DTT-2PHP-Resource-ID"] == "42"
    assert len(first.headers.get_list("set-cookie")) == 2
    assert service.book.mailed.wait(PATIENCE_S)

    again = service.confirm("/orders", registered)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers.get_list("set-cookie") == []  # the cookies were for the one who was there.
    assert service.book.orders == [("tea", CLIENT_ID)]


@pytest.mark.req("P-11-d", "P-12.1-a")
def test_a_nested_path_and_a_handler_in_a_thread(service: Service) -> None:
    registered = service.http.put("/orders/7/lines/3", json={}, headers=OPT_IN)
    committed = service.confirm("/orders/7/lines/3", registered)
    assert committed.status_code == 200, committed.text
    assert committed.json() == {"line": "3"}
    assert service.book.orders == [("7/3", CLIENT_ID)]


@pytest.mark.req("P-11-d")
def test_what_the_framework_refuses_is_a_failed_intent_with_its_own_words(service: Service) -> None:
    registered = service.http.post("/nowhere", json=ORDER, headers=OPT_IN)
    failed = service.confirm("/nowhere", registered)
    assert failed.status_code == 404
    assert failed.headers["DTT-2PHP-Phase-State"] == "FAILED"


@pytest.mark.req("P-11-a", "P-1-b")
def test_a_plain_call_runs_at_once_and_leaves_no_trace(service: Service) -> None:
    done = service.http.post("/orders", json=ORDER)
    assert done.status_code == 201
    assert [name for name in done.headers if name.startswith("dtt-")] == []
    assert service.book.mailed.wait(PATIENCE_S)
    assert service.book.orders == [("tea", None)]


@pytest.mark.req("P-11-a", "P-5.1-c", "P-12.1-a")
@pytest.mark.parametrize("make", SERVICES.values(), ids=SERVICES)
def test_plain_requests_are_answered_with_the_very_same_bytes(make: Any, tmp_path: Path) -> None:
    with served(make(Book())) as bare:
        wanted = {name: undated(bare.talk(asked)) for name, asked in PLAIN.items()}
    with served(make(Book(), **options(tmp_path))) as two_phase:
        got = {name: undated(two_phase.talk(asked)) for name, asked in PLAIN.items()}
    assert got == wanted


@pytest.mark.req("P-5.1-b", "P-11-b")
@pytest.mark.parametrize("make", SERVICES.values(), ids=SERVICES)
def test_without_the_line_the_header_is_ignored(make: Any) -> None:
    book = Book()
    with served(make(book)) as bare, httpx.Client(base_url=bare.url, timeout=PATIENCE_S) as http:
        done = http.post("/orders", json=ORDER, headers=OPT_IN)
    assert done.status_code == 201
    assert book.orders == [("tea", None)]
