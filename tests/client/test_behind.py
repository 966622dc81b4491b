"""The outcome is written behind the answer: soon, in order, and never at the price of a call (ADR 19)."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.client.callers import KINDS, caller, settings
from tests.client.shop import Shop, committed, ledger
from tests.client.test_reconciler import ROOT, Later
from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport, calling, write_behind
from twophp.core.call_commands import ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.intent import Phase
from twophp.core.machine import Replay

FOREVER_S = 3_600.0


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written by itself."""
    monkeypatch.setattr(write_behind, "DELAY_S", FOREVER_S)


def phases(folder: Path) -> list[str]:
    """What is on the disk right now."""
    return sorted(row[2] for row in committed(folder / "checkout.db"))


@pytest.mark.usefixtures("never")
@pytest.mark.req("P-5.2.3-a", "P-10.2-a", "A-47")
def test_it_goes_to_the_disk_with_the_next_row_and_at_the_latest_when_the_transport_is_closed(
    kind: str, orders: Shop, tmp_path: Path
) -> None:
    with caller(kind, tmp_path) as http:
        assert http.post(f"{orders.url}/orders").info["phase"] == "COMMITTED"
        assert phases(tmp_path) == ["WAITING_CONFIRM"], "the caller did not wait for it"
        http.post(f"{orders.url}/orders")
        assert phases(tmp_path) == ["COMMITTED", "WAITING_CONFIRM"]
    assert phases(tmp_path) == ["COMMITTED", "COMMITTED"]
    assert [row.version for row in ledger(tmp_path / "checkout.db")] == [2, 2]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when an outcome has reached the disk."""
    event, ended = threading.Event(), write_behind.WriteBehindQueue._ended

    def noting(waiting: write_behind.WriteBehindQueue, *outcome: Any) -> None:
        ended(waiting, *outcome)
        event.set()

    monkeypatch.setattr(write_behind.WriteBehindQueue, "_ended", noting)
    return event


@pytest.mark.req("P-10.2-a")
def test_it_goes_by_itself_when_nobody_comes_by(orders: Shop, tmp_path: Path, written: threading.Event) -> None:
    with caller("httpx2", tmp_path) as http:
        http.post(f"{orders.url}/orders")
        assert written.wait(PATIENCE_S)
        assert phases(tmp_path) == ["COMMITTED"]


@pytest.mark.req("P-10.2-a")
def test_it_goes_by_itself_in_a_loop_too(orders: Shop, tmp_path: Path, written: threading.Event) -> None:
    async def call() -> list[str]:
        async with httpx2.AsyncClient(
            transport=AsyncTwoPhaseTransport(**settings(tmp_path)), timeout=PATIENCE_S
        ) as http:
            await http.post(f"{orders.url}/orders")
            assert await asyncio.to_thread(written.wait, PATIENCE_S)
            return phases(tmp_path)

    assert asyncio.run(call()) == ["COMMITTED"]


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("kind", ["httpx2", "httpx2 async"])
def test_the_same_call_made_again_knows_how_it_ended(kind: str, orders: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path) as http, calling(client_correlation_id="the-call"):
        first, again = http.post(f"{orders.url}/orders"), http.post(f"{orders.url}/orders")
    assert (first.json, first.info) == (again.json, again.info)
    assert orders.lines() == ["POST /orders", "POST /orders/confirm", "POST /orders/confirm"]
    assert len(orders.runs) == 1


@pytest.mark.usefixtures("never")
def test_two_callers_of_one_call_take_no_room_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the disk, whether the first one's word still waits or is being written."""
    monkeypatch.setattr(write_behind, "MOST", 2)
    told = ServerReply(phase=Phase.COMMITTED, by="phase_2", at=0)
    written: list[str] = []

    async def write(id_: str, _told: ServerReply) -> CallDecision:
        written.append(id_)
        return CallDecision(Replay(), None)

    async def tell() -> None:
        waiting = write_behind.BehindOnLoop(write)
        assert [waiting.add("one", told), waiting.add("one", told)] == [True, False]
        waiting.hurry()
        assert not waiting.add("one", told)
        await waiting.flush()
        assert [waiting.add(id_, told) for id_ in ("one", "two", "three")] == [True, True, False]
        await waiting.close()

    asyncio.run(tell())
    assert written == ["one", "one", "two"]


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("kind", ["httpx2", "httpx2 async"])
def test_the_reconciler_does_not_ask_about_what_is_only_on_its_way(kind: str, orders: Shop, tmp_path: Path) -> None:
    clock = Later(0)
    with caller(kind, tmp_path, clock=clock) as http:
        http.post(f"{orders.url}/orders")
        clock.by_ms = 6_000  # Its lease is over.
        done = http.reconcile()
        assert (done.settled, done.left, phases(tmp_path)) == ((), (), ["COMMITTED"])
    assert orders.lines() == ["POST /orders", "POST /orders/confirm"]


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("kind", ["httpx2", "httpx2 async"])
def test_when_too_many_are_on_their_way_the_caller_waits(
    kind: str, orders: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "MOST", 1)
    with caller(kind, tmp_path) as http:
        http.post(f"{orders.url}/orders")
        for count in (1, 2):  # The row of each takes the one before along, so it is never full here ...
            http.post(f"{orders.url}/orders")
            assert phases(tmp_path) == ["COMMITTED"] * count + ["WAITING_CONFIRM"]
        monkeypatch.setattr(write_behind, "MOST", 0)
        http.post(f"{orders.url}/orders")  # ... and here it is.
        assert phases(tmp_path) == ["COMMITTED"] * 4


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_process_that_closes_nothing_leaves_nothing_open(colour: str, orders: Shop, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.client.ending", str(tmp_path), f"{orders.url}/orders", colour]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert [row.phase for row in ledger(tmp_path / "checkout.db")] == [Phase.COMMITTED]
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("never")
@pytest.mark.req("A-42", "A-49")
def test_what_could_not_be_written_is_said_and_found_out_later(
    orders: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Later(0)
    transport = TwoPhaseTransport(**settings(tmp_path, clock=clock))
    here = transport._machinery._handles.here
    assert here is not None
    with (
        httpx2.Client(transport=transport, timeout=PATIENCE_S) as http,
        caplog.at_level(logging.WARNING, "twophp.client"),
    ):
        said = http.post(f"{orders.url}/orders", json={"item": 1}).extensions["twophp"]
        here._handle._capacity = 0  # Its queue is full.
        here.flush()
        (told,) = [record for record in caplog.records if "could not record it" in record.message]
        assert "store_overloaded" in told.message
        assert vars(told)["client_correlation_id"] == said["client_correlation_id"]
        assert phases(tmp_path) == ["WAITING_CONFIRM"], "open, as far as the ledger knows"
        here._handle._capacity = 64
        clock.by_ms = 6_000
        (settled,) = transport.reconcile().settled
    assert (settled.client_correlation_id, settled.phase) == (said["client_correlation_id"], "COMMITTED")
    assert len(orders.runs) == 1


@pytest.mark.req("A-43", "A-06", "A-49")
@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("kind", KINDS)
def test_what_only_the_client_knows_is_waited_for(kind: str, orders: Shop, tmp_path: Path) -> None:
    """Only the client knows that it will not confirm the call, so that the call may be made anew."""
    steady = Ticking()
    orders.on_heard = lambda _heard: steady.jump()
    with caller(kind, tmp_path, steady=steady) as http, pytest.raises(Exception, match="ttl_expired"):
        http.post(f"{orders.url}/orders")
    assert phases(tmp_path) == ["TTL_EXPIRED"]
    assert orders.lines() == ["POST /orders"]


class Ticking:
    """A steady clock that is an hour on after the first request."""

    def __init__(self) -> None:
        self._now = 50_000

    def __call__(self) -> int:
        return self._now

    def jump(self) -> None:
        self._now += 3_600_000
