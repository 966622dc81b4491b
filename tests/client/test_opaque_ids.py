"""Ids are opaque (draft §13.1): what the other side chose travels unchanged through headers, ledgers and commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.cli.running import OK, document, run
from tests.client.callers import caller
from tests.client.shop import Shop, ledger, served
from twophp.client import calling

VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
STRANGE = [
    "{6F9619FF-8B86-D011-B42D-00CF4FC964FF}",
    "q83vEjRWeJA/+w==",
    "../../etc/passwd?x=1&y#z",
    "[red]a,b[/red]<script>'\"\\%2F%00",
    "-rf",
    "=cmd|'/c'!A1",
    VISIBLE,
    "x" * 255,
]


@pytest.mark.req("P-13.1-a", "A-13")
def test_a_client_id_of_any_visible_characters_is_kept_by_both_ledgers_and_found_by_the_command(
    orders: Shop, tmp_path: Path
) -> None:
    for number, client_id in enumerate(STRANGE, 1):
        named = {"targets": {orders.url: "orders"}}
        with caller("httpx", tmp_path, **named) as http, calling(client_correlation_id=client_id):
            done = http.post(f"{orders.url}/orders")
        assert (done.status, done.info["phase"], done.info["client_correlation_id"]) == (200, "COMMITTED", client_id)
        assert (len(orders.runs), orders.heard[-1].dtt("client-correlation-id")) == (number, client_id)
        files = (tmp_path / "checkout.db", orders.folder / "orders.db")
        shown = run("ledger", "show", "--json", "--", client_id, *files)
        assert shown.exit_code == OK, shown.stderr
        assert [found["client_correlation_id"] for found in document(shown)["calls"]] == [client_id]
        tree = run("ledger", "tree", "--rows", "--", client_id, *files)
        assert client_id in tree.stdout


class Foreign:
    """A foreign 2PHP server: its ids are its own choice."""

    def __init__(self, server_id: str) -> None:
        self.server_id = server_id
        self.runs = 0
        self.polls = 0
        self.app = Starlette(
            routes=[
                Route("/orders", self._register, methods=["POST"]),
                Route("/orders/confirm", self._confirm, methods=["POST"]),
                Route("/orders/status", self._status, methods=["GET"]),
            ]
        )

    def _answer(self, status: int, phase: str, **more: str) -> Response:
        return Response(status_code=status, headers={"DTT-2PHP-Phase-State": phase, **more})

    async def _register(self, _request: Request) -> Response:
        own = {"DTT-2PHP-Server-Correlation-ID": self.server_id, "DTT-2PHP-TTL": "30000"}
        return self._answer(200, "WAITING_CONFIRM", **own)

    async def _confirm(self, request: Request) -> Response:
        assert request.headers["dtt-2php-server-correlation-id"] == self.server_id
        self.runs += 1
        own = {"DTT-2PHP-Resource-ID": "7", "location": "/orders/status", "retry-after": "0"}
        return self._answer(202, "PROCESSING", **own)

    async def _status(self, request: Request) -> Response:
        assert request.headers["dtt-2php-server-correlation-id"] == self.server_id
        self.polls += 1
        return self._answer(200, "COMMITTED", **{"DTT-2PHP-Resource-ID": "7"})


@pytest.mark.req("P-13.1-a", "A-13")
@pytest.mark.parametrize("server_id", [*STRANGE[:4], VISIBLE])
def test_a_server_id_of_any_visible_characters_is_confirmed_polled_and_kept(server_id: str, tmp_path: Path) -> None:
    foreign = Foreign(server_id)
    with served(foreign.app) as server, caller("requests", tmp_path) as http:
        done = http.post(f"{server.url}/orders")
    assert (done.info["phase"], done.info["server_correlation_id"]) == ("COMMITTED", server_id)
    assert (foreign.runs, foreign.polls) == (1, 1)
    assert [row.server_correlation_id for row in ledger(tmp_path / "checkout.db")] == [server_id]
