"""Answers get lost. The same ids are asked for again, and never a new one is used before the server says so."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.client.callers import Caller, HandTime, Losing, caller
from tests.client.shop import Shop, ledger, pair, shop
from twophp.client import Advice, PhaseError
from twophp.core.intent import Phase


@pytest.fixture
def time() -> HandTime:
    return HandTime()


def ids_of(orders: Shop) -> set[str | None]:
    return {heard.dtt("client-correlation-id") for heard in orders.heard}


def failing(http: Caller, url: str) -> PhaseError:
    with pytest.raises(PhaseError) as raised:
        http.post(url)
    return raised.value


@pytest.mark.req("A-42", "P-5.2.1-c", "P-8.1-a")
def test_a_lost_answer_to_phase_two_is_asked_for_again_with_the_same_ids(
    orders: Shop, tmp_path: Path, time: HandTime
) -> None:
    net = Losing(phase_2=3)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        said = http.post(f"{orders.url}/orders")
    assert (said.status, said.json["id"]) == (200, "order-1")
    assert orders.runs == ["POST /orders"]
    assert net.sent == ["phase_1", *["phase_2"] * 4]
    assert len(ids_of(orders)) == 1
    assert time.waits == [0.1, 0.1, 0.2]
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).phase is Phase.COMMITTED


@pytest.mark.req("A-42", "P-5.2.2-f", "A-04")
def test_after_the_deadline_the_status_is_read_instead(orders: Shop, tmp_path: Path, time: HandTime) -> None:
    def then(kind: str) -> None:
        if kind == "phase_2":
            time.now += 40_000

    net = Losing(then, phase_2=1, status=2)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        said = http.post(f"{orders.url}/orders")
    assert net.sent == ["phase_1", "phase_2", "status", "status", "status"]
    assert (said.status, said.json["id"], said.info["phase"]) == (200, "order-1", "COMMITTED")
    assert orders.runs == ["POST /orders"]
    status = orders.heard[-1]
    assert (status.line, status.dtt("enabled")) == ("GET /orders", "true")


@pytest.mark.req("A-42", "A-04", "P-5.3.2-f")
def test_a_failure_found_out_later_is_told_with_its_own_answer(orders: Shop, tmp_path: Path, time: HandTime) -> None:
    def then(kind: str) -> None:
        if kind == "phase_2" and not time.waits:
            time.now += 40_000

    net = Losing(then, phase_2=1)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        said = http.post(f"{orders.url}/invalid")
    assert (said.status, said.json, said.headers["x-shop"]) == (422, {"why": "no such thing"}, "yes")
    assert said.info["phase"] == "FAILED"
    assert orders.runs == ["invalid"]
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).outcome is Phase.FAILED


@pytest.mark.req("A-42", "A-04")
def test_a_failure_whose_own_answer_is_gone_is_put_together_from_the_status(
    orders: Shop, tmp_path: Path, time: HandTime
) -> None:
    def then(kind: str) -> None:
        if kind == "phase_2" and not time.waits:
            time.now += 40_000

    net = Losing(then, phase_2=2)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        said = http.post(f"{orders.url}/invalid")
    assert (said.status, said.json, said.info["phase"]) == (422, {"why": "no such thing"}, "FAILED")


@pytest.mark.req("A-42", "T2-1")
def test_a_lost_answer_to_phase_one_is_asked_for_again_where_2php_is_known_to_be_spoken(
    orders: Shop, tmp_path: Path, time: HandTime
) -> None:
    net = Losing()
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        http.post(f"{orders.url}/orders")
        net.plan["phase_1"] = 2
        net.sent.clear()
        said = http.post(f"{orders.url}/orders")
    assert net.sent == ["phase_1"] * 3 + ["phase_2"]
    assert len(orders.runs) == 2
    assert len({heard.dtt("client-correlation-id") for heard in orders.heard[2:]}) == 1
    assert len(orders.rows()) == 2
    assert said.info["phase"] == "COMMITTED"


@pytest.mark.req("A-06", "A-42")
def test_where_nobody_knows_what_is_spoken_nothing_is_sent_twice(orders: Shop, tmp_path: Path, time: HandTime) -> None:
    net = Losing(phase_1=1)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        error = failing(http, f"{orders.url}/orders")
    assert (error.code, error.advice, error.phase) == ("answer_lost", Advice.CHECK, None)
    assert isinstance(error.__cause__, httpx2.ReadError)
    assert net.sent == ["phase_1"]
    assert orders.runs == []


@pytest.mark.req("A-42")
def test_whoever_says_that_2php_is_spoken_has_it_sent_again(orders: Shop, tmp_path: Path, time: HandTime) -> None:
    net = Losing(phase_1=1)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause, require_2php=True) as http:
        assert http.post(f"{orders.url}/orders").status == 200
    assert net.sent == ["phase_1", "phase_1", "phase_2"]
    assert len(orders.runs) == 1


@pytest.mark.req("A-42", "A-49", "P-3.1-a")
def test_a_server_that_falls_silent_is_not_waited_for_without_end(orders: Shop, tmp_path: Path, time: HandTime) -> None:
    net = Losing(phase_2=1_000, status=1_000)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause, patience_s=20) as http:
        error = failing(http, f"{orders.url}/orders")
    assert (error.code, error.advice, error.phase) == ("no_answer", Advice.WAIT, "WAITING_CONFIRM")
    assert error.client_correlation_id is not None
    row = pair(tmp_path / "checkout.db", error.client_correlation_id)
    assert (row.phase, row.outcome, row.server_correlation_id) == (
        Phase.WAITING_CONFIRM,
        None,
        error.server_correlation_id,
    ), "the row says what the client was told, and no more"
    assert sum(time.waits) == pytest.approx(20, abs=2.1)
    assert orders.runs == ["POST /orders"]


def test_a_server_that_cannot_be_reached_to_confirm_has_not_run_it(
    orders: Shop, tmp_path: Path, time: HandTime
) -> None:
    net = Losing(unsent_phase_2=1_000, unsent_status=1_000)
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        error = failing(http, f"{orders.url}/orders")
    assert (error.code, error.advice) == ("unreachable", Advice.RESUBMIT)
    assert pair(tmp_path / "checkout.db", error.client_correlation_id or "").phase is Phase.TTL_EXPIRED
    assert orders.runs == []


def test_a_server_that_was_never_reached_is_the_librarys_own_error(kind: str, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http, pytest.raises(Exception, match=r"(?i)connect|refused") as raised:
        http.post("http://127.0.0.1:1/orders")
    assert not isinstance(raised.value, PhaseError)
    assert ledger(tmp_path / "checkout.db") == []


@pytest.mark.req("A-42", "T1-4", "A-49")
def test_a_server_that_has_no_such_intent_permits_a_new_id(tmp_path: Path, time: HandTime) -> None:
    with shop(tmp_path) as other, shop(tmp_path / "empty") as empty:
        net = Losing()
        with caller("httpx2", tmp_path, transport=Misrouting(net, empty.url), steady=time, pause=time.pause) as http:
            error = failing(http, f"{other.url}/orders")
    assert (error.code, error.advice) == ("unknown_intent", Advice.RESUBMIT)
    assert error.response.status_code == 404
    assert (other.runs, empty.runs) == ([], [])


class Misrouting(httpx2.BaseTransport):
    """A load balancer between two instances that do not share a store: the confirm goes to the other one."""

    def __init__(self, inner: Losing, confirms_to: str) -> None:
        self._inner = inner
        self._to = httpx2.URL(confirms_to)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/confirm"):
            request.url = request.url.copy_with(port=self._to.port)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()
