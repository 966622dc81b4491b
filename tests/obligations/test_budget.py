"""Budgets: how many obligations of a flow may be Reserved at a time, exact over threads, processes and crashes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from tests.obligations.processes import run_workers
from tests.obligations.scene import TIMEOUT_MS, Scene, codes
from twophp.obligations import BudgetExhausted


@pytest.mark.req("A-78")
def test_a_full_flow_takes_no_more_until_one_is_settled(scene: Scene) -> None:
    with scene.tracker(flow_budget={"publish": 2}) as tracker:
        first, second = (tracker.reserve("publish", None, "t") for _ in range(2))
        with pytest.raises(BudgetExhausted) as error:
            tracker.reserve("publish", None, "t")
        assert error.value.code == "flow_budget_exhausted"
        assert codes(tracker) == ["OBL-001", "OBL-001"]
        tracker.reserve("revoke", None, "t")  # Another flow has another budget, or none.
        tracker.commit(first, "t")
        third = tracker.reserve("publish", None, "t")
        tracker.rollback(second, "t")
        tracker.rollback(third, "t")
        assert [tracker.reserve("publish", None, "t") for _ in range(2)]


@pytest.mark.req("A-78")
def test_whoever_is_overdue_keeps_nobody_from_a_budget(scene: Scene) -> None:
    with scene.tracker(flow_budget=1) as tracker:
        tracker.reserve("publish", None, "t")
        scene.clock.now += TIMEOUT_MS
        tracker.reserve("publish", None, "t")
        assert codes(tracker) == ["OBL-001", "OBL-004", "OBL-001"]
        with pytest.raises(BudgetExhausted):
            tracker.reserve("publish", None, "t")


def test_a_holder_that_makes_room_gives_its_place_on(scene: Scene) -> None:
    with scene.tracker(flow_budget=1) as tracker:
        tracker.reserve("publish", {"key": "k"}, "t")
        scene.clock.now += TIMEOUT_MS
        tracker.reserve("publish", {"key": "k"}, "t")
        with pytest.raises(BudgetExhausted):
            tracker.reserve("publish", {"key": "other"}, "t")


def test_there_is_no_limit_unless_one_is_given(scene: Scene) -> None:
    with scene.tracker() as tracker:
        assert len({tracker.reserve("publish", None, "t") for _ in range(300)}) == 300


def test_a_scan_gives_places_back(scene: Scene) -> None:
    with scene.tracker(flow_budget=3) as tracker:
        for _ in range(3):
            tracker.reserve("publish", None, "t")
        scene.clock.now += TIMEOUT_MS
        assert len(tracker.run_leak_scan().leaked) == 3
        assert [tracker.reserve("publish", None, "t") for _ in range(3)]


def test_what_was_not_counted_is_not_subtracted(tmp_path: Path) -> None:
    scene = Scene("sqlite", tmp_path)
    with scene.tracker() as tracker:
        uncounted = [tracker.reserve("publish", None, "t") for _ in range(3)]
    with scene.tracker(flow_budget=2) as tracker:
        counted = tracker.reserve("publish", None, "t")
        for oid in uncounted:
            tracker.commit(oid, "t")
        tracker.reserve("publish", None, "t")
        with pytest.raises(BudgetExhausted):
            tracker.reserve("publish", None, "t")
    with scene.tracker() as tracker:  # Switched off, it still counts down what it counted up.
        tracker.commit(counted, "t")
    with scene.tracker(flow_budget=2) as tracker:
        tracker.reserve("publish", None, "t")
        with pytest.raises(BudgetExhausted):
            tracker.reserve("publish", None, "t")


def test_of_many_threads_as_many_are_admitted_as_there_are_places(scene: Scene) -> None:
    with scene.tracker(flow_budget=10) as tracker:

        def take(_n: int) -> bool:
            try:
                tracker.reserve("publish", None, "t")
            except BudgetExhausted:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(take, range(40))) == 10


def test_of_many_processes_together_no_more_are_admitted(tmp_path: Path) -> None:
    path = tmp_path / "effects.db"
    admitted = [int(output) for output in run_workers(path, "budget", seeds=(1, 2, 3))]
    assert sum(admitted) == 20
    connection = apsw.Connection(str(path))
    assert list(connection.execute("SELECT flow, reserved FROM budget")) == [("publish", 20)]
    connection.close()
