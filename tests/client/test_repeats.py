"""A retry loop that catches everything makes no second call: the same request goes on under the ids it had."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import tenacity

from tests.client.callers import KINDS, HandTime, Said, caller, settings
from tests.client.cutting import GREETING, Answer, Origin, Step, origin
from tests.client.foreign import LOST, answer, foreign
from tests.patience import PATIENCE_S
from twophp.client import Advice, AsyncTwoPhaseTransport, PhaseError, calling, repeats
from twophp.stores.clock import system_clock

BLOCKING = ["httpx", "httpx2", "requests"]
ATTEMPTS = 6


def bare(post: Callable[..., Any]) -> Callable[..., Any]:
    """What ``@tenacity.retry`` does by default, though not for ever."""
    return tenacity.retry(stop=tenacity.stop_after_attempt(ATTEMPTS), reraise=True)(post)


def moved(time: HandTime) -> dict[str, Any]:
    began = system_clock()
    return {"steady": time, "pause": time.pause, "clock": lambda: began + time.now}


def failing(post: Callable[[], object]) -> PhaseError:
    with pytest.raises(PhaseError) as raised:
        post()
    return raised.value


def after_every_third_byte(server: Origin, step: Step, post: Callable[[int], object]) -> None:
    """More answers break off than one call's patience bears; the last attempt of the loop receives a whole one."""
    post(-1)
    for at in range(0, len(server.sent[step]), 3):
        server.cuts = {step: [at] * 8}
        post(at)


@pytest.mark.req("A-42", "A-28")
@pytest.mark.parametrize("step", ["phase_1", "phase_2"])
@pytest.mark.parametrize("kind", BLOCKING)
def test_a_bare_retry_makes_one_call(kind: str, step: Step, tmp_path: Path) -> None:
    with origin() as server, caller(kind, tmp_path, patience_s=2, require_2php=True, **moved(HandTime())) as http:
        again = bare(http.post)
        heard: list[Said] = []
        after_every_third_byte(server, step, lambda at: heard.append(again(f"{server.url}/orders", json={"n": at})))
    assert {said.text for said in heard} == {GREETING.decode()}
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-06", "A-28")
@pytest.mark.parametrize("kind", BLOCKING)
def test_a_bare_retry_sends_nothing_to_a_plain_server_twice(kind: str, tmp_path: Path) -> None:
    with origin(plain=True) as server, caller(kind, tmp_path, patience_s=0) as http:
        again = bare(http.post)
        for at in (0, 20, 50):
            server.cuts = {"phase_1": [at] * ATTEMPTS}
            with pytest.raises(PhaseError) as raised:
                again(f"{server.url}/orders", json={"n": at})
            assert (raised.value.code, raised.value.advice) == ("answer_lost", Advice.CHECK)
            assert len(server.cuts["phase_1"]) == ATTEMPTS - 1, "it was sent once"
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-06")
def test_a_plain_answer_that_breaks_off_in_its_readers_hands_is_not_asked_for_again(tmp_path: Path) -> None:
    long = Answer(b"0123456789" * 20_000)
    with origin(long, plain=True) as server, caller("requests", tmp_path) as http:
        server.cuts = {"phase_1": [100_000] * ATTEMPTS}
        with pytest.raises(PhaseError):
            bare(http.post)(f"{server.url}/orders", json={"n": 1})
        assert len(server.cuts["phase_1"]) == ATTEMPTS - 1
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42", "A-28")
@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_bare_retry_of_a_task_makes_one_call(library: Any, tmp_path: Path) -> None:
    async def run(server: Origin) -> set[str]:
        options = settings(tmp_path, patience_s=2, require_2php=True, **moved(HandTime()))
        made = AsyncTwoPhaseTransport(**options)
        async with library.AsyncClient(transport=made) as http:
            again = bare(http.post)
            texts = {(await again(f"{server.url}/orders", json={"n": -1})).text}
            for step in ("phase_1", "phase_2"):
                for at in range(0, len(server.sent[step]), 7):
                    server.cuts = {step: [at] * 8}
                    texts.add((await again(f"{server.url}/orders", json={step: at})).text)
        return texts

    with origin() as server:
        assert asyncio.run(run(server)) == {GREETING.decode()}
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42")
def test_a_time_limit_around_a_call_ends_the_waiting_and_not_the_call(tmp_path: Path) -> None:
    async def run(server: Origin) -> tuple[str, str]:
        made = AsyncTwoPhaseTransport(**settings(tmp_path, require_2php=True, reconcile_every_s=None, lease_s=0.2))
        async with httpx2.AsyncClient(transport=made, timeout=PATIENCE_S) as http:
            server.cuts = {"phase_2": [0] * 3}  # It pauses before it asks again.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await http.post(f"{server.url}/orders", json={"n": 1})
            said = await http.post(f"{server.url}/orders", json={"n": 1})
            return said.text, said.extensions["twophp"]["phase"]

    with origin() as server:
        assert asyncio.run(run(server)) == (GREETING.decode(), "COMMITTED")
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-28")
def test_what_has_come_to_an_end_is_not_the_same_call_again(tmp_path: Path) -> None:
    with origin() as server, caller("httpx2", tmp_path) as http:
        ids = {http.post(f"{server.url}/orders", json={"n": 1}).info["client_correlation_id"] for _ in range(3)}
    assert len(ids) == 3
    assert set(server.runs.values()) == {3}


@pytest.mark.req("A-28")
def test_another_thread_or_a_later_time_makes_another_call() -> None:
    def look(now: int, request: str = "order") -> str | None:
        return repeats.made_before(request, now)

    def check() -> None:
        repeats.left("order", "c-1", 0, has_ended=False)
        assert (look(1), look(repeats.REMEMBERED_MS)) == ("c-1", None)
        assert look(1, "other order") is None
        assert contextvars.Context().run(look, 1) is None, "a thread begins with nothing"
        repeats.left("order", "c-1", 1, has_ended=True)
        assert look(2) is None
        repeats.broke_off("c-1")
        assert look(2) == "c-1"
        for number in range(100):
            repeats.left(f"ended {number}", f"e-{number}", 2, has_ended=True)
        assert look(3) == "c-1", "calls that went well push nothing out"
        for number in range(repeats.MOST):
            repeats.left(f"other {number}", f"d-{number}", 3, has_ended=False)
        assert (look(4), look(4, "other 0")) == (None, "d-0"), "the oldest are forgotten"

    contextvars.Context().run(check)


@pytest.mark.req("A-42")
def test_a_call_that_was_polled_for_long_is_remembered_from_then_on(tmp_path: Path) -> None:
    slow = answer(202, "Retry-After: 30", phase="PROCESSING")
    with foreign(phase_2=[slow], status=[slow]) as server, caller("httpx2", tmp_path, **moved(HandTime())) as http:
        error = failing(lambda: http.post(f"{server.url}/orders"))
        assert (error.code, error.advice) == ("still_processing", Advice.WAIT)
        assert failing(lambda: http.post(f"{server.url}/orders")).client_correlation_id == error.client_correlation_id
        assert len(server.ids) == 1


@pytest.mark.req("A-42")
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_makes_a_client_for_each_attempt_makes_one_call(kind: str, tmp_path: Path) -> None:
    def once() -> str:
        with caller(kind, tmp_path, patience_s=0, require_2php=True) as http:
            return http.post(f"{server.url}/orders", json={"n": 1}).text

    with origin() as server:
        server.cuts = {"phase_2": [0] * 4}
        if kind.endswith("async"):  # Each run of a loop has tasks of its own, so the call has a name.
            with calling(client_correlation_id="one"):
                assert bare(once)() == GREETING.decode()
        else:
            assert bare(once)() == GREETING.decode()
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42")
def test_a_second_pass_over_what_failed_makes_no_second_call(tmp_path: Path) -> None:
    items = range(40)
    with origin() as server, caller("httpx2", tmp_path, patience_s=0, require_2php=True, **moved(HandTime())) as http:
        for n in items:
            server.cuts = {"phase_2": [0] * 8}
            failing(lambda n=n: http.post(f"{server.url}/orders", json={"n": n}))  # type: ignore[misc]
        server.cuts = {}
        for n in items:
            assert http.post(f"{server.url}/orders", json={"n": n}).info["phase"] == "COMMITTED"
    assert len(server.runs) == len(items)
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42")
def test_what_was_left_open_is_gone_on_with_at_once(tmp_path: Path) -> None:
    """The reconciler asks about it less and less often; its caller need not wait for that."""
    with foreign(phase_2=[LOST], status=[LOST]) as server, caller("httpx2", tmp_path, **moved(HandTime())) as http:
        errors = [failing(lambda: http.post(f"{server.url}/orders")) for _ in range(8)]
    assert {error.code for error in errors} == {"no_answer"}
    assert len(server.ids) == 1


@pytest.mark.req("A-42", "A-51")
def test_the_same_request_of_another_user_or_parent_is_another_call(tmp_path: Path) -> None:
    """A worker's thread serves one request after the other, and they may be alike."""

    def post(user: str, parent: str) -> Said:
        with calling(parent=parent):
            return http.post(f"{server.url}/orders", headers={"Authorization": f"Bearer {user}"})

    with origin() as server, caller("httpx2", tmp_path, patience_s=0, require_2php=True) as http:
        server.cuts = {"phase_2": [0] * 8}
        first = failing(lambda: post("a", "x")).client_correlation_id
        server.cuts = {}
        ids = [post(*who).info["client_correlation_id"] for who in (("b", "x"), ("a", "y"), ("a", "x"))]
    assert ids[2] == first
    assert len({*ids}) == 3


@pytest.mark.req("A-06", "A-28")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 20, 50])
def test_a_named_call_is_not_sent_to_a_plain_server_twice(kind: str, at: int, tmp_path: Path) -> None:
    with origin(plain=True) as server, caller(kind, tmp_path, patience_s=0) as http:
        server.cuts = {"phase_1": [at]}
        for _ in range(3):
            with calling(client_correlation_id=f"{kind} {at}".replace(" ", "-")):
                error = failing(lambda: http.post(f"{server.url}/orders"))
            assert (error.code, error.advice) == ("answer_lost", Advice.CHECK)
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42")
def test_a_caller_who_wants_the_same_again_names_the_call(tmp_path: Path) -> None:
    with origin() as server, caller("httpx2", tmp_path, patience_s=0, require_2php=True) as http:
        http.post(f"{server.url}/orders", json={"warm": 1})
        server.cuts = {"phase_2": [0] * 2}
        with pytest.raises(PhaseError):
            http.post(f"{server.url}/orders", json={"n": 1})
        server.cuts = {}
        with calling(client_correlation_id="a-second-one"):
            assert http.post(f"{server.url}/orders", json={"n": 1}).info["phase"] == "COMMITTED"
    assert sorted(server.runs.values()) == [1, 2]
