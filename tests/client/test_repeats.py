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

from tests.client.callers import HandTime, Said, caller, settings
from tests.client.cutting import GREETING, Answer, Origin, Step, origin
from twophp.client import Advice, AsyncTwoPhaseTransport, PhaseError, calling, repeats
from twophp.stores.clock import system_clock

BLOCKING = ["httpx", "httpx2", "requests"]
ATTEMPTS = 6


def bare(post: Callable[..., Any]) -> Callable[..., Any]:
    """What ``@tenacity.retry`` does by default, though not for ever."""
    return tenacity.retry(stop=tenacity.stop_after_attempt(ATTEMPTS), reraise=True)(post)


def after_every_third_byte(server: Origin, step: Step, post: Callable[[int], object]) -> None:
    """More answers break off than one call's patience bears; the last attempt of the loop hears a whole one."""
    post(-1)
    for at in range(0, len(server.sent[step]), 3):
        server.cuts = {step: [at] * 8}
        post(at)


@pytest.mark.req("A-42", "A-28")
@pytest.mark.parametrize("step", ["phase_1", "phase_2"])
@pytest.mark.parametrize("kind", BLOCKING)
def test_a_bare_retry_makes_one_call(kind: str, step: Step, tmp_path: Path) -> None:
    time, began = HandTime(), system_clock()
    moved = {"steady": time, "pause": time.pause, "clock": lambda: began + time.now}
    with origin() as server, caller(kind, tmp_path, patience_s=2, require_2php=True, **moved) as http:
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
        time, began = HandTime(), system_clock()
        moved = {"steady": time, "pause": time.pause, "clock": lambda: began + time.now}
        made = AsyncTwoPhaseTransport(**settings(tmp_path, patience_s=2, require_2php=True, **moved))
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
        async with httpx2.AsyncClient(transport=made) as http:
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
def test_another_thread_a_name_or_a_later_time_makes_another_call() -> None:
    def look(now: int) -> str | None:
        return repeats.made_before("ledger", "order", now)

    def check() -> None:
        repeats.begun("ledger", "order", "c-1", 0)
        assert (look(1), look(repeats.REMEMBERED_MS)) == ("c-1", None)
        assert repeats.made_before("other ledger", "order", 1) is None
        assert repeats.made_before("ledger", "other order", 1) is None
        assert contextvars.Context().run(look, 1) is None, "a thread begins with nothing"
        repeats.ended("c-1")
        assert look(1) is None
        repeats.ended("c-1", ended=False)
        assert look(1) == "c-1"
        repeats.begun("ledger", "order", "c-2", 2)
        assert look(3) == "c-2"
        for number in range(repeats.MOST):
            repeats.begun("ledger", f"other {number}", f"d-{number}", 3)
        assert look(4) is None, "the oldest are forgotten"

    contextvars.Context().run(check)


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
