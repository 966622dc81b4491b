"""The client confirms in time or not at all; a 408 is never answered with a silent second call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.client.callers import Caller, Forgetful, HandTime, Losing, caller, settings
from tests.client.shop import Heard, Shop, committed, ledger, pair, shop
from tests.patience import PATIENCE_S
from twophp.client import Advice, PhaseError, Reconciliation, TwoPhaseTransport, calling
from twophp.core.intent import Phase
from twophp.stores.clock import system_clock
from twophp.stores.sqlite.verify import verify


def slow(time: HandTime, by_ms: int, times: int = 1) -> Callable[[str], None]:
    """So much time passes between the answer to Phase 1 and the next thing the client does."""
    left = [times]

    def after(kind: str) -> None:
        if kind == "phase_1" and left[0]:
            left[0] -= 1
            time.now += by_ms

    return after


@pytest.mark.req("P-2-d", "P-5.2.2-f", "P-5.2.2-i", "P-5.3.1-c", "A-25", "A-49")
@pytest.mark.parametrize(("late_ms", "confirmed"), [(29_300, True), (29_399, True), (29_400, False), (90_000, False)])
def test_phase_two_leaves_before_the_deadline_or_not_at_all(
    late_ms: int, confirmed: bool, orders: Shop, tmp_path: Path
) -> None:
    """30 s of TTL counted from the moment Phase 1 was sent, less 2 %."""
    time = HandTime()
    net = Losing(slow(time, late_ms))
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        if confirmed:
            assert http.post(f"{orders.url}/orders").info["phase"] == "COMMITTED"
            return
        with pytest.raises(PhaseError) as raised:
            http.post(f"{orders.url}/orders")
    error = raised.value
    assert (error.code, error.advice, error.phase) == ("ttl_expired", Advice.RESUBMIT, "TTL_EXPIRED")
    assert (net.sent, orders.runs) == (["phase_1"], [])
    row = pair(tmp_path / "checkout.db", error.client_correlation_id or "")
    assert (row.phase, row.outcome, row.phase_2_timestamp) == (Phase.TTL_EXPIRED, Phase.TTL_EXPIRED, None)


class Ahead:
    """A wall clock that a test sets forward."""

    def __init__(self) -> None:
        self.by_ms = 0

    def __call__(self) -> int:
        return system_clock() + self.by_ms


def given_up(http: Caller, url: str, **options: Any) -> PhaseError:
    """Make a call whose confirm does not leave, or one that was given up before."""
    with calling(**options), pytest.raises(PhaseError) as raised:
        http.post(f"{url}/orders")
    assert raised.value.advice is Advice.RESUBMIT
    return raised.value


@pytest.mark.req("A-49", "A-27", "P-9.8-07")
def test_a_call_given_up_before_its_deadline_is_expired_when_that_has_passed(orders: Shop, tmp_path: Path) -> None:
    """Until then the client has received nothing new, so its row says what the last answer said."""
    clock = Ahead()
    with caller("httpx2", tmp_path, clock=clock, transport=Forgetful()) as http:
        error = given_up(http, orders.url)
        assert (error.code, error.phase) == ("confirm_refused", "WAITING_CONFIRM")
        row = pair(tmp_path / "checkout.db", error.client_correlation_id or "")
        assert (row.phase, row.outcome, row.settled_at) == (Phase.WAITING_CONFIRM, None, None)
        deadline = row.phase_1_timestamp + row.ttl_ms
        assert http.reconcile() == Reconciliation(), "not taken over, not asked about"
        assert pair(tmp_path / "checkout.db", row.client_correlation_id).phase is Phase.WAITING_CONFIRM
        clock.by_ms = 3_600_000
        assert http.reconcile() == Reconciliation(), "its caller was told already, and made it anew"
    row = pair(tmp_path / "checkout.db", row.client_correlation_id)
    assert (row.phase, row.outcome, row.phase_2_timestamp) == (Phase.TTL_EXPIRED, Phase.TTL_EXPIRED, None)
    assert row.settled_at is not None
    assert deadline - 2_000 < row.settled_at < deadline, "the client's own deadline, whenever it was noticed"
    assert (orders.lines(), orders.runs) == (["POST /orders", "POST /orders/confirm"], [])
    assert verify(str(tmp_path / "checkout.db")).holds


@pytest.mark.req("A-49")
def test_a_named_call_that_was_given_up_is_never_confirmed(orders: Shop, tmp_path: Path) -> None:
    clock, time, net = Ahead(), HandTime(), Losing(unsent_phase_2=9, unsent_status=9)
    options: dict[str, Any] = {"clock": clock, "transport": net, "steady": time, "pause": time.pause, "patience_s": 0.0}
    with caller("httpx2", tmp_path, **options) as http:
        first = given_up(http, orders.url, client_correlation_id="the-call")
        assert (first.code, first.phase) == ("unreachable", "WAITING_CONFIRM")
        net.plan.clear()  # The server can be reached again.
        tried = list(net.sent)
        again = given_up(http, orders.url, client_correlation_id="the-call")
        assert (again.code, again.phase) == ("ttl_expired", "WAITING_CONFIRM")
        clock.by_ms = 60_000
        late = given_up(http, orders.url, client_correlation_id="the-call")
        assert (late.code, late.phase) == ("ttl_expired", "TTL_EXPIRED"), "the next visit, by any driver"
    assert (net.sent, orders.lines()) == (tried, ["POST /orders"])


@pytest.mark.req("A-25")
def test_a_clock_that_is_wrong_by_a_year_harms_nobody(orders: Shop, tmp_path: Path) -> None:
    year_ms = 365 * 86_400_000
    for ahead in (year_ms, -year_ms):
        with caller("httpx2", tmp_path, ledger="memory:", clock=lambda by=ahead: system_clock() + by) as http:
            assert http.post(f"{orders.url}/orders").info["phase"] == "COMMITTED"


@pytest.mark.req("A-25", "P-5.2.2-i")
def test_a_margin_is_kept(tmp_path: Path) -> None:
    made = TwoPhaseTransport(**settings(tmp_path, ledger="memory:"))
    of = made._machinery.settings.margin_of
    assert [of(ttl) for ttl in (120_000, 30_000, 5_000, 1_000, 100)] == [2_400, 600, 100, 100, 50]
    made.close()


@pytest.mark.req("P-5.2.3-a", "A-43", "P-9.2-a")
def test_without_a_durable_row_nothing_is_confirmed(orders: Shop, tmp_path: Path) -> None:
    def after(kind: str) -> None:
        if kind == "phase_1":
            here = transport._machinery._handles.here
            assert here is not None
            here._handle.close()

    net = Losing(after)
    transport = TwoPhaseTransport(**settings(tmp_path, transport=net))
    client = httpx2.Client(transport=transport, timeout=PATIENCE_S)
    with pytest.raises(PhaseError) as raised:
        client.post(f"{orders.url}/orders")
    client.close()
    assert (raised.value.code, raised.value.advice) == ("ledger_unavailable", Advice.RESUBMIT)
    assert (net.sent, orders.runs) == (["phase_1"], [])
    assert committed(tmp_path / "checkout.db") == []


class Late:
    """A server's clock that is ahead of itself whenever a confirm comes in."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return system_clock() + self.ahead_ms

    def for_confirms(self, heard: Heard) -> None:
        self.ahead_ms = 60_000 if heard.path.endswith("/confirm") else 0


@pytest.mark.req("A-28", "P-8.2-c", "A-49")
def test_a_408_is_told_and_not_repeated(kind: str, tmp_path: Path) -> None:
    late = Late()
    with shop(tmp_path, clock=late) as orders, caller(kind, tmp_path) as http:
        orders.on_heard = late.for_confirms
        with pytest.raises(PhaseError) as raised:
            http.post(f"{orders.url}/orders")
        assert orders.lines() == ["POST /orders", "POST /orders/confirm"]
        assert orders.runs == []
    error = raised.value
    assert (error.code, error.advice, error.phase) == ("ttl_expired", Advice.RESUBMIT, "TTL_EXPIRED")
    assert error.response.status_code == 408
    assert error.response.json()["code"] == "ttl_expired"
    assert pair(tmp_path / "checkout.db", error.client_correlation_id or "").phase is Phase.TTL_EXPIRED


@pytest.mark.req("P-8.2-c")
def test_it_is_made_anew_under_a_new_id_where_that_was_asked_for(orders: Shop, tmp_path: Path) -> None:
    time = HandTime()
    net = Losing(slow(time, 40_000, times=2))
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause, resubmit=2) as http:
        said = http.post(f"{orders.url}/orders")
    assert net.sent == ["phase_1", "phase_1", "phase_1", "phase_2"]
    assert orders.runs == ["POST /orders"]
    phases = {row.client_correlation_id: row.phase for row in ledger(tmp_path / "checkout.db")}
    assert phases.pop(said.info["client_correlation_id"]) is Phase.COMMITTED
    assert list(phases.values()) == [Phase.TTL_EXPIRED, Phase.TTL_EXPIRED]


@pytest.mark.req("P-8.2-c")
def test_it_is_not_made_anew_more_often_than_that(orders: Shop, tmp_path: Path) -> None:
    time = HandTime()
    net = Losing(slow(time, 40_000, times=9))
    with caller("httpx2", tmp_path, transport=net, steady=time, pause=time.pause) as http:
        with calling(resubmit=1), pytest.raises(PhaseError, match="ttl_expired"):
            http.post(f"{orders.url}/orders")
        with calling(resubmit=1, client_correlation_id="named"), pytest.raises(PhaseError, match="ttl_expired"):
            http.post(f"{orders.url}/orders")
    assert net.sent == ["phase_1"] * 3
