"""A server that processes out of band is asked until it says how it ended."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.client.callers import HandTime, caller
from tests.client.shop import Heard, Shop, pair, served
from twophp.client import Advice, PhaseError
from twophp.core.intent import Phase


@pytest.mark.req("P-5.3.3-e", "A-04", "P-5.3.3-c")
def test_it_is_polled_until_it_is_committed(kind: str, orders: Shop, tmp_path: Path) -> None:
    orders.may_end.clear()
    polls = 0

    def end_after_two(heard: Heard) -> None:
        nonlocal polls
        polls += heard.method == "GET"
        if polls == 2:
            orders.may_end.set()

    orders.on_heard = end_after_two
    pauses: list[float] = []
    with caller(kind, tmp_path, pause=lambda seconds: _short(pauses, seconds)) as http:
        said = http.post(f"{orders.url}/later")
    assert (said.status, said.json["id"], said.info["phase"], said.info["mode"]) == (
        200,
        "order-1",
        "COMMITTED",
        "async",
    )
    assert orders.lines()[:2] == ["POST /later", "POST /later/confirm"]
    server_id = said.info["server_correlation_id"]
    assert set(orders.lines()[2:]) == {f"GET /_2php/intents/{server_id}"}, "where the 202's Location points"
    assert orders.runs == ["POST /later"]
    assert pauses[0] == 1.0, "as Retry-After says"
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).phase is Phase.COMMITTED


def _short(pauses: list[float], seconds: float) -> None:
    """A moment instead, for the handler's thread to get on."""
    pauses.append(seconds)
    threading.Event().wait(0.01)


@pytest.mark.req("P-5.3.3-e")
def test_polling_has_an_end(orders: Shop, tmp_path: Path) -> None:
    time = HandTime()
    orders.may_end.clear()
    with caller("httpx2", tmp_path, steady=time, pause=time.pause, poll_limit_s=5) as http:
        with pytest.raises(PhaseError) as raised:
            http.post(f"{orders.url}/later")
        orders.may_end.set()
    error = raised.value
    assert (error.code, error.advice, error.phase) == ("still_processing", Advice.WAIT, "PROCESSING")
    assert sum(time.waits) == pytest.approx(5, abs=1.1)
    assert pair(tmp_path / "checkout.db", error.client_correlation_id or "").phase is Phase.PROCESSING


class Foreign:
    """Another implementation, which says what a test wants it to."""

    def __init__(self, polls: list[tuple[int, dict[str, str]]], location: str | None) -> None:
        self.asked: list[str] = []
        self._polls = iter(polls)
        self._location = location
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["POST", "GET"])])

    async def answer(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.url.path}")
        state = "DTT-2PHP-Phase-State"
        if request.method == "GET":
            status, headers = next(self._polls)
            return Response(status_code=status, headers=headers)
        if request.url.path.endswith("/confirm"):
            headers = {state: "PROCESSING", "DTT-2PHP-Resource-ID": "r1", "Retry-After": "7"}
            return Response(status_code=202, headers=headers | ({"Location": self._location} if self._location else {}))
        headers = {state: "WAITING_CONFIRM", "DTT-2PHP-Server-Correlation-ID": "s1", "DTT-2PHP-TTL": "30000"}
        return Response(headers=headers)


PROCESSING = {"DTT-2PHP-Phase-State": "PROCESSING"}
DONE = {"DTT-2PHP-Phase-State": "COMMITTED", "DTT-2PHP-Resource-ID": "r1"}


@pytest.mark.req("A-04", "P-5.3.3-e", "P-13.1-a")
def test_retry_after_is_honoured_and_bounded(tmp_path: Path) -> None:
    in_a_year = {"Retry-After": "31536000", **PROCESSING}
    dated = {"Retry-After": "Thu, 01 Jan 2026 00:00:05 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT", **PROCESSING}
    foreign = Foreign([(202, in_a_year), (202, dated), (202, PROCESSING), (200, DONE)], "/jobs/1")
    time = HandTime()
    with (
        served(foreign.app, date_header=False) as server,
        caller("httpx2", tmp_path, steady=time, pause=time.pause) as http,
    ):
        said = http.post(f"{server.url}/orders")
    assert said.info["resource_id"] == "r1"
    assert time.waits == [7.0, 30.0, 5.0, 0.1]
    assert foreign.asked == ["POST /orders", "POST /orders/confirm", *["GET /jobs/1"] * 4]


@pytest.mark.req("A-109", "A-04")
@pytest.mark.parametrize("location", [None, "https://elsewhere.example/jobs/1", "//elsewhere.example/x", "http://[bad"])
def test_the_ids_go_to_the_origin_of_the_call_and_to_no_other(location: str | None, tmp_path: Path) -> None:
    foreign = Foreign([(200, DONE)], location)
    time = HandTime()
    seen: list[str] = []

    class Watching(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            seen.append(str(request.url.host))
            return super().handle_request(request)

    with served(foreign.app) as server:
        options: dict[str, Any] = {"steady": time, "pause": time.pause, "transport": Watching()}
        with caller("httpx2", tmp_path, **options) as http:
            assert http.post(f"{server.url}/orders").status == 200
    assert set(seen) == {"127.0.0.1"}
    assert foreign.asked[-1] == "GET /orders/r1"  # A POST makes something below its path; that is where it is.
