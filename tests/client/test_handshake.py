"""One line at the client, and a mutation is registered by both sides before it runs, in exactly two round trips."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from tests.client.callers import caller, settings
from tests.client.shop import MUTATIONS, Shop, pair
from tests.patience import PATIENCE_S
from twophp.client import Advice, PhaseError, TwoPhaseTransport, calling
from twophp.core.intent import Phase

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
OURS = {"dtt-2php-enabled", "dtt-2php-client-correlation-id"}


@pytest.mark.req(
    "P-1-c", "P-4-c", "P-5.1-a", "P-5.2.1-b", "P-5.2.2-d", "P-5.3.1-a", "P-5.3.1-b", "P-5.3.2-g", "P-14.1-a", "P-14.1-b"
)
def test_a_call_is_two_requests_and_one_run(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        said = http.post(f"{orders.url}/orders?dry=no")
    assert (said.status, said.json["id"], said.headers["x-shop"]) == (200, "order-1", "yes")
    assert orders.lines() == ["POST /orders", "POST /orders/confirm"]
    assert orders.runs == ["POST /orders"]
    one, two = orders.heard
    assert UUID4.fullmatch(said.info["client_correlation_id"])
    for heard in orders.heard:
        assert (heard.dtt("enabled"), heard.dtt("client-correlation-id")) == (
            "true",
            said.info["client_correlation_id"],
        )
    assert (one.dtt("server-correlation-id"), two.dtt("server-correlation-id")) == (
        None,
        said.info["server_correlation_id"],
    )
    assert (two.body, two.query) == (b"", b"")
    assert said.info == {
        "client_correlation_id": said.info["client_correlation_id"],
        "server_correlation_id": said.info["server_correlation_id"],
        "phase": "COMMITTED",
        "mode": "standard",
        "resource_id": "order-1",
        "indeterminate": False,
    }


@pytest.mark.req(
    "P-0-a", "P-2-i", "P-5.2.1-c", "P-5.2.3-a", "P-5.2.3-b", "P-5.2.3-c", "P-10.2-b", "P-10.3-b", "P-5.5.8-a", "A-43"
)
def test_both_sides_hold_a_durable_row_when_the_handler_is_entered(kind: str, orders: Shop, tmp_path: Path) -> None:
    mine = tmp_path / "checkout.db"
    orders.watched = mine
    with caller(kind, tmp_path, targets=lambda _origin: "orders") as http:
        said = http.post(f"{orders.url}/orders")
    ids = said.info["client_correlation_id"], said.info["server_correlation_id"]
    assert orders.at_entry == [[(*ids, "WAITING_CONFIRM")]]
    client, server = pair(mine, ids[0]), pair(tmp_path / "orders.db", ids[0])
    assert (client.actor, server.actor) == ("client", "server")
    assert client.server_correlation_id == server.server_correlation_id == ids[1]
    assert (client.phase, server.phase) == (Phase.COMMITTED, Phase.COMMITTED)
    assert client.service_endpoint == server.service_endpoint == "orders/orders"
    assert (client.source, client.target, client.parent_reference_id) == ("checkout", "orders", ids[0])
    assert client.ttl_ms == server.ttl_ms


@pytest.mark.req("A-56")
def test_the_clients_times_are_its_own(orders: Shop, tmp_path: Path) -> None:
    now = [1_000_000]

    def clock() -> int:
        now[0] += 1
        return now[0]

    with caller("httpx2", tmp_path, clock=clock) as http:
        said = http.post(f"{orders.url}/orders")
    row = pair(tmp_path / "checkout.db", said.info["client_correlation_id"])
    assert row.phase_2_timestamp is not None
    assert 1_000_000 < row.phase_1_timestamp < row.phase_2_timestamp < now[0]


@pytest.mark.req("P-5.2.1-a", "P-5.2.1-d", "P-14.1-e")
def test_phase_one_is_the_ordinary_request_and_a_few_fields_more(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        http.post(f"{orders.url}/orders", headers={"x-mine": "1", "authorization": "Bearer t"})
        with calling(requested_ttl_ms=60_000):
            http.post(f"{orders.url}/orders", headers={"x-mine": "1", "authorization": "Bearer t"})
    first, confirm, wishing, _confirm = orders.heard
    assert (first.body, first.headers["content-type"]) == (wishing.body, "application/json")
    assert {name for name in first.headers if name.startswith("dtt-")} == OURS
    assert wishing.headers.keys() - first.headers.keys() == {"dtt-2php-requested-ttl"}
    assert wishing.dtt("requested-ttl") == "60000"
    # credentials and other fields that say who asks go with the confirm; fields about the body do not.
    assert (confirm.headers["authorization"], confirm.headers["x-mine"]) == ("Bearer t", "1")
    assert "content-type" not in confirm.headers
    assert confirm.headers.get("content-length", "0") == "0"


@pytest.mark.req("P-1-a", "P-5.3.1-a", "A-01")
@pytest.mark.parametrize("method", MUTATIONS)
def test_every_mutation_is_confirmed_at_its_own_path(method: str, kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        unfollowed = {"allow_redirects": False} if kind == "requests" else {}
        said = http.request(method, f"{orders.url}/orders/a%20b/", params={"q": "1"}, **unfollowed)
    assert (said.status, said.info["phase"]) == (307, "FAILED"), "Starlette's own opinion about the trailing slash"
    assert orders.lines() == [f"{method} /orders/a%20b/", "POST /orders/a%20b/confirm"]


@pytest.mark.req("P-1-a")
def test_a_get_passes(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        response = http.get(f"{orders.url}/orders/1")
    assert response.status_code == 201
    (heard,) = orders.heard
    assert not [name for name in heard.headers if name.startswith("dtt-")]


@pytest.mark.req("P-5.2.1-b", "P-13.1-b")
def test_every_call_has_an_id_of_its_own(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http:
        ids = {http.post(f"{orders.url}/orders").info["client_correlation_id"] for _ in range(50)}
    assert len(ids) == 50


@pytest.mark.req("P-5.3.2-e", "P-5.3.2-f")
@pytest.mark.parametrize(("path", "status"), [("/broken", 500), ("/invalid", 422)])
def test_a_failure_is_an_answer_like_any_other(path: str, status: int, kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http:
        said = http.post(orders.url + path)
    assert (said.status, said.info["phase"]) == (status, "FAILED")
    row = pair(tmp_path / "checkout.db", said.info["client_correlation_id"])
    assert (row.phase, row.outcome) == (Phase.FAILED, Phase.FAILED)


def test_a_body_that_is_not_in_memory_is_sent_whole(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path) as http:
        said = http.request("POST", f"{orders.url}/orders", content=iter([b"one, ", b"two"]))
    assert said.json["sent"] == "one, two"
    with caller("requests", tmp_path) as http:
        said = http.request("POST", f"{orders.url}/orders", data=iter([b"three, ", b"four"]))
    assert said.json["sent"] == "three, four"


def test_the_final_answer_is_a_stream_where_one_is_wanted(orders: Shop, tmp_path: Path) -> None:
    transport = TwoPhaseTransport(**settings(tmp_path))
    with (
        httpx2.Client(transport=transport, timeout=PATIENCE_S) as client,
        client.stream("POST", f"{orders.url}/orders", json={}) as response,
    ):
        assert not response.is_stream_consumed
        assert b"order-1" in b"".join(response.iter_raw())


@pytest.mark.req("P-5.2.1-a", "A-12")
@pytest.mark.parametrize(
    "name", ["DTT-2PHP-Enabled", "dtt-2php-client-correlation-id", "DTT-2PHP-Callback", "DTT-2PHP-Anything"]
)
def test_a_field_of_the_protocol_set_by_the_caller_is_refused(
    kind: str, name: str, orders: Shop, tmp_path: Path
) -> None:
    with caller(kind, tmp_path) as http, pytest.raises(PhaseError) as raised:
        http.post(f"{orders.url}/orders", headers={name: "true"})
    assert (raised.value.code, raised.value.advice) == ("reserved_header", Advice.FIX)
    assert (orders.heard, orders.runs) == ([], [])


def test_what_opts_out_is_its_makers_own(orders: Shop, tmp_path: Path) -> None:
    opted_out = {"extensions": {"twophp": False}}
    with caller("httpx2", tmp_path) as http:
        assert http._send("POST", f"{orders.url}/orders", **opted_out).status_code == 201
        by_hand = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": "by-hand"}
        assert http._send("POST", f"{orders.url}/orders", headers=by_hand, **opted_out).status_code == 200
        assert http._send("GET", f"{orders.url}/orders/1", headers=by_hand).status_code == 201
    assert orders.lines() == ["POST /orders", "POST /orders", "GET /orders/1"]
    assert orders.runs == ["POST /orders", "GET /orders/1"], "the second was registered, and is not confirmed"
