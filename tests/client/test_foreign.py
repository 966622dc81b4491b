"""Servers that were written from the draft alone, and what they may say."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.callers import HandTime, caller
from tests.client.foreign import (
    ACCEPTED,
    COMMITTED,
    EXPIRED,
    LOST,
    NOT_FOUND,
    REGISTERED,
    SERVER_ID,
    answer,
    foreign,
)
from tests.client.shop import committed, ledger, pair
from tests.client.test_auto_confirm import SOMEWHERE, delivered
from tests.client.test_reconciler import Later
from twophp.client import Advice, PhaseError, calling
from twophp.core.intent import Phase
from twophp.wire.callback import Acknowledgement

BARE = (400, 401, 404, 408, 409, 429, 500, 501)
MESSAGE = "DTT-2PHP-Message: out of stock"


def failing(http: Any, url: str) -> PhaseError:
    with pytest.raises(PhaseError) as raised:
        http.post(url)
    return raised.value


# Phase 2.


@pytest.mark.req("P-5.3.2-e", "P-5.3.2-f", "P-5.3.2-g")
@pytest.mark.parametrize("status", BARE)
def test_a_bare_failure_is_the_outcome(status: int, tmp_path: Path) -> None:
    said_so = answer(status, "Content-Type: text/plain", "X-Shop: yes", body=b"out of stock \xff")
    with foreign(phase_2=[said_so]) as server, caller("httpx2", tmp_path) as http:
        said = http.post(f"{server.url}/orders")
        assert (server.sent, server.runs) == (["phase_1", "phase_2"], 1)
    assert (said.status, said.response.content, said.headers["x-shop"]) == (status, b"out of stock \xff", "yes")
    assert (said.info["phase"], said.info["mode"]) == ("FAILED", "standard")
    row = pair(tmp_path / "checkout.db", said.info["client_correlation_id"])
    assert (row.phase, row.outcome) == (Phase.FAILED, Phase.FAILED)


@pytest.mark.req("P-5.3.2-e", "P-5.3.2-f", "P-5.3.2-g")
@pytest.mark.parametrize("phase", [None, "FAILED"])
def test_a_failure_is_the_outcome_with_or_without_a_phase_and_a_message(
    phase: str | None, kind: str, tmp_path: Path
) -> None:
    """A message and problem+json do not make another server's failure a refusal of ours."""
    body = b'{"code":"out_of_stock"}'
    said_so = answer(422, "Content-Type: application/problem+json", MESSAGE, body=body, phase=phase)
    with foreign(phase_2=[said_so]) as server, caller(kind, tmp_path) as http:
        said = http.post(f"{server.url}/orders")
        assert server.sent == ["phase_1", "phase_2"]
    assert (said.status, said.response.content, said.info["phase"]) == (422, body, "FAILED")


@pytest.mark.req("P-8.1-a")
def test_a_bare_failure_is_answered_again_to_the_same_call(tmp_path: Path) -> None:
    with (
        foreign(phase_2=[answer(422, body=b"why")]) as server,
        caller("httpx2", tmp_path) as http,
        calling(client_correlation_id="the-call"),
    ):
        one, two = http.post(f"{server.url}/orders"), http.post(f"{server.url}/orders")
    assert [(said.status, said.text, said.info["phase"]) for said in (one, two)] == [(422, "why", "FAILED")] * 2


# Polls.

FAILURES = {
    "text": answer(422, "Content-Type: text/plain", body=b"out of stock", phase="FAILED"),
    "bytes": answer(500, "Content-Type: application/octet-stream", body=b"\xff\x00\xfe", phase="FAILED"),
    "nothing": answer(409, phase="FAILED"),
    "json": answer(422, "Content-Type: application/json", body=b'{"status":"failed"}', phase="FAILED"),
    "200 and json": answer(200, "Content-Type: application/json", body=b'{"status":"failed"}', phase="FAILED"),
    "200 and a list": answer(200, "Content-Type: application/json", body=b'[{"status":500}]', phase="FAILED"),
    "200 and its own status": answer(
        200, "Content-Type: application/json", body=b'{"phase":"FAILED","status":200,"body":"x"}', phase="FAILED"
    ),
    "200 and no json": answer(200, "Content-Type: application/json", body=b"\xff{", phase="FAILED"),
    "200 and nothing": answer(200, phase="FAILED"),
    "410": answer(410, "Content-Type: text/html; charset=latin-1", body="é".encode("latin-1"), phase="FAILED"),
    "large": answer(500, "Content-Type: text/plain", body=b"x" * 300_000, phase="FAILED"),
    "large json": answer(
        200, "Content-Type: application/json", body=json.dumps("x" * 300_000).encode(), phase="FAILED"
    ),
}


@pytest.mark.req("P-5.3.3-e", "A-04")
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("httpx2", shape) for shape in FAILURES),
        *((name, shape) for name in ("httpx async", "requests") for shape in ("bytes", "200 and json", "large")),
    ],
)
def test_a_poll_that_says_failed_keeps_its_status_and_body(name: str, shape: str, tmp_path: Path) -> None:
    time, poll = HandTime(), FAILURES[shape]
    processing = answer(202, phase="PROCESSING")
    with (
        foreign(phase_2=[ACCEPTED], status=[processing, poll]) as server,
        caller(name, tmp_path, steady=time, pause=time.pause) as http,
    ):
        said = http.post(f"{server.url}/orders")
        assert server.sent == ["phase_1", "phase_2", "status", "status"]
    head, _blank, body = poll.partition(b"\r\n\r\n")
    assert (said.status, said.response.content) == (int(head.split()[1]), body)
    declared = [line.partition(b": ")[2].decode() for line in head.split(b"\r\n") if line.startswith(b"Content-Type")]
    assert [said.headers[name] for name in said.headers if name == "content-type"] == declared
    assert (said.info["phase"], said.info["mode"]) == ("FAILED", "async")
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).outcome is Phase.FAILED


@pytest.mark.req("A-04", "A-08")
@pytest.mark.parametrize(("status", "told"), [(307, 307), (422, 422), (503, 500)])
def test_a_failure_in_the_form_of_twophp_has_the_status_that_it_holds(status: int, told: int, tmp_path: Path) -> None:
    body = json.dumps({"phase": "FAILED", "status": status, "body": "why", "more": 1}).encode()
    poll = answer(200, "Content-Type: application/json", body=body, phase="FAILED")
    time = HandTime()
    with (
        foreign(phase_2=[ACCEPTED], status=[poll]) as server,
        caller("httpx2", tmp_path, steady=time, pause=time.pause) as http,
    ):
        said = http.post(f"{server.url}/orders")
    assert (said.status, said.text, said.info["phase"]) == (told, "why", "FAILED")


@pytest.mark.req("P-5.3.3-e", "P-5.3.3-c", "A-04")
@pytest.mark.parametrize(
    ("method", "accepted", "path"),
    [
        ("POST", ACCEPTED, "/orders/r1"),
        ("POST", answer(202, "DTT-2PHP-Resource-ID: a/b?c", phase="PROCESSING"), "/orders/a%2Fb%3Fc"),
        ("POST", answer(202, phase="PROCESSING"), "/orders"),
        ("PUT", ACCEPTED, "/orders"),
        ("POST", answer(202, "Location: /jobs/7", "DTT-2PHP-Resource-ID: r1", phase="PROCESSING"), "/jobs/7"),
    ],
)
def test_a_202_is_asynchronous_with_or_without_a_location(
    method: str, accepted: bytes, path: str, tmp_path: Path
) -> None:
    time = HandTime()
    with (
        foreign(phase_2=[accepted], status=[answer(202, phase="PROCESSING"), COMMITTED]) as server,
        caller("httpx2", tmp_path, steady=time, pause=time.pause) as http,
    ):
        said = http.request(method, f"{server.url}/orders", json={})
        assert server.lines[2:] == [f"GET {path}"] * 2
    assert (said.info["mode"], said.info["phase"], said.text) == ("async", "COMMITTED", "done")


@pytest.mark.req("P-5.3.3-e")
def test_a_202_is_still_asynchronous_for_who_takes_the_call_over(tmp_path: Path) -> None:
    time = HandTime()
    with foreign(phase_2=[ACCEPTED], status=[answer(202, phase="PROCESSING")] * 2 + [COMMITTED]) as server:
        named, options = calling(client_correlation_id="the-call"), {"steady": time, "pause": time.pause}
        with caller("httpx2", tmp_path, poll_limit_s=0.1, **options) as http, named:
            assert failing(http, f"{server.url}/orders").code == "still_processing"
        with caller("httpx2", tmp_path, clock=Later(), **options) as http, named:
            assert http.post(f"{server.url}/orders").info["mode"] == "async"


# Phase 1.


@pytest.mark.req("A-06")
@pytest.mark.parametrize(
    "headers",
    [
        ["DTT-2PHP-TTL: 30000"],
        ["DTT-2PHP-PONR-Deadline: 2030-01-01T00:00:00Z"],
        ["DTT-2PHP-TTL: soon"],
        ["DTT-2PHP-TTL: 30000", f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}"],
        [f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}"],
    ],
)
@pytest.mark.parametrize("name", ["httpx2", "requests"])
def test_a_registration_that_names_no_phase_is_no_plain_success(headers: list[str], name: str, tmp_path: Path) -> None:
    with foreign(phase_1=[answer(200, *headers)]) as server, caller(name, tmp_path) as http:
        error = failing(http, f"{server.url}/orders")
        assert server.sent == ["phase_1"]
    assert (error.code, error.advice, error.response.status_code) == ("bad_answer", Advice.CHECK, 200)
    assert ledger(tmp_path / "checkout.db") == []


@pytest.mark.req("A-06")
@pytest.mark.parametrize("status", [302, 404, 409, 500])
@pytest.mark.parametrize("callback", [None, SOMEWHERE])
def test_who_requires_2php_is_not_told_that_a_refusal_has_done_it(
    status: int, callback: str | None, tmp_path: Path
) -> None:
    with (
        foreign(phase_1=[answer(status, body=b"no")]) as server,
        caller("httpx2", tmp_path, require_2php=True, callback=callback) as http,
    ):
        said = http.post(f"{server.url}/orders")
        assert server.sent == ["phase_1"]
    assert (said.status, said.text, said.info["mode"], said.info["phase"]) == (status, "no", "plain", None)
    assert ledger(tmp_path / "checkout.db") == []


# Auto-confirm: this server runs every request, as often as it comes.

DONE = answer(200, f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}", "DTT-2PHP-Resource-ID: r1", phase="COMMITTED")


@pytest.mark.req("P-5.5.5-d", "A-42")
@pytest.mark.parametrize("require_2php", [True, False])
@pytest.mark.parametrize("status", [NOT_FOUND, answer(200, body=b"a page"), answer(404, MESSAGE), COMMITTED])
def test_with_both_channels_silent_a_server_that_may_not_know_the_id_is_not_asked_again(
    status: bytes, require_2php: bool, tmp_path: Path
) -> None:
    time = HandTime()
    options: dict[str, Any] = {"callback": SOMEWHERE, "require_2php": require_2php, "steady": time, "pause": time.pause}
    with foreign(phase_1=[DONE, LOST, DONE], status=[status]) as server, caller("httpx2", tmp_path, **options) as http:
        assert http.post(f"{server.url}/orders").info["phase"] == "COMMITTED", "it is known to speak 2PHP"
        error = failing(http, f"{server.url}/orders")
        with caller("httpx2", tmp_path, clock=Later(60_000), **options) as later:
            (left,) = later.reconcile().left
        assert (server.sent.count("phase_1"), server.runs) == (2, 2)
    assert (error.code, error.advice, error.phase) == ("answer_lost", Advice.CHECK, None)
    assert left.code == "answer_lost"
    assert sum(time.waits) >= 5, "the callback had its time"


@pytest.mark.req("P-5.5.5-b", "A-41", "A-42")
def test_the_callback_is_waited_for_before_anything_is_repeated(tmp_path: Path) -> None:
    time = HandTime()
    statuses: list[int] = []

    def acknowledge() -> None:
        (id_,) = server.ids
        said = Acknowledgement(server_correlation_id=SERVER_ID, client_correlation_id=id_, dispatched_at=0)
        statuses.append(delivered(tmp_path, said))

    def pause(seconds: float) -> None:
        time.pause(seconds)
        if len(time.waits) == 3:
            thread = threading.Thread(target=acknowledge)
            thread.start()
            thread.join()

    options: dict[str, Any] = {"callback": SOMEWHERE, "require_2php": True, "steady": time, "pause": pause}
    with foreign(phase_1=[LOST], status=[COMMITTED]) as server, caller("httpx2", tmp_path, **options) as http:
        said = http.post(f"{server.url}/orders")
    assert (statuses, server.sent, server.runs) == ([204], ["phase_1", "status"], 1)
    assert (said.info["phase"], said.info["server_correlation_id"]) == ("COMMITTED", SERVER_ID)


@pytest.mark.req("A-41", "A-42")
@pytest.mark.parametrize("name", ["httpx2", "httpx async", "requests"])
def test_an_auto_confirmed_answer_that_broke_off_has_told_the_ids(name: str, tmp_path: Path) -> None:
    """So the outcome is asked for with both, and the request is not repeated."""
    fields = ["Content-Length: 900", f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}", "DTT-2PHP-Phase-State: COMMITTED"]
    broken = "\r\n".join(["HTTP/1.1 200 OK", *fields, "", "do"]).encode()
    with foreign(phase_1=[broken]) as server, caller(name, tmp_path, callback=SOMEWHERE) as http:
        said = http.post(f"{server.url}/orders")
        assert server.sent == ["phase_1", "phase_2"]
    assert (said.text, said.info["phase"], said.info["server_correlation_id"]) == ("done", "COMMITTED", SERVER_ID)


@pytest.mark.req("P-5.5.7-c", "A-42")
@pytest.mark.parametrize("name", ["httpx2", "requests"])
@pytest.mark.parametrize(
    "said_so",
    [
        answer(500, body=b"why"),
        answer(503, body=b"why"),
        answer(422, body=b"why"),
        answer(500, "Content-Type: application/problem+json", MESSAGE, body=b"why"),
    ],
)
def test_a_bare_failure_of_an_auto_confirmed_request_is_returned_and_not_repeated(
    said_so: bytes, name: str, tmp_path: Path
) -> None:
    with (
        foreign(phase_1=[DONE, said_so, DONE]) as server,
        caller(name, tmp_path, callback=SOMEWHERE, require_2php=True) as http,
    ):
        http.post(f"{server.url}/orders")
        said = http.post(f"{server.url}/orders")
        assert (server.sent, server.runs) == (["phase_1"] * 2, 2)
    assert (said.status, said.text) == (int(said_so.split()[1]), "why")


@pytest.mark.req("P-5.5.7-c")
@pytest.mark.parametrize(("status", "phase"), [(422, "FAILED"), (500, "FAILED"), (200, "COMMITTED")])
def test_an_auto_confirmed_outcome_counts_without_a_server_id(status: int, phase: str, tmp_path: Path) -> None:
    with (
        foreign(phase_1=[answer(status, body=b"why", phase=phase)]) as server,
        caller("httpx2", tmp_path, callback=SOMEWHERE) as http,
    ):
        said = http.post(f"{server.url}/orders")
    assert (said.status, said.text, said.info["phase"], server.runs) == (status, "why", phase, 1)
    assert committed(tmp_path / "checkout.db") == [], "a row needs both ids"
    with caller("httpx2", tmp_path, callback=SOMEWHERE, clock=Later(60_000), require_2php=True) as http:
        assert http.reconcile().left == (), "nothing is left to repeat"


@pytest.mark.req("A-42")
@pytest.mark.parametrize("status", [202, 409])
def test_what_is_processing_under_no_server_id_is_not_repeated_blindly(status: int, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"callback": SOMEWHERE, "steady": time, "pause": time.pause}
    with foreign(phase_1=[answer(status, phase="PROCESSING")]) as server, caller("httpx2", tmp_path, **options) as http:
        error = failing(http, f"{server.url}/orders")
    assert (error.code, error.advice, server.runs) == ("answer_lost", Advice.CHECK, 1)


OURS = answer(404, "Content-Type: application/problem+json", "DTT-2PHP-Message: No such intent.")


@pytest.mark.req("A-42")
@pytest.mark.parametrize("second", [EXPIRED, answer(401, "Content-Type: text/plain"), NOT_FOUND])
def test_a_repeated_auto_confirmed_request_that_is_refused_means_check(second: bytes, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"callback": SOMEWHERE, "require_2php": True, "steady": time, "pause": time.pause}
    with (
        foreign(phase_1=[LOST, second], status=[OURS]) as server,
        caller("httpx2", tmp_path, resubmit=1, **options) as http,
    ):
        error = failing(http, f"{server.url}/orders")
        assert server.sent == ["phase_1", "status", "phase_1"]
    assert (error.code, error.advice) == ("ttl_expired" if second is EXPIRED else "answer_lost", Advice.CHECK)
    assert len(server.ids) == 1
    with caller("httpx2", tmp_path, clock=Later(60_000), **options) as http:
        (left,) = http.reconcile().left
    assert left.client_correlation_id == error.client_correlation_id, "a call that may have run is not forgotten"


@pytest.mark.req("A-42", "A-83")
@pytest.mark.parametrize(("days", "code", "again"), [(0, "answer_lost", 1), (2, "forgotten", 0)])
def test_nothing_is_repeated_that_a_server_may_have_forgotten(days: int, code: str, again: int, tmp_path: Path) -> None:
    time = HandTime()
    options: dict[str, Any] = {"callback": SOMEWHERE, "require_2php": True, "steady": time, "pause": time.pause}
    with foreign(phase_1=[LOST, NOT_FOUND], status=[OURS]) as server:
        with caller("httpx2", tmp_path, patience_s=0.0, **options) as http:
            assert failing(http, f"{server.url}/orders").code == "no_answer"
        assert server.sent == ["phase_1"]
        with caller("httpx2", tmp_path, clock=Later(60_000 + days * 86_400_000), **options) as http:
            (left,) = http.reconcile().left
        assert (left.code, server.sent.count("phase_1")) == (code, 1 + again)


PROCESSING = answer(202, f"DTT-2PHP-Server-Correlation-ID: {SERVER_ID}", phase="PROCESSING")


@pytest.mark.req("P-5.3.2-g", "A-42")
@pytest.mark.parametrize("status", [404, 405, 409])
@pytest.mark.parametrize("callback", [None, SOMEWHERE])
def test_what_runs_already_is_not_failed_because_a_confirm_is_refused(
    callback: str | None, status: int, tmp_path: Path
) -> None:
    """Where Phase 1 says PROCESSING no confirm is the first; a server that confirms by itself may not take any."""
    time = HandTime()
    options: dict[str, Any] = {"callback": callback, "steady": time, "pause": time.pause}
    with (
        foreign(phase_1=[PROCESSING], phase_2=[answer(status, body=b"no")]) as server,
        caller("httpx2", tmp_path, **options) as http,
    ):
        error = failing(http, f"{server.url}/orders")
        assert server.sent == ["phase_1", "status", "phase_2"]
    assert (error.code, error.advice, error.phase) == ("confirm_refused", Advice.CHECK, "PROCESSING")


@pytest.mark.req("A-42")
def test_an_auto_confirmed_call_is_not_gone_on_with_as_another_kind_of_call(tmp_path: Path) -> None:
    """It may have run: a transport without ``callback`` would register and confirm it once more."""
    time = HandTime()
    options: dict[str, Any] = {"require_2php": True, "steady": time, "pause": time.pause}
    with (
        foreign(phase_1=[LOST, REGISTERED]) as server,
        caller("httpx2", tmp_path, callback=SOMEWHERE, **options) as auto,
        caller("httpx2", tmp_path, **options) as standard,
    ):
        errors = [failing(http, f"{server.url}/orders") for http in (auto, standard)]
        assert (server.sent.count("phase_1"), server.runs) == (1, 1)
    assert {error.code for error in errors} == {"answer_lost"}
    assert len({error.client_correlation_id for error in errors}) == 1
