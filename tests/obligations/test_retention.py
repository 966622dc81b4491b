"""Settled obligations are kept for a while, and their history for ever."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests.obligations.scene import Scene, codes, refused
from tests.obligations.test_scan import Turns
from twophp.core.errors import ConfigError
from twophp.obligations import State, as_json_line, check_chain
from twophp.stores.sqlite.verify import verify

DAY_MS = 86_400_000


@pytest.mark.req("OBL-INV-5", "A-59")
def test_what_was_settled_a_month_ago_is_let_go_of_and_its_history_stays(scene: Scene) -> None:
    with scene.tracker() as tracker:
        oids = [tracker.reserve("publish", {"key": f"k{number}"}, "t") for number in range(600)]
        for oid in oids[:500]:
            tracker.commit(oid, "t")
        tracker.run_leak_scan()
        scene.clock.now += 30_000
        assert len(tracker.run_leak_scan().leaked) == 100
        before = codes(tracker)
        held = tracker.reserve("publish", {"key": "held"}, "t", timeout_secs=90 * 86_400.0)
        scene.clock.now += 30 * DAY_MS
        late = tracker.reserve("publish", {"key": "late"}, "t")
        tracker.commit(late, "t")
        runtime = tracker._runtime
        assert tracker._run(runtime.obligations.forget()) == 500, "at the very end of their time the leaked ones stay"
        scene.clock.now += 1
        assert tracker._run(runtime.obligations.forget()) == 100
        assert {one.obligation_id for one in tracker.list()} == {held, late}
        assert codes(tracker)[: len(before)] == before, "the audit is what it was"
        assert check_chain([as_json_line(line) for line in tracker.audit()]) == len(before) + 3
        with refused("ERR_OBL_NOT_FOUND"):
            tracker.commit(oids[0], "t")
        assert tracker.commit(held, "t").changed
    if scene.kind == "sqlite":
        assert verify(str(scene.path)).holds
        _delete(scene, late)
        found = verify(str(scene.path)).findings
        assert [(one.what, one.subject) for one in found] == [("record_missing", late)], "forgotten is not deleted"


def _delete(scene: Scene, oid: str) -> None:
    connection = apsw.Connection(str(scene.path))
    connection.execute("DELETE FROM obligation WHERE obligation_id = ?", (oid,))
    connection.close()


def test_a_tracker_forgets_while_it_scans_unless_it_is_told_to_keep_everything(scene: Scene) -> None:
    for retention, left in ((3_600.0, []), (None, [State.COMMITTED])):
        turns = Turns()
        with scene.tracker(retention_secs=retention, scan_interval_secs=5.0, wait=turns) as tracker:
            turns.wait_for_turn()
            tracker.commit(tracker.reserve("publish", {"key": "k"}, "t"), "t")
            scene.clock.now += 3_600_001
            turns.go_on()
            turns.wait_for_turn()
            assert [one.state for one in tracker.list()] == left


def test_a_retention_is_positive() -> None:
    with pytest.raises(ConfigError):
        Scene("memory", Path()).tracker(retention_secs=0)
