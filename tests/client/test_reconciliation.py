"""``reconcile()`` reports the outcome of each call, and never takes an unknown outcome for a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.callers import caller
from tests.client.shop import Shop, served, shop
from tests.client.test_reconciler import Later, crashed
from twophp.client import Advice, Reconciliation, Resolved

TTL_OVER_MS = 60_000


def told(found: Resolved) -> tuple[Any, ...]:
    return found.phase, found.outcome, found.code, found.advice, found.status, found.is_open


def one(done: Reconciliation) -> Resolved:
    (found,) = (*done.settled, *done.left)
    assert done.counts == {
        outcome: int(outcome == found.outcome)
        for outcome in ("committed", "failed", "indeterminate", "expired", "open")
    }
    assert bool(done.left) is found.is_open
    return found


@pytest.mark.req("A-42")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/orders", ("COMMITTED", "committed", None, Advice.DONE, 200, False)),
        ("/invalid", ("FAILED", "failed", None, Advice.DONE, 422, False)),
        ("/broken", ("FAILED", "failed", None, Advice.DONE, 500, False)),
    ],
)
def test_what_the_handler_answered_is_told(
    kind: str, path: str, expected: tuple[Any, ...], orders: Shop, tmp_path: Path
) -> None:
    crashed(tmp_path, f"{orders.url}{path}", "after phase_2")
    with caller(kind, tmp_path, clock=Later()) as http:
        assert told(one(http.reconcile())) == expected


@pytest.mark.req("A-34", "A-42")
@pytest.mark.parametrize("late", [False, True], ids=["by a confirm", "by a status read"])
def test_an_indeterminate_outcome_is_not_told_as_a_failure(kind: str, late: bool, tmp_path: Path) -> None:
    """A foreign server says it in the same words, as it must: a status and a message, in any body."""
    with indeterminate() as url:
        crashed(tmp_path, f"{url}/orders", "before phase_2")
        with caller(kind, tmp_path, clock=Later(TTL_OVER_MS if late else 6_000)) as http:
            found = one(http.reconcile())
    assert (found.phase, found.outcome, found.code) == ("FAILED", "indeterminate", "outcome_indeterminate")
    assert (found.advice, found.is_open) == (Advice.CHECK, False)


@contextmanager
def indeterminate() -> Iterator[str]:
    """A server that registers, and does not know how anything ended."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            continue
        asked = dict(scope["headers"])
        has_ended = b"dtt-2php-server-correlation-id" in asked
        is_read = scope["method"] == "GET"
        headers = [
            (b"content-type", b"text/plain"),
            (b"dtt-2php-server-correlation-id", b"one"),
            (b"dtt-2php-phase-state", b"FAILED" if has_ended else b"WAITING_CONFIRM"),
        ]
        if has_ended:
            headers.append((b"dtt-2php-message", b"Outcome indeterminate."))
        else:
            headers.append((b"dtt-2php-ttl", b"30000"))
        status = 200 if is_read or not has_ended else 500
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"nobody knows"})

    with served(app, lifespan="off") as server:
        yield server.url


@pytest.mark.req("A-49", "A-42")
def test_what_was_not_confirmed_in_time_has_expired(tmp_path: Path) -> None:
    clock = Later(0)
    with shop(tmp_path, clock=clock) as orders:
        crashed(tmp_path, f"{orders.url}/orders", "before phase_2")
        clock.by_ms = TTL_OVER_MS
        with caller("httpx2", tmp_path, clock=clock) as http:
            found = one(http.reconcile())
    assert (found.phase, found.outcome, found.code, found.is_open) == ("TTL_EXPIRED", "expired", "ttl_expired", False)
    assert found.advice is Advice.CHECK, "a literal server says the same of what ran (draft §8.2)"
    assert orders.runs == []


@pytest.mark.req("A-42")
def test_what_cannot_be_found_out_says_why_and_what_to_do(tmp_path: Path) -> None:
    with shop(tmp_path) as orders:
        crashed(tmp_path, f"{orders.url}/orders", "after phase_2")
    with caller("httpx2", tmp_path, clock=Later()) as http:  # The server is gone.
        found = one(http.reconcile())
    assert told(found) == ("WAITING_CONFIRM", "open", "no_answer", Advice.WAIT, None, True)


@pytest.mark.req("A-42")
def test_a_run_counts_every_outcome(orders: Shop, tmp_path: Path) -> None:
    for number, path in enumerate(("/orders", "/orders", "/invalid")):
        crashed(tmp_path, f"{orders.url}{path}", "after phase_2", f"call-{number}")
    with shop(tmp_path / "gone") as gone:
        crashed(tmp_path, f"{gone.url}/orders", "before phase_2", "another")
    with caller("httpx2", tmp_path, clock=Later()) as http:
        assert http.reconcile().counts == {
            "committed": 2,
            "failed": 1,
            "indeterminate": 0,
            "expired": 0,
            "open": 1,
        }
        assert set(http.reconcile().counts.values()) == {0}
