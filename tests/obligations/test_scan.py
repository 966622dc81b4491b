"""The leak oracle: what it finds, what it says, and that it comes by."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.obligations.scene import GUARD_S, TIMEOUT_MS, Scene, Sink, codes
from twophp.core.errors import KeyMissing, StoreUnavailable
from twophp.engine.obligations import flow as obligations
from twophp.obligations import ObligationTracker, State
from twophp.stores.vault import KeyRing


@pytest.mark.req("OBL-LEAK-2", "OBL-LEAK-3", "OBL-LEAK-5", "OBL-LEAK-6", "OBL-LEAK-7", "A-74", "A-77", "T4-4")
def test_a_scan_rolls_back_what_is_at_or_over_its_timeout_and_nothing_else(
    scene: Scene, tracker: ObligationTracker
) -> None:
    over = tracker.reserve("publish", {"key": "over"}, "t-over")
    scene.clock.now += 1
    at = tracker.reserve("publish", {"key": "at"}, "t-at")
    scene.clock.now += 1
    under = tracker.reserve("publish", {"key": "under"}, "t-under")
    done, gone = (tracker.reserve("revoke", {"key": key}, "t") for key in ("done", "gone"))
    tracker.commit(done, "t")
    tracker.rollback(gone, "t")
    scene.clock.now += TIMEOUT_MS - 1
    before = len(codes(tracker))
    found = tracker.run_leak_scan("t-scan")
    assert found.scanned == 3
    assert [one.obligation_id for one in found.leaked] == [over, at]
    told = list(tracker.audit())[before:]
    assert [(line.code, line.obligation_id) for line in told] == [("OBL-004", over), ("OBL-004", at), ("OBL-005", "")]
    assert told[-1].detail == "scanned=3 leaked=2"
    assert [tracker.get(oid).state for oid in (over, at, under, done, gone)] == [
        State.ROLLED_BACK,
        State.ROLLED_BACK,
        State.RESERVED,
        State.COMMITTED,
        State.ROLLED_BACK,
    ]
    tracker.reserve("publish", {"key": "over"}, "t")  # Its resources are free again.


@pytest.mark.req("OBL-LEAK-7", "OBL-EVT-5")
def test_a_scan_that_finds_nothing_says_so(tracker: ObligationTracker) -> None:
    assert tracker.run_leak_scan().scanned == 0
    assert codes(tracker) == ["OBL-005"]


@pytest.mark.req("OBL-INV-2", "A-71")
def test_one_whose_key_is_gone_keeps_no_other_from_being_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene, release, lost, ring = Scene("sqlite", tmp_path), Sink(), KeyRing.generate(), KeyRing.generate()
    with scene.tracker(keys=lost, releases={"publish": release}) as tracker:
        locked, owes_nothing = (
            tracker.reserve("publish", {"key": "a"}, "t"),
            tracker.reserve("revoke", {"key": "a"}, "t"),
        )
    both = KeyRing(lost.keys | ring.keys, ring.active)
    with scene.tracker(keys=both, releases={"publish": release}) as tracker:
        open_ = tracker.reserve("publish", {"key": "b"}, "t")
    with scene.tracker(keys=ring, releases={"publish": release}) as tracker:
        assert tracker.rollback(owes_nothing, "t").changed
        with pytest.raises(KeyMissing):
            tracker.rollback(locked, "t")
        scene.clock.now += TIMEOUT_MS
        assert [one.obligation_id for one in tracker.run_leak_scan().leaked] == [open_]
        assert f"keys to their payloads: 1, the first is {locked}" in caplog.text
        release.wait_for(1)
    with scene.tracker(keys=both, releases={"publish": release}) as tracker:  # The key is back, and nothing was lost.
        assert [one.obligation_id for one in tracker.run_leak_scan().leaked] == [locked]
        release.wait_for(2)
    assert [(effect.obligation_id, effect.payload) for effect in release.seen] == [
        (open_, {"key": "b"}),
        (locked, {"key": "a"}),
    ]


@pytest.mark.req("OBL-INV-2")
@pytest.mark.parametrize("most", [3, 2])
def test_nor_do_more_than_a_scan_looks_at_together(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(obligations, "SCAN_PAGE", 1)
    monkeypatch.setattr(obligations, "MOST_LEFT", most)
    scene, lost, ring = Scene("sqlite", tmp_path), KeyRing.generate(), KeyRing.generate()
    with scene.tracker(keys=lost, releases={"publish": Sink()}) as tracker:
        locked = [tracker.reserve("publish", {"key": name}, "t") for name in "ab"]
    scene.clock.now += 1
    both = KeyRing(lost.keys | ring.keys, ring.active)
    with scene.tracker(keys=both, releases={"publish": Sink()}) as tracker:
        behind = tracker.reserve("publish", {"key": "c"}, "t")
    scene.clock.now += TIMEOUT_MS
    with scene.tracker(keys=ring, releases={"publish": Sink()}) as tracker:
        leaked = [one.obligation_id for one in tracker.run_leak_scan().leaked]
    assert leaked == ([behind] if most > len(locked) else []), "there is a bound, or a scan might never end"
    assert caplog.text.count(f"keys to their payloads: 2, the first is {locked[0]}") == 1


@pytest.mark.req("OBL-LEAK-4")
def test_a_clock_that_goes_backwards_leaks_nothing(scene: Scene, tracker: ObligationTracker) -> None:
    oid = tracker.reserve("publish", None, "t")
    scene.clock.now -= 10 * TIMEOUT_MS
    assert tracker.run_leak_scan().leaked == ()
    assert tracker.commit(oid, "t").changed


@pytest.mark.req("OBL-LEAK-5")
def test_a_scan_takes_as_many_transactions_as_it_needs(scene: Scene, tracker: ObligationTracker) -> None:
    with ThreadPoolExecutor(32) as pool:
        ids = set(pool.map(lambda _n: tracker.reserve("publish", None, "t"), range(600)))
    scene.clock.now += TIMEOUT_MS
    found = tracker.run_leak_scan()
    assert found.scanned == 600
    assert {one.obligation_id for one in found.leaked} == ids
    assert codes(tracker).count("OBL-004") == 600


class Turns:
    """A wait that lets the test say when a turn is over."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._began = threading.Semaphore(0)
        self._go: asyncio.Event | None = None

    async def __call__(self, stopping: asyncio.Event, seconds: float) -> None:
        self.waits.append(seconds)
        self._loop, self._go = asyncio.get_running_loop(), asyncio.Event()
        self._began.release()
        ends = [asyncio.create_task(event.wait()) for event in (stopping, self._go)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    def wait_for_turn(self) -> None:
        assert self._began.acquire(timeout=GUARD_S)

    def go_on(self) -> None:
        assert self._go is not None
        self._loop.call_soon_threadsafe(self._go.set)


@pytest.mark.req("OBL-INV-6", "OBL-LEAK-2", "A-76")
@pytest.mark.parametrize("interval", [2.5, 5])
def test_the_oracle_comes_by_on_its_interval(scene: Scene, interval: float) -> None:
    turns = Turns()
    with scene.tracker(scan_interval_secs=interval, wait=turns) as tracker:
        turns.wait_for_turn()
        oid = tracker.reserve("publish", None, "t")
        turns.go_on()
        turns.wait_for_turn()
        assert tracker.get(oid).state is State.RESERVED
        scene.clock.now += TIMEOUT_MS
        turns.go_on()
        turns.wait_for_turn()
        assert tracker.get(oid).resolution == "leak_scan"
        assert codes(tracker) == ["OBL-005", "OBL-001", "OBL-005", "OBL-004", "OBL-005"]
    assert set(turns.waits) == {interval}


@pytest.mark.req("A-76")
def test_without_a_word_the_oracle_comes_by_every_five_seconds(scene: Scene) -> None:
    turns = Turns()
    with ObligationTracker(scene.url, clock=scene.clock, wait=turns):
        turns.wait_for_turn()
    assert turns.waits == [5.0]


def test_an_oracle_whose_store_is_away_comes_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns = Turns()
    with scene.tracker(scan_interval_secs=5.0, wait=turns) as tracker:
        turns.wait_for_turn()

        def away(*_args: Any) -> Any:
            raise StoreUnavailable("the disk is away")

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(tracker._runtime.store, "reserved", away)
            turns.go_on()
            turns.wait_for_turn()
            assert "will be made again" in caplog.text
        turns.go_on()
        turns.wait_for_turn()
        assert codes(tracker) == ["OBL-005", "OBL-005"]


def test_closing_ends_every_thread(scene: Scene) -> None:
    before = set(threading.enumerate())
    tracker = scene.tracker(scan_interval_secs=5.0, effects={"publish": lambda _effect: None})
    assert {thread.name for thread in set(threading.enumerate()) - before} >= {"twophp-obligations"}
    tracker.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert all(name.startswith("twophp-effect") for name in left)
