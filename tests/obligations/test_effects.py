"""What commits make visible and rollbacks release: durable with the decision, delivered at least once after it."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.obligations.processes import run_workers
from tests.obligations.scene import GUARD_S, TIMEOUT_MS, Scene, Sink, codes, refused
from twophp.core.errors import StoreError
from twophp.core.job import Tries
from twophp.delivery.calling import AT_A_TIME
from twophp.engine.obligations.effects import decode_payload, encode_payload
from twophp.obligations import Effect, ObligationTracker, State, Statement


@pytest.mark.req("OBL-RSV-4", "OBL-CMT-2", "A-72", "OBL-INV-1")
def test_an_effect_is_visible_after_the_commit_and_not_before(scene: Scene) -> None:
    sink = Sink()
    with scene.tracker(effects={"publish": sink}) as tracker:
        held = tracker.reserve("publish", {"key": "held"}, "t1")
        done = tracker.reserve("publish", {"key": "done", "n": 7}, "t2")
        tracker.commit(done, "t-commit")
        sink.wait_for(1)
        assert sink.ids == [done]
        seen = sink.seen[0]
        assert (seen.flow, seen.key, seen.trace_id, seen.payload) == ("publish", "done", "t2", {"key": "done", "n": 7})
        tracker.rollback(held, "t")
        other = tracker.reserve("revoke", {"key": "x"}, "t")
        tracker.commit(other, "t")  # No effect is declared for this flow.
    assert sink.ids == [done]


@pytest.mark.req("A-72")
def test_an_effect_that_fails_is_delivered_again_under_the_same_id(scene: Scene) -> None:
    sink = Sink(failures=2)
    tries = Tries(first_delay_ms=1, factor=1)
    with scene.tracker(effects={"publish": sink}, tries=tries, wait=_impatiently(scene)) as tracker:
        oid = tracker.reserve("publish", b"raw", "t")
        tracker.commit(oid, "t")
        sink.wait_for(1)
        assert sink.attempts == 3
        assert (sink.ids, sink.seen[0].payload) == ([oid], b"raw")
        assert tracker.get(oid).state is State.COMMITTED


@pytest.mark.req("OBL-RBK-2", "A-71")
@pytest.mark.parametrize("how", ["rollback", "guard", "scan", "late commit", "overdue holder"])
def test_whatever_is_rolled_back_is_released_once(scene: Scene, how: str) -> None:
    release = Sink()
    with scene.tracker(releases={"publish": release}) as tracker:
        if how == "guard":
            with tracker.guard("publish", {"key": "k1"}, "t") as ob:
                oid = ob.obligation_id
        else:
            oid = tracker.reserve("publish", {"key": "k1"}, "t")
            _roll_back(tracker, scene, oid, how)
        release.wait_for(1)
        tracker.rollback(oid, "t")
        assert [(effect.obligation_id, effect.payload) for effect in release.seen] == [(oid, {"key": "k1"})]
        assert release.seen[0].resolution == {"rollback": "caller", "guard": "guard"}.get(how, "leak_scan")
    assert release.ids == [oid]


def _roll_back(tracker: ObligationTracker, scene: Scene, oid: str, how: str) -> None:
    if how == "rollback":
        tracker.rollback(oid, "t")
        return
    scene.clock.now += TIMEOUT_MS
    if how == "scan":
        tracker.run_leak_scan()
    elif how == "late commit":
        with refused("ERR_OBL_LEAK_TIMEOUT"):
            tracker.commit(oid, "t")
    else:
        tracker.reserve("publish", {"key": "k1"}, "t")


@pytest.mark.req("A-71", "OBL-INV-4")
def test_a_release_that_raises_is_made_again_and_the_rollback_stands(scene: Scene) -> None:
    release = Sink(failures=1)
    tries = Tries(first_delay_ms=1, factor=1)
    with scene.tracker(releases={"publish": release}, tries=tries, wait=_impatiently(scene)) as tracker:
        oid = tracker.reserve("publish", {"key": "k1"}, "t")
        assert tracker.rollback(oid, "t").changed
        assert tracker.get(oid).state is State.ROLLED_BACK
        release.wait_for(1)
    assert release.ids == [oid]


def _impatiently(scene: Scene) -> Any:
    """A wait in which time passes by itself."""

    async def wait(news: asyncio.Event, _seconds: float) -> None:
        scene.clock.now += 5
        await asyncio.sleep(0)
        news.set()

    return wait


def test_an_act_may_be_a_coroutine(scene: Scene) -> None:
    seen: list[str] = []
    done = threading.Event()

    async def publish(effect: Effect) -> None:
        await asyncio.sleep(0)
        seen.append(effect.obligation_id)
        done.set()

    with scene.tracker(effects={"publish": publish}) as tracker:
        oid = tracker.reserve("publish", None, "t")
        tracker.commit(oid, "t")
        assert done.wait(GUARD_S)
    assert seen == [oid]


@pytest.mark.req("A-72")
def test_a_function_that_never_returns_keeps_the_effects_of_its_own_flow_and_no_others(scene: Scene) -> None:
    begun, go_on, sink = threading.Semaphore(0), threading.Event(), Sink()

    def never_returns(_effect: Effect) -> None:
        begun.release()
        assert go_on.wait(GUARD_S)

    with scene.tracker(effects={"publish": never_returns, "revoke": sink}) as tracker:
        for _ in range(AT_A_TIME):
            tracker.commit(tracker.reserve("publish", None, "t"), "t")
        assert all(begun.acquire(timeout=GUARD_S) for _ in range(AT_A_TIME))
        tracker.commit(tracker.reserve("publish", None, "t"), "t")
        tracker.commit(tracker.reserve("revoke", None, "t"), "t")
        try:
            sink.wait_for(1)
        finally:
            go_on.set()


def test_a_process_ends_although_a_function_never_returns(tmp_path: Path) -> None:
    assert run_workers(tmp_path / "effects.db", "stuck", [0]) == ["at the end\n"]


def test_a_function_that_wants_to_end_the_process_has_failed_and_no_more(scene: Scene) -> None:
    done, attempts = threading.Event(), list[str]()

    def publish(effect: Effect) -> None:
        attempts.append(effect.obligation_id)
        if len(attempts) < 2:
            sys.exit("the receiver is away")
        done.set()

    tries = Tries(first_delay_ms=1, factor=1)
    with scene.tracker(effects={"publish": publish}, tries=tries, wait=_impatiently(scene)) as tracker:
        oid = tracker.reserve("publish", None, "t")
        tracker.commit(oid, "t")
        assert done.wait(GUARD_S)
        assert tracker.get(oid).state is State.COMMITTED
    assert attempts == [oid, oid]


@pytest.mark.req("OBL-CMT-2", "A-72")
def test_an_effect_that_nobody_could_deliver_waits_for_the_next_start(tmp_path: Path) -> None:
    scene, away, back = Scene("sqlite", tmp_path), Sink(failures=1_000), Sink()
    with scene.tracker(effects={"publish": away}) as tracker:
        oid = tracker.reserve("publish", {"key": "k"}, "t")
        tracker.commit(oid, "t")
        away.wait_for_attempts(1)
    scene.clock.now += 60_000
    with scene.tracker(effects={"publish": back}) as tracker:
        back.wait_for(1)
        assert tracker.get(oid).state is State.COMMITTED
    assert back.ids == [oid]


def _business(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    try:
        return [row[0] for row in connection.execute("SELECT what FROM done ORDER BY what")]
    finally:
        connection.close()


def _with_business(tmp_path: Path) -> Scene:
    scene = Scene("sqlite", tmp_path)
    with scene.tracker():
        pass
    connection = apsw.Connection(str(scene.path))
    connection.execute("CREATE TABLE done (what TEXT PRIMARY KEY)")
    connection.close()
    return scene


def _insert(*what: str) -> Statement:
    return Statement(sql="INSERT INTO done VALUES (?)", rows=[(one,) for one in what])


@pytest.mark.req("A-72", "OBL-INV-3")
def test_local_effects_are_applied_in_the_very_commit(tmp_path: Path) -> None:
    scene = _with_business(tmp_path)
    with scene.tracker() as tracker:
        oid = tracker.reserve("migration", {"key": "step-1"}, "t")
        tracker.commit(oid, "t", apply=[_insert("a"), _insert("b")])
        with tracker.guard("migration", {"key": "step-2"}, "t") as ob:
            ob.commit(apply=_insert("c"))
    assert _business(scene.path) == ["a", "b", "c"]


@pytest.mark.req("OBL-INV-3", "OBL-OV-2")
def test_a_local_effect_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    scene, sink = _with_business(tmp_path), Sink()
    with scene.tracker(effects={"migration": sink}) as tracker:
        first = tracker.reserve("migration", {"key": "step-1"}, "t")
        tracker.commit(first, "t", apply=_insert("a"))
        sink.wait_for(1)
        oid = tracker.reserve("migration", {"key": "step-2"}, "t")
        before = codes(tracker)
        with pytest.raises(StoreError) as error:
            tracker.commit(oid, "t", apply=[_insert("b"), _insert("a")])
        assert error.value.code == "constraint"
        assert tracker.get(oid).state is State.RESERVED
        assert codes(tracker) == before
        assert _business(scene.path) == ["a"]
        tracker.commit(oid, "t", apply=_insert("b"))  # Nothing was lost: it can still be done.
        sink.wait_for(2)
    assert _business(scene.path) == ["a", "b"]
    assert sink.ids == [first, oid]


@pytest.mark.req("OBL-INV-3", "A-73")
def test_a_refused_commit_applies_nothing(tmp_path: Path) -> None:
    scene = _with_business(tmp_path)
    with scene.tracker() as tracker:
        oid = tracker.reserve("migration", {"key": "step-1"}, "t")
        scene.clock.now += TIMEOUT_MS
        with refused("ERR_OBL_LEAK_TIMEOUT"):
            tracker.commit(oid, "t", apply=_insert("a"))
    assert _business(scene.path) == []


def test_memory_applies_no_sql() -> None:
    with ObligationTracker("memory:", scan_interval_secs=None) as tracker:
        oid = tracker.reserve("publish", None, "t")
        with pytest.raises(StoreError) as error:
            tracker.commit(oid, "t", apply=_insert("a"))
        assert error.value.code == "no_sql"
        assert tracker.get(oid).state is State.RESERVED


@pytest.mark.parametrize("payload", [None, {"a": 1}, "text", b"", b"bytes", b"{}", [], 7, False])
def test_a_payload_comes_back_as_it_was_and_those_of_earlier_releases_too(payload: object) -> None:
    assert decode_payload(encode_payload(payload)) == payload
    if payload is not None and not isinstance(payload, bytes):
        assert decode_payload(b"j" + msgspec.json.encode(payload)) == payload
