"""The audit log as JSON lines, the leak report, and the metrics."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from tests.obligations.scene import T0, TIMEOUT_MS, Scene, Sink, refused
from twophp.core.errors import ConfigError, JournalBroken
from twophp.obligations import ObligationTracker, as_json_line, check_chain


def busy(scene: Scene, tracker: ObligationTracker) -> None:
    """One of everything."""
    first = tracker.reserve("publish", {"key": "a"}, "t1")
    tracker.commit(first, "t2")
    second = tracker.reserve("publish", {"key": "a"}, "t3")
    tracker.rollback(second, "t4")
    tracker.reserve("revoke", {"key": "b"}, "t5")
    scene.clock.now += TIMEOUT_MS
    tracker.run_leak_scan("t6")
    tracker.acquire("printer", "t7")


@pytest.mark.req("OBL-INV-5", "OBL-SM-2", "OBL-EVT-1", "OBL-EVT-2", "OBL-EVT-3", "OBL-EVT-4", "OBL-EVT-5")
def test_the_export_tells_everything_in_order(scene: Scene, tracker: ObligationTracker) -> None:
    busy(scene, tracker)
    lines = [json.loads(as_json_line(line)) for line in tracker.audit()]
    assert [(line["code"], line["trace_id"]) for line in lines] == [
        ("OBL-001", "t1"),
        ("OBL-002", "t2"),
        ("OBL-001", "t3"),
        ("OBL-003", "t4"),
        ("OBL-001", "t5"),
        ("OBL-004", "t6"),
        ("OBL-005", "t6"),
        ("OBL-001", "t7"),
    ]
    assert [line["event"] for line in lines][:2] == ["Obligation reserved", "Obligation committed"]
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    leak = lines[5]
    assert (leak["before"], leak["after"], leak["detail"]) == ("Reserved", "RolledBack", "ERR_OBL_LEAK_TIMEOUT")
    assert lines[7]["token"] == 1


def test_a_line_that_was_changed_or_left_out_breaks_the_chain(scene: Scene, tracker: ObligationTracker) -> None:
    busy(scene, tracker)
    lines = [as_json_line(line) for line in tracker.audit()]
    assert check_chain(lines) == 8
    assert check_chain([]) == 0
    without = [*lines[:3], *lines[4:]]
    swapped = [lines[1], lines[0], *lines[2:]]
    edited = [lines[0].replace(b'"t1"', b'"t9"'), *lines[1:]]
    for broken in (without, swapped, edited, [b"{}"], ["not json"]):
        with pytest.raises(JournalBroken):
            check_chain(broken)


def test_other_history_in_the_same_store_is_no_part_of_it(scene: Scene) -> None:
    sink = Sink()
    with scene.tracker(effects={"publish": sink}) as tracker:
        tracker.commit(tracker.reserve("publish", None, "t"), "t")
        sink.wait_for(1)
        lines = [as_json_line(line) for line in tracker.audit()]
    assert check_chain(lines) == 2


def test_a_long_log_is_read_to_its_end() -> None:
    with ObligationTracker("memory:", scan_interval_secs=None) as tracker:
        for _ in range(2_500):
            tracker.run_leak_scan()
        assert check_chain(as_json_line(line) for line in tracker.audit()) == 2_500


@pytest.mark.req("OBL-INV-2")
def test_the_report_and_its_verdict(scene: Scene, tracker: ObligationTracker) -> None:
    assert tracker.report().verdict == "NO_LEAKS"
    tracker.commit(tracker.reserve("publish", None, "t"), "t")
    tracker.rollback(tracker.reserve("publish", None, "t"), "t")
    tracker.reserve("revoke", None, "t")
    calm = tracker.report()
    assert (calm.verdict, calm.reserved, calm.committed, calm.rolled_back) == ("NO_LEAKS", 1, 1, 1)
    scene.clock.now += TIMEOUT_MS
    late = tracker.report()
    assert (late.verdict, late.overdue, late.leaked) == ("LEAKS", 1, 0)
    tracker.run_leak_scan()
    after = tracker.report()
    assert (after.verdict, after.overdue, after.leaked, after.leaked_by_flow) == ("LEAKS", 0, 1, {"revoke": 1})
    assert after.rolled_back == 2
    assert tracker.report(since=T0 + 1).verdict == "NO_LEAKS"


def test_metrics_count_by_flow_and_state(scene: Scene) -> None:
    registry = CollectorRegistry()
    with scene.tracker(metrics=registry) as tracker:
        oid = tracker.reserve("publish", {"key": "a"}, "t")
        with refused("ERR_OBL_DUPLICATE_RESERVE"):
            tracker.reserve("publish", {"key": "a"}, "t")
        tracker.commit(oid, "t")
        tracker.reserve("revoke", None, "t")
        scene.clock.now += TIMEOUT_MS
        tracker.run_leak_scan()
        with refused("ERR_OBL_NOT_FOUND"):
            tracker.commit("nobody", "t")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"service": "obligations", **labels})

    entered = "twophp_obligations_total"
    assert value(entered, flow="publish", state="Reserved", resolution="") == 1
    assert value(entered, flow="publish", state="Committed", resolution="caller") == 1
    assert value(entered, flow="revoke", state="RolledBack", resolution="leak_scan") == 1
    refusals = "twophp_obligation_refusals_total"
    assert value(refusals, flow="publish", code="ERR_OBL_DUPLICATE_RESERVE") == 1
    assert value(refusals, flow="", code="ERR_OBL_NOT_FOUND") == 1
    with pytest.raises(ConfigError):
        scene.tracker(metrics="yes")
    scene.tracker(metrics=registry).close()  # A second tracker counts into the same metrics.
