"""A confirm whose answer was lost may have run. What is said to a later one does not prove that nothing did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.callers import HandTime, Losing, caller
from tests.client.foreign import ACCEPTED, COMMITTED, EXPIRED, LOST, NOT_FOUND, Foreign, answer, foreign
from tests.client.shop import Heard, Shop, pair, shop
from tests.client.test_reconciler import Later, crashed
from twophp import Policy
from twophp.client import Advice, PhaseError, calling
from twophp.core.intent import Phase
from twophp.stores.clock import system_clock

LITERAL = {"*": Policy.standard(literal_ttl_reject=True)}


class LateSecond:
    """A server's clock, past every TTL while a confirm after the first comes in."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.confirms = 0

    def __call__(self) -> int:
        return system_clock() + self.ahead_ms

    def heard(self, heard: Heard) -> None:
        self.confirms += heard.path.endswith("/confirm")
        self.ahead_ms = 60_000 if heard.path.endswith("/confirm") and self.confirms > 1 else 0


def failing(http: Any, url: str) -> PhaseError:
    with pytest.raises(PhaseError) as raised:
        http.post(url)
    return raised.value


@pytest.mark.req("A-30", "A-42", "P-8.2-c")
@pytest.mark.parametrize(("path", "status", "phase"), [("/orders", 200, "COMMITTED"), ("/invalid", 422, "FAILED")])
def test_after_a_lost_confirm_a_408_makes_it_read_the_status(
    path: str, status: int, phase: str, tmp_path: Path
) -> None:
    clock, time, net = LateSecond(), HandTime(), Losing(phase_2=1)
    options: dict[str, Any] = {"transport": net, "steady": time, "pause": time.pause, "resubmit": 1}
    with shop(tmp_path, clock=clock, policies=LITERAL) as orders, caller("httpx2", tmp_path, **options) as http:
        orders.on_heard = clock.heard
        said = http.post(f"{orders.url}{path}")
        assert len(orders.runs) == 1
    assert (said.status, said.info["phase"]) == (status, phase)
    assert net.sent[:4] == ["phase_1", "phase_2", "phase_2", "status"]
    assert net.sent.count("phase_1") == 1
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).phase == phase


@pytest.mark.req("A-42", "A-49", "P-8.2-c")
def test_where_no_status_can_be_read_a_408_means_check(kind: str, tmp_path: Path) -> None:
    with foreign(phase_2=[LOST, EXPIRED]) as server, caller(kind, tmp_path, resubmit=1) as http:
        error = failing(http, f"{server.url}/orders")
        assert (server.sent, server.runs) == (["phase_1", "phase_2", "phase_2", "status"], 1)
    assert (error.code, error.advice, error.phase) == ("ttl_expired", Advice.CHECK, "WAITING_CONFIRM")
    assert error.response.status_code == 408
    row = pair(tmp_path / "checkout.db", error.client_correlation_id or "")
    assert (row.phase, row.outcome) == (Phase.WAITING_CONFIRM, None), "no answer has said how it ended"


@pytest.mark.req("A-42", "A-49")
@pytest.mark.parametrize("status", [200, 408])
def test_a_status_that_says_expired_is_written_down_and_means_check_for_good(status: int, tmp_path: Path) -> None:
    said = answer(status, phase="TTL_EXPIRED")
    with (
        foreign(phase_2=[LOST, EXPIRED], status=[said]) as server,
        caller("httpx2", tmp_path, resubmit=1) as http,
        calling(client_correlation_id="the-call"),
    ):
        for _ in range(2):
            error = failing(http, f"{server.url}/orders")
            assert (error.code, error.advice, error.phase) == ("ttl_expired", Advice.CHECK, "TTL_EXPIRED")
        assert server.sent == ["phase_1", "phase_2", "phase_2", "status"], "what has ended is not asked about again"
    assert pair(tmp_path / "checkout.db", "the-call").outcome is Phase.TTL_EXPIRED


@pytest.mark.req("P-8.2-c", "A-49")
def test_a_408_to_the_first_confirm_that_left_permits_a_new_id(tmp_path: Path) -> None:
    """The one before it did not even leave."""
    time, net = HandTime(), Losing(unsent_phase_2=1)
    options: dict[str, Any] = {"transport": net, "steady": time, "pause": time.pause}
    with foreign(phase_2=[EXPIRED]) as server, caller("httpx2", tmp_path, **options) as http:
        with calling(client_correlation_id="the-call"):
            for _ in range(2):
                error = failing(http, f"{server.url}/orders")
                assert (error.code, error.advice) == ("ttl_expired", Advice.RESUBMIT)
        assert server.sent == ["phase_1", "phase_2"]
        with calling(resubmit=1):
            failing(http, f"{server.url}/orders")
        assert server.sent.count("phase_1") == 3
    assert pair(tmp_path / "checkout.db", "the-call").phase is Phase.TTL_EXPIRED


@pytest.mark.req("A-42", "A-49", "A-43")
@pytest.mark.parametrize("moment", ["before phase_2", "after phase_2"])
def test_who_takes_a_call_over_cannot_know_whether_it_was_confirmed(moment: str, tmp_path: Path) -> None:
    with foreign(phase_2=[COMMITTED, EXPIRED] if moment == "after phase_2" else [EXPIRED]) as server:
        crashed(tmp_path, f"{server.url}/orders", moment)
        with caller("httpx2", tmp_path, clock=Later()) as http:
            (left,) = http.reconcile().left
            assert (left.code, left.phase) == ("ttl_expired", "WAITING_CONFIRM")
        with caller("httpx2", tmp_path, clock=Later(60_000), resubmit=1) as http:
            with calling(client_correlation_id="the-call"):
                error = failing(http, f"{server.url}/orders")
            assert (error.code, error.advice) == ("ttl_expired", Advice.CHECK)
        assert server.sent.count("phase_1") == 1
        assert server.ids == {"the-call"}


@pytest.mark.req("A-30", "A-42")
def test_the_reconciler_reads_what_a_literal_server_no_longer_replays(tmp_path: Path) -> None:
    clock = Later(0)
    with shop(tmp_path, clock=clock, policies=LITERAL) as orders:
        crashed(tmp_path, f"{orders.url}/orders", "after phase_2")
        clock.by_ms = 60_000  # Only the server's: the client's deadline has not passed, so it confirms again.
        with caller("httpx2", tmp_path, clock=Later()) as http:
            (settled,) = http.reconcile().settled
        assert [line.split()[0] for line in orders.lines()] == ["POST", "POST", "POST", "GET"]
        assert len(orders.runs) == 1
    assert settled.phase == "COMMITTED"


BARE = (400, 422, 500)
DOUBTFUL = (401, 404, 408, 409, 429)


@pytest.mark.req("P-8.1-a", "P-5.3.2-g")
@pytest.mark.parametrize("status", BARE)
def test_a_bare_failure_to_a_repeat_is_the_outcome_of_the_first(status: int, tmp_path: Path) -> None:
    with foreign(phase_2=[LOST, answer(status, body=b"why")]) as server, caller("httpx2", tmp_path) as http:
        said = http.post(f"{server.url}/orders")
        assert server.sent == ["phase_1", "phase_2", "phase_2"]
    assert (said.status, said.text, said.info["phase"]) == (status, "why", "FAILED")


@pytest.mark.req("A-42")
@pytest.mark.parametrize("status", DOUBTFUL)
def test_a_refusal_of_a_repeat_says_nothing_about_the_first(status: int, tmp_path: Path) -> None:
    with foreign(phase_2=[LOST, answer(status, body=b"why")]) as server, caller("httpx2", tmp_path) as http:
        error = failing(http, f"{server.url}/orders")
    assert (error.code, error.advice, error.phase) == ("confirm_refused", Advice.CHECK, "WAITING_CONFIRM")
    assert (error.response.status_code, error.response.text) == (status, "why")
    assert server.sent == ["phase_1", "phase_2", "phase_2", "status"]


@pytest.mark.req("A-42", "A-04")
@pytest.mark.parametrize("status", [401, 404])
def test_the_status_tells_what_a_refused_repeat_does_not(status: int, tmp_path: Path) -> None:
    answers = {"phase_2": [LOST, answer(status)], "status": [COMMITTED]}
    with foreign(**answers) as server, caller("httpx2", tmp_path) as http:
        said = http.post(f"{server.url}/orders")
    assert (said.status, said.text, said.info["phase"]) == (200, "done", "COMMITTED")


# Past the deadline.

UNOFFERED = {
    "404": NOT_FOUND,
    "405": answer(405, "Allow: POST"),
    "501": answer(501),
    "403": answer(403),
    "a plain page": answer(200, "Content-Type: text/html", body=b"<p>orders</p>"),
    "a plain error": answer(500, body=b"Traceback"),
    "elsewhere": answer(302, "Location: https://elsewhere.example/login"),
}


def late_after_the_first_confirm(server: Foreign, time: HandTime) -> None:
    server.on_heard = lambda kind: setattr(time, "now", time.now + 60_000 * (kind == "phase_2"))


@pytest.mark.req("P-8.1-a", "A-42", "A-04")
@pytest.mark.parametrize("status", UNOFFERED.values(), ids=UNOFFERED)
def test_where_no_status_read_is_offered_a_late_repeat_is_the_question(status: bytes, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"steady": time, "pause": time.pause}
    with foreign(phase_2=[LOST, COMMITTED], status=[status]) as server, caller("httpx2", tmp_path, **options) as http:
        late_after_the_first_confirm(server, time)
        said = http.post(f"{server.url}/orders")
    assert server.sent == ["phase_1", "phase_2", "status", "phase_2"]
    assert (said.text, said.info["phase"], server.runs) == ("done", "COMMITTED", 1)


@pytest.mark.req("A-42")
def test_a_late_repeat_that_is_refused_as_late_means_check(kind: str, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"steady": time, "pause": time.pause, "resubmit": 1}
    with foreign(phase_2=[LOST, EXPIRED]) as server, caller(kind, tmp_path, **options) as http:
        late_after_the_first_confirm(server, time)
        error = failing(http, f"{server.url}/orders")
    assert server.sent == ["phase_1", "phase_2", "status", "phase_2"]
    assert (error.code, error.advice, error.phase) == ("ttl_expired", Advice.CHECK, "WAITING_CONFIRM")


@pytest.mark.req("P-5.3.1-c", "P-5.2.2-f", "A-25")
def test_a_first_confirm_never_leaves_after_the_deadline(tmp_path: Path) -> None:
    time, net = HandTime(), Losing(unsent_phase_2=3)
    options: dict[str, Any] = {"transport": net, "steady": time, "pause": time.pause, "patience_s": 90.0}
    with foreign() as server, caller("httpx2", tmp_path, **options) as http:
        net.on_unsent = lambda: setattr(time, "now", time.now + 15_000)
        error = failing(http, f"{server.url}/orders")
        assert (server.sent, server.runs) == (["phase_1"], 0)
    assert (error.code, error.advice, error.phase) == ("unreachable", Advice.RESUBMIT, "TTL_EXPIRED")


# A gateway in between.

GATEWAYS = (502, 503, 504, 524)


@pytest.mark.req("A-42", "P-8.1-a")
@pytest.mark.parametrize("status", GATEWAYS)
def test_a_gateways_error_is_no_outcome_and_is_asked_about_again(status: int, tmp_path: Path) -> None:
    time = HandTime()
    answers = [answer(status, "Retry-After: 1", body=b"<h1>gateway</h1>"), COMMITTED]
    with foreign(phase_2=answers) as server, caller("httpx2", tmp_path, steady=time, pause=time.pause) as http:
        said = http.post(f"{server.url}/orders")
    assert (said.status, said.info["phase"], server.sent) == (200, "COMMITTED", ["phase_1", "phase_2", "phase_2"])


@pytest.mark.req("A-42", "A-49")
@pytest.mark.parametrize("status", GATEWAYS)
def test_nothing_but_a_gateways_error_ends_with_check(status: int, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"steady": time, "pause": time.pause, "patience_s": 20.0, "resubmit": 1}
    bad = answer(status, body=b"<h1>gateway</h1>")
    with foreign(phase_2=[bad], status=[bad]) as server, caller("httpx2", tmp_path, **options) as http:
        error = failing(http, f"{server.url}/orders")
    assert (error.code, error.advice, error.phase) == ("gateway_error", Advice.CHECK, "WAITING_CONFIRM")
    assert (error.response.status_code, error.response.text) == (status, "<h1>gateway</h1>")
    assert sum(time.waits) == pytest.approx(20, abs=2.1)
    assert server.sent.count("phase_1") == 1


@pytest.mark.req("P-5.3.3-e")
def test_a_poll_that_is_not_offered_falls_back_to_phase_two(tmp_path: Path) -> None:
    time = HandTime()
    with (
        foreign(phase_2=[ACCEPTED, ACCEPTED, COMMITTED]) as server,
        caller("httpx2", tmp_path, steady=time, pause=time.pause) as http,
    ):
        said = http.post(f"{server.url}/orders")
    assert (said.info["phase"], said.info["mode"]) == ("COMMITTED", "async")
    assert server.lines[2:] == ["GET /orders/r1", "POST /orders/confirm"] * 2


def test_two_callers_of_one_id_have_one_driver(orders: Shop, tmp_path: Path) -> None:
    """Both registered it before either had a row: the second must not give up what the first confirmed."""
    time, clock, net = HandTime(), Later(), Losing(phase_2=99, status=99)

    def after(kind: str) -> None:
        if kind != "phase_1" or time.waits:
            return
        time.waits.append(0)
        options, named = {"transport": net, "patience_s": 0.0}, calling(client_correlation_id="the-call")
        with caller("httpx2", tmp_path, **options) as other, named, pytest.raises(PhaseError, match="no_answer"):
            other.post(f"{orders.url}/orders")
        time.now += 60_000  # Too late for this one to confirm.
        clock.by_ms += 60_000

    options: dict[str, Any] = {"transport": Losing(after), "steady": time, "pause": time.pause, "clock": clock}
    with caller("httpx2", tmp_path, **options) as http, calling(client_correlation_id="the-call"):
        said = http.post(f"{orders.url}/orders")
    assert (said.info["phase"], orders.runs) == ("COMMITTED", ["POST /orders"])
