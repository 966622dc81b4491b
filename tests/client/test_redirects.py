"""The caller's HTTP library follows a redirect, or not, as its caller says; the ids stay within their origin."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks.serving import Served, wrapped
from tests.client.callers import Caller, caller, settings
from tests.client.shop import Heard, Shop, served, tapped
from tests.patience import PATIENCE_S
from twophp.client import Advice, PhaseError, TwoPhaseTransport, calling
from twophp.client.requests import TwoPhaseAdapter


class Door:
    """Redirects requests for ``old`` to another place."""

    def __init__(self, app: Any, status: int, where: str, old: str = "/old/orders") -> None:
        self._app, self._status, self._where, self._old = app, status, where, old
        self.heard: list[Heard] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self._old:
            await self._app(scope, receive, send)
            return
        self.heard.append(Heard(scope, b""))
        headers = [(b"location", self._where.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def behind(orders: Shop, folder: Path, status: int, where: str, **door: Any) -> Iterator[tuple[Served, Door]]:
    """The orders, behind a door in the same origin."""
    app = tapped(wrapped(orders.app, folder, store=f"sqlite:///{folder}/behind.db"), orders)
    made = Door(app, status, where, **door)
    with served(made) as server:
        yield server, made


def allowing(kind: str, *, follow: bool) -> dict[str, bool]:
    return {"allow_redirects" if kind == "requests" else "follow_redirects": follow}


def post(http: Caller, kind: str, url: str, *, follow: bool, **more: Any) -> Any:
    return http.post(url, **allowing(kind, follow=follow), **more)


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", [302, 303, 307, 308])
def test_a_redirect_is_not_followed_if_the_caller_says_no(status: int, kind: str, orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, status, "/orders") as (server, door), caller(kind, tmp_path) as http:
        said = post(http, kind, f"{server.url}/old/orders", follow=False)
    assert (said.status, said.headers["location"], said.response.history) == (status, "/orders", [])
    assert said.info["mode"] == ("redirected" if status in {307, 308} else "plain")
    assert (len(door.heard), orders.heard, orders.runs) == (1, [], [])


@pytest.mark.req("A-109")
def test_httpx_follows_nothing_unless_it_is_told_to(orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, _door), caller("httpx", tmp_path) as http:
        assert http.post(f"{server.url}/old/orders").status == 307
    assert orders.heard == []


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_origin_is_followed_with_the_same_id(
    status: int, kind: str, orders: Shop, tmp_path: Path
) -> None:
    with behind(orders, tmp_path, status, "/orders?moved=1") as (server, door), caller(kind, tmp_path) as http:
        said = post(http, kind, f"{server.url}/old/orders", follow=True)
    assert [hop.status_code for hop in said.response.history] == [status], "the library's own history"
    assert str(said.response.url) == f"{server.url}/orders?moved=1"
    first, (second, confirm) = door.heard[0], orders.heard
    assert said.status == 200
    assert first.dtt("client-correlation-id") == second.dtt("client-correlation-id")
    assert (second.line, second.query, b"item" in second.body) == ("POST /orders", b"moved=1", True)
    assert confirm.line == "POST /orders/confirm", "derived from the URL that was called in the end"
    assert orders.runs == ["POST /orders"]


@pytest.mark.req("A-109")
def test_who_requires_2php_may_be_redirected(kind: str, orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, _door), caller(kind, tmp_path, require_2php=True) as http:
        assert post(http, kind, f"{server.url}/old/orders", follow=True).info["phase"] == "COMMITTED"
    assert orders.runs == ["POST /orders"]


@pytest.mark.req("A-109", "P-5.5.3-a")
def test_an_auto_confirmed_call_is_redirected(kind: str, orders: Shop, tmp_path: Path) -> None:
    more = {"callback": "https://checkout.example/told"}
    with behind(orders, tmp_path, 307, "/orders") as (server, _door), caller(kind, tmp_path, **more) as http:
        said = post(http, kind, f"{server.url}/old/orders", follow=True)
        assert (said.status, http.reconcile().left) == (201, ())
    assert orders.runs == ["POST /orders"]


@pytest.mark.req("A-109", "A-06")
@pytest.mark.parametrize("follow", [True, False])
def test_a_plain_server_redirects_as_ever(kind: str, tmp_path: Path, *, follow: bool) -> None:
    runs: list[str] = []

    async def create(request: Request) -> Response:
        runs.append((await request.body()).decode())
        return JSONResponse({"id": "order-1"}, 201)

    door = Door(Starlette(routes=[Route("/orders", create, methods=["POST"])]), 308, "/orders")
    with served(door) as server, caller(kind, tmp_path) as http:
        said = post(http, kind, f"{server.url}/old/orders", follow=follow)
    assert (said.status, len(said.response.history), len(runs)) == ((201, 1, 1) if follow else (308, 0, 0))
    assert all("item" in body for body in runs)


@pytest.mark.req("A-109")
def test_another_origin_gets_a_call_of_its_own(kind: str, orders: Shop, tmp_path: Path) -> None:
    door = Door(None, 307, f"{orders.url}/orders")
    with served(door) as server, caller(kind, tmp_path) as http:
        said = post(http, kind, f"{server.url}/old/orders", follow=True)
    assert (said.status, orders.runs) == (200, ["POST /orders"])
    elsewhere = {heard.dtt("client-correlation-id") for heard in orders.heard}
    assert elsewhere == {said.info["client_correlation_id"]}
    assert door.heard[0].dtt("client-correlation-id") not in elsewhere


@pytest.mark.req("A-109")
def test_a_named_call_does_not_leave_its_origin(kind: str, orders: Shop, tmp_path: Path) -> None:
    door = Door(None, 307, f"{orders.url}/orders")
    with (
        served(door) as server,
        caller(kind, tmp_path) as http,
        calling(client_correlation_id="order-4711"),
        pytest.raises(PhaseError) as raised,
    ):
        post(http, kind, f"{server.url}/old/orders", follow=True)
    assert (raised.value.code, raised.value.advice) == ("redirected_away", Advice.FIX)
    assert orders.heard == []


@pytest.mark.req("A-109", "A-42")
def test_a_named_call_that_was_redirected_is_made_again_as_the_same(kind: str, orders: Shop, tmp_path: Path) -> None:
    with (
        behind(orders, tmp_path, 307, "/orders") as (server, _door),
        caller(kind, tmp_path) as http,
        calling(client_correlation_id="order-4711"),
    ):
        first, again = (post(http, kind, f"{server.url}/old/orders", follow=True) for _ in range(2))
    assert (first.text, orders.runs) == (again.text, ["POST /orders"])


@pytest.mark.req("A-109")
def test_a_request_that_is_sent_twice_is_two_calls(orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, _door):
        url = f"{server.url}/old/orders"
        with httpx2.Client(
            transport=TwoPhaseTransport(**settings(tmp_path)), follow_redirects=True, timeout=PATIENCE_S
        ) as http:
            request = http.build_request("POST", url, json={})
            assert [http.send(request).status_code for _ in range(2)] == [200, 200]
        with requests.Session() as session:
            session.mount("http://", TwoPhaseAdapter(**settings(tmp_path)))
            prepared = session.prepare_request(requests.Request("POST", url, json={}))
            assert [session.send(prepared).status_code for _ in range(2)] == [200, 200]
    assert len(orders.runs) == 4


@pytest.mark.req("A-109")
def test_the_next_request_of_an_answer_goes_on_with_the_call(orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, door):
        with httpx2.Client(transport=TwoPhaseTransport(**settings(tmp_path)), timeout=PATIENCE_S) as http:
            moved = http.post(f"{server.url}/old/orders", json={})
            assert moved.next_request is not None
            assert http.send(moved.next_request).status_code == 200
        with requests.Session() as session:
            session.mount("http://", TwoPhaseAdapter(**settings(tmp_path)))
            answer = session.post(f"{server.url}/old/orders", json={}, allow_redirects=False)
            assert answer.next is not None
            assert session.send(answer.next).status_code == 200
    behind_ids = {heard.dtt("client-correlation-id") for heard in orders.heard}
    assert behind_ids == {heard.dtt("client-correlation-id") for heard in door.heard}
    assert len(orders.runs) == 2


@pytest.mark.req("A-109")
def test_a_body_that_can_be_read_once_goes_along(orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, _door), caller("requests", tmp_path) as http:
        said = http.post(f"{server.url}/old/orders", json=None, data=iter([b"one,", b"two"]))
    assert (said.status, orders.heard[0].body) == (200, b"one,two")


def test_a_file_is_rewound_by_the_library_and_goes_along(orders: Shop, tmp_path: Path) -> None:
    with behind(orders, tmp_path, 307, "/orders") as (server, _door), caller("requests", tmp_path) as http:
        said = http.post(f"{server.url}/old/orders", json=None, data=io.BytesIO(b"one,two"))
    assert (said.status, orders.heard[0].body) == (200, b"one,two")


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", [303, 307])
def test_a_confirm_is_not_redirected(status: int, kind: str, orders: Shop, tmp_path: Path) -> None:
    """To follow it would make a second call beside one that is open."""
    with (
        behind(orders, tmp_path, status, "/orders", old="/orders/confirm") as (server, _door),
        caller(kind, tmp_path) as http,
        pytest.raises(PhaseError) as raised,
    ):
        post(http, kind, f"{server.url}/orders", follow=True)
    assert raised.value.advice in {Advice.CHECK, Advice.WAIT}
    assert [heard.line for heard in orders.heard if heard.method == "POST"] == ["POST /orders"]
    assert orders.runs == []


@pytest.mark.req("A-109")
def test_a_handlers_redirect_ends_its_call_and_is_followed_by_a_new_one(
    kind: str, orders: Shop, tmp_path: Path
) -> None:
    with caller(kind, tmp_path) as http:
        said = post(http, kind, f"{orders.url}/orders/", follow=True)
    assert (said.status, [hop.status_code for hop in said.response.history]) == (200, [307])
    first, second = (heard.dtt("client-correlation-id") for heard in (orders.heard[0], orders.heard[-1]))
    assert first != second == said.info["client_correlation_id"]
    assert orders.runs == ["POST /orders"]


@pytest.mark.req("A-109")
def test_a_redirect_that_leads_in_a_circle_ends(kind: str, orders: Shop, tmp_path: Path) -> None:
    with (
        behind(orders, tmp_path, 307, "/old/orders") as (server, door),
        caller(kind, tmp_path) as http,
        pytest.raises(Exception, match="redirects") as raised,
    ):
        post(http, kind, f"{server.url}/old/orders", follow=True)
    assert type(raised.value).__name__ == "TooManyRedirects"
    assert len({heard.dtt("client-correlation-id") for heard in door.heard}) == 1
    assert orders.runs == []
