"""Only a 307 or 308 of the same origin is followed, with the same id and body; nothing else carries the ids away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.asgi_frameworks.serving import wrapped
from tests.client.callers import caller
from tests.client.shop import Heard, Shop, served, tapped

MOVED = {301, 302, 303, 307, 308}


class Door:
    """Sends whoever comes to ``/old...`` to another place."""

    def __init__(self, app: object, status: int, where: str) -> None:
        self._app, self._status, self._where = app, status, where
        self.heard: list[Heard] = []

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        assert isinstance(scope, dict)
        assert callable(self._app)
        assert callable(send)
        if scope["type"] != "http" or not scope["path"].startswith("/old"):
            await self._app(scope, receive, send)
            return
        self.heard.append(Heard(scope, b""))
        headers = [(b"location", self._where.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def through(orders: Shop, status: int, where: str, folder: Path, kind: str) -> tuple[int, Door]:
    door = Door(tapped(wrapped(orders.app, folder, store=f"sqlite:///{folder}/behind.db"), orders), status, where)
    with served(door) as server, caller(kind, folder) as http:
        more = {"allow_redirects": False} if kind == "requests" else {}
        return http.post(f"{server.url}/old/orders", **more).status, door


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_origin_is_followed(status: int, kind: str, orders: Shop, tmp_path: Path) -> None:
    final, door = through(orders, status, "/orders?moved=1", tmp_path, kind)
    assert final == 200
    first, (second, confirm) = door.heard[0], orders.heard
    assert first.dtt("client-correlation-id") == second.dtt("client-correlation-id")
    assert (second.line, second.query, second.body) == ("POST /orders", b"moved=1", second.body)
    assert b"item" in second.body
    assert confirm.line == "POST /orders/confirm", "derived from the URL that was called in the end"
    assert orders.runs == ["POST /orders"]


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", sorted(MOVED))
@pytest.mark.parametrize("where", ["https://elsewhere.example/orders", "http://127.0.0.1:1/orders"])
def test_a_redirect_to_another_origin_is_returned(status: int, where: str, orders: Shop, tmp_path: Path) -> None:
    final, _door = through(orders, status, where, tmp_path, "httpx2")
    assert final == status
    assert (orders.heard, orders.runs) == ([], [])


@pytest.mark.req("A-109")
@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_changes_the_method_is_returned(status: int, kind: str, orders: Shop, tmp_path: Path) -> None:
    assert through(orders, status, "/orders", tmp_path, kind)[0] == status
    assert orders.heard == []


@pytest.mark.req("A-109")
def test_a_redirect_that_leads_in_a_circle_ends(orders: Shop, tmp_path: Path) -> None:
    final, door = through(orders, 307, "/old/orders", tmp_path, "httpx2")
    assert (final, len(door.heard)) == (307, 6)
