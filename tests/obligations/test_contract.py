"""The contract at the tracker's edge, on both stores: reserve, commit, roll back, and each of the codes."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.obligations.scene import T0, TIMEOUT_MS, HandClock, Scene, codes, lines_of, refused
from twophp.core.errors import ConfigError, Refused, StoreUnavailable
from twophp.core.intent import Intent, Mode
from twophp.engine.current import RunningIntent, executing
from twophp.obligations import ObligationTracker, State, UnknownFlow


@pytest.fixture
def clock(scene: Scene) -> HandClock:
    return scene.clock


@pytest.mark.req("OBL-RSV-1", "OBL-RSV-3", "OBL-SM-2", "A-79")
def test_reserve_records_the_tentative_effect(tracker: ObligationTracker) -> None:
    oid = tracker.reserve("publish", {"key": "k1", "size": 3}, "trace-1")
    found = tracker.get(oid)
    assert (found.flow, found.key, found.trace_id, found.reserved_at) == ("publish", "k1", "trace-1", T0)
    assert found.state is State.RESERVED
    assert tracker.payload(oid) == {"key": "k1", "size": 3}
    assert [(line.code, line.trace_id) for line in lines_of(tracker, oid)] == [("OBL-001", "trace-1")]


@pytest.mark.req("OBL-RSV-2")
def test_a_thousand_reserves_have_a_thousand_ids(tracker: ObligationTracker) -> None:
    with ThreadPoolExecutor(32) as pool:
        assert len(set(pool.map(lambda _n: tracker.reserve("publish", None, "t"), range(1_000)))) == 1_000


@pytest.mark.req("OBL-CMT-1", "OBL-CMT-3", "OBL-EVT-2", "T4-1")
def test_commit(tracker: ObligationTracker, clock: HandClock) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t-reserve")
    clock.now += TIMEOUT_MS - 1
    decision = tracker.commit(oid, "t-commit")
    assert decision.changed
    found = tracker.get(oid)
    assert (found.state, found.settled_at, found.resolution) == (State.COMMITTED, clock.now, "caller")
    assert tracker.payload(oid) == {"key": "k1"}
    assert [(line.code, line.trace_id) for line in lines_of(tracker, oid)] == [
        ("OBL-001", "t-reserve"),
        ("OBL-002", "t-commit"),
    ]


@pytest.mark.req("OBL-RBK-1", "OBL-RBK-3", "OBL-EVT-3", "T4-2")
@pytest.mark.parametrize("after_ms", [0, TIMEOUT_MS, 10 * TIMEOUT_MS])
def test_rollback_even_if_it_is_late(tracker: ObligationTracker, clock: HandClock, after_ms: int) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t")
    clock.now += after_ms
    assert tracker.rollback(oid, "t-back").changed
    found = tracker.get(oid)
    assert (found.state, found.resolution) == (State.ROLLED_BACK, "caller")
    assert codes(tracker) == ["OBL-001", "OBL-003"]


@pytest.mark.req("OBL-RBK-2", "A-75")
@pytest.mark.parametrize("settle", ["commit", "rollback"])
def test_settling_frees_the_key_and_a_rollback_keeps_nothing(tracker: ObligationTracker, settle: str) -> None:
    first = tracker.reserve("publish", {"key": "k1"}, "t")
    getattr(tracker, settle)(first, "t")
    assert tracker.reserve("publish", {"key": "k1"}, "t") != first
    assert (tracker.payload(first) is None) == (settle == "rollback")


@pytest.mark.req("OBL-INV-4", "A-70", "OBL-ERR-2")
def test_rolling_back_again_succeeds_and_says_so(tracker: ObligationTracker) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t")
    results = [tracker.rollback(oid, "t") for _ in range(3)]
    assert [result.changed for result in results] == [True, False, False]
    assert results[2].information == "ERR_OBL_ALREADY_ROLLED_BACK"
    assert codes(tracker) == ["OBL-001", "OBL-003"]
    with refused("ERR_OBL_ALREADY_ROLLED_BACK"):
        tracker.rollback(oid, "t", strict=True)
    assert codes(tracker) == ["OBL-001", "OBL-003"]


@pytest.mark.req("OBL-ERR-1", "A-71", "T4-1", "T4-2")
def test_what_is_committed_is_neither_committed_again_nor_rolled_back(tracker: ObligationTracker) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t")
    tracker.commit(oid, "t")
    before = tracker.get(oid)
    with refused("ERR_OBL_ALREADY_COMMITTED") as error:
        tracker.commit(oid, "t")
    assert error.value.obligation == before
    with refused("ERR_OBL_ALREADY_COMMITTED"):
        tracker.rollback(oid, "t")
    assert tracker.get(oid) == before
    assert codes(tracker) == ["OBL-001", "OBL-002"]


@pytest.mark.req("OBL-ERR-2", "T4-1")
def test_what_is_rolled_back_is_not_committed(tracker: ObligationTracker) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t")
    tracker.rollback(oid, "t")
    with refused("ERR_OBL_ALREADY_ROLLED_BACK"):
        tracker.commit(oid, "t")
    assert codes(tracker) == ["OBL-001", "OBL-003"]


@pytest.mark.req("OBL-ERR-3", "A-71", "T4-1", "T4-2")
def test_what_nobody_reserved(tracker: ObligationTracker) -> None:
    for attempt in (tracker.commit, tracker.rollback, tracker.get):
        with refused("ERR_OBL_NOT_FOUND"):
            attempt("nobody", *(["t"] if attempt != tracker.get else []))
    assert codes(tracker) == []


@pytest.mark.req("OBL-ERR-4", "OBL-INV-2", "A-73", "A-74", "T4-1")
@pytest.mark.parametrize("late_ms", [0, 1, 100_000])
def test_a_late_commit_leaks_on_the_spot_though_no_scan_came_by(
    tracker: ObligationTracker, clock: HandClock, late_ms: int
) -> None:
    oid = tracker.reserve("publish", {"key": "k1"}, "t")
    clock.now += TIMEOUT_MS + late_ms
    with refused("ERR_OBL_LEAK_TIMEOUT"):
        tracker.commit(oid, "t")
    found = tracker.get(oid)
    assert (found.state, found.resolution) == (State.ROLLED_BACK, "leak_scan")
    assert [(line.code, line.at, line.detail) for line in lines_of(tracker, oid)][1:] == [
        ("OBL-004", T0 + TIMEOUT_MS, "ERR_OBL_LEAK_TIMEOUT")
    ]
    with refused("ERR_OBL_ALREADY_ROLLED_BACK"):
        tracker.commit(oid, "t")


@pytest.mark.req("OBL-ERR-5", "A-75", "T4-3")
def test_flow_and_key_belong_to_one_while_it_is_reserved(tracker: ObligationTracker) -> None:
    first = tracker.reserve("publish", {"key": "k1"}, "t")
    for payload, key in (({"key": "k1"}, None), ({"other": 1}, "k1"), (b"bytes", "k1")):
        with refused("ERR_OBL_DUPLICATE_RESERVE") as error:
            tracker.reserve("publish", payload, "t", key=key)
        assert error.value.obligation == tracker.get(first)
    tracker.reserve("revoke", {"key": "k1"}, "t")
    assert codes(tracker) == ["OBL-001", "OBL-001"]


@pytest.mark.req("A-75")
@pytest.mark.parametrize("payload", [{"a": [1, {"b": None}]}, b"the same bytes", "text", 7])
def test_without_a_key_the_payload_is_the_key(tracker: ObligationTracker, payload: Any) -> None:
    oid = tracker.reserve("publish", payload, "t")
    with refused("ERR_OBL_DUPLICATE_RESERVE"):
        tracker.reserve("publish", payload, "t")
    assert tracker.payload(oid) == payload


@pytest.mark.req("A-75")
@pytest.mark.parametrize("payload", [None, {}, b"", ""])
def test_nothing_collides_with_nothing(tracker: ObligationTracker, payload: Any) -> None:
    assert tracker.reserve("publish", payload, "t") != tracker.reserve("publish", payload, "t")


@pytest.mark.req("T4-3", "OBL-INV-2")
def test_an_overdue_holder_makes_room(tracker: ObligationTracker, clock: HandClock) -> None:
    first = tracker.reserve("publish", {"key": "k1"}, "t")
    clock.now += TIMEOUT_MS
    second = tracker.reserve("publish", {"key": "k1"}, "t")
    assert tracker.get(first).resolution == "leak_scan"
    assert tracker.get(second).state is State.RESERVED
    assert tracker.payload(first) is None
    assert tracker.payload(second) == {"key": "k1"}
    assert codes(tracker) == ["OBL-001", "OBL-004", "OBL-001"]


@pytest.mark.req("OBL-FLOW-1", "OBL-FLOW-2", "OBL-FLOW-3", "OBL-FLOW-4", "OBL-FLOW-5")
@pytest.mark.parametrize("flow", ["publish", "revoke", "quarantine", "migration", "fencing"])
def test_the_five_flows_are_taken_and_audited_under_their_names(tracker: ObligationTracker, flow: str) -> None:
    oid = tracker.reserve(flow, {"key": "k1"}, "t")
    assert lines_of(tracker, oid)[0].detail == flow


@pytest.mark.req("OBL-FLOW-6", "A-78")
def test_a_flow_of_ones_own_must_be_declared(scene: Scene) -> None:
    with scene.tracker(flows=["billing"]) as tracker:
        tracker.reserve("billing", None, "t")
        with pytest.raises(ValueError, match="other") as error:
            tracker.reserve("other", None, "t")
        assert isinstance(error.value, UnknownFlow)
        assert codes(tracker) == ["OBL-001"]


@pytest.mark.req("OBL-LEAK-1", "A-81")
def test_the_timeout_is_thirty_seconds_unless_tracker_or_obligation_say_otherwise(scene: Scene) -> None:
    with scene.tracker() as tracker:
        assert tracker.get(tracker.reserve("publish", None, "t")).timeout_ms == 30_000
        assert tracker.get(tracker.reserve("publish", None, "t", timeout_secs=0.5)).timeout_ms == 500
    with scene.tracker(leak_timeout_secs=7) as tracker:
        assert tracker.get(tracker.reserve("publish", None, "t")).timeout_ms == 7_000


@pytest.mark.parametrize("timeout_secs", [0, -1])
def test_a_timeout_that_is_none_is_refused(tracker: ObligationTracker, timeout_secs: int) -> None:
    with pytest.raises(Refused) as error:
        tracker.reserve("publish", None, "t", timeout_secs=timeout_secs)
    assert error.value.code == "bad_timeout"


def test_a_payload_that_cannot_be_stored_reserves_nothing(tracker: ObligationTracker) -> None:
    with pytest.raises(Refused) as error:
        tracker.reserve("publish", {"key": "k", "what": object()}, "t")
    assert error.value.code == "payload_not_canonical"
    assert "msgspec" not in error.value.message
    assert "JSON has texts, numbers, true, false, null, lists and objects" in error.value.message
    assert tracker.list() == []


@pytest.mark.req("A-78")
def test_a_guard_rolls_back_unless_it_was_committed(tracker: ObligationTracker) -> None:
    with tracker.guard("publish", {"key": "k1"}, "t") as forgotten:
        assert tracker.get(forgotten.obligation_id).state is State.RESERVED
    with pytest.raises(ZeroDivisionError), tracker.guard("publish", {"key": "k1"}, "t") as failed:
        _ = 1 // 0
    with tracker.guard("publish", {"key": "k1"}, "t") as done:
        done.commit()
    with tracker.guard("publish", {"key": "k1"}, "t") as given_up:
        given_up.rollback()
    found = [tracker.get(ob.obligation_id) for ob in (forgotten, failed, done, given_up)]
    assert [one.resolution for one in found] == ["guard", "guard", "caller", "caller"]
    assert [one.state.value for one in found] == ["RolledBack", "RolledBack", "Committed", "RolledBack"]


def test_a_guard_that_is_entered_again_guards_again(tracker: ObligationTracker) -> None:
    guard = tracker.guard("publish", {"key": "k1"}, "t")
    with guard:
        guard.commit()
    with guard:
        pass
    assert tracker.get(guard.obligation_id).state is State.ROLLED_BACK


def test_a_guard_that_comes_too_late_is_told_and_leaves_nothing(tracker: ObligationTracker, clock: HandClock) -> None:
    with refused("ERR_OBL_LEAK_TIMEOUT"), tracker.guard("publish", {"key": "k1"}, "t") as ob:
        clock.now += TIMEOUT_MS
        ob.commit()
    assert tracker.get(ob.obligation_id).resolution == "leak_scan"
    assert codes(tracker) == ["OBL-001", "OBL-004"]


def test_a_guard_whose_obligation_somebody_committed_ends_in_peace(tracker: ObligationTracker) -> None:
    with tracker.guard("publish", {"key": "k1"}, "t") as ob:
        tracker.commit(ob.obligation_id, "t")
    assert tracker.get(ob.obligation_id).state is State.COMMITTED


@pytest.mark.req("OBL-SM-2", "A-79")
def test_the_trace_id_may_be_left_out_inside_an_intent_alone(tracker: ObligationTracker) -> None:
    with pytest.raises(ConfigError) as error:
        tracker.reserve("publish", None)
    assert error.value.code == "no_trace_id"
    facts = ("client-1", "server-1", "alice", "meant", "", False, Mode.STANDARD, "orders/x", "/x", "POST", T0, 1, 1)
    running = RunningIntent(Intent(*facts), provisional_resource_id="r", takes_statements=False)
    with executing(running):
        oid = tracker.reserve("publish", None)
        tracker.commit(oid)
    assert {line.trace_id for line in lines_of(tracker, oid)} == {"server-1"}


def test_listing_is_newest_first_and_narrowed_by_what_is_given(tracker: ObligationTracker) -> None:
    ids = [tracker.reserve(flow, {"key": str(n)}, f"t{n}") for n, flow in enumerate(["publish", "revoke", "publish"])]
    tracker.commit(ids[0], "t")

    def listed(**wanted: Any) -> list[int]:
        return [ids.index(one.obligation_id) for one in tracker.list(**wanted)]

    assert listed() == [2, 1, 0]
    assert listed(flow="publish") == [2, 0]
    assert listed(state="Reserved") == [2, 1]
    assert listed(state="Reserved", flow="publish", key="2") == [2]
    assert listed(trace_id="t1") == [1]
    assert listed(state="Reserved", intent="nobody") == []
    assert listed(limit=1) == [2]
    assert listed(before=ids[2]) == [1, 0]


def test_history_is_of_one_obligation(tracker: ObligationTracker) -> None:
    oid, other = (tracker.reserve("publish", None, "t") for _ in range(2))
    tracker.commit(other, "t")
    tracker.rollback(oid, "t")
    assert [line.event.event for line in tracker.history(oid)] == ["OBL-001", "OBL-003"]


@pytest.mark.parametrize("scans", [None, 5.0])
def test_a_closed_tracker_says_so(scene: Scene, scans: float | None) -> None:
    tracker = scene.tracker(scan_interval_secs=scans)
    tracker.close()
    tracker.close()
    with pytest.raises(StoreUnavailable) as error:
        tracker.reserve("publish", None, "t")
    assert error.value.code == "store_closed"


@pytest.mark.req("A-76", "OBL-INV-6")
@pytest.mark.parametrize(
    "wrong",
    [
        {"leak_timeout_secs": 0},
        {"scan_interval_secs": 0},
        {"leak_timeout_secs": 10, "scan_interval_secs": 11},
        {"flow_budget": 0},
        {"flow_budget": {"billing": 3}},
        {"effects": {"billing": print}},
        {"releases": {"billing": print}},
    ],
)
def test_settings_that_cannot_work_start_nothing(scene: Scene, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        scene.tracker(**wrong)
    assert error.value.code == "bad_obligations"
    assert not scene.path.exists()


WRONG: list[dict[str, Any]] = [
    {"flows": None},
    {"flows": [5]},
    {"flow_budget": True},
    {"flow_budget": "10"},
    {"leak_timeout_secs": "30"},
    {"leak_timeout_secs": True},
    {"leak_timeout_secs": math.inf},
    {"leak_timeout_secs": None},
    {"scan_interval_secs": "5"},
    {"scan_interval_secs": math.nan},
    {"retention_secs": "for ever"},
    {"retention_secs": math.inf},
    {"effects": [print]},
    {"releases": "print"},
    {"service": 5},
    {"service": ""},
    {"tries": 5},
    {"clock": 5},
    {"wait": 5},
    {"effect": {"publish": print}},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_an_option_of_the_wrong_kind_is_refused_by_its_name(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        ObligationTracker(f"sqlite:///{tmp_path}/effects.db", **options)
    assert error.value.code == "bad_setting"
    assert (*options,)[0] in str(error.value) or "attempts" in str(error.value)
    assert list(tmp_path.iterdir()) == []  # Nothing was made of it.


@pytest.mark.parametrize("options", [{"flow_budget": {"publish": "5"}}, {"effects": {"publish": "print"}}], ids=str)
def test_what_a_flow_is_given_must_fit(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        ObligationTracker("memory:", **options)
    assert error.value.code == "bad_obligations"


def test_one_text_is_one_flow() -> None:
    with ObligationTracker("memory:", flows="billing", scan_interval_secs=None) as tracker:
        assert tracker.reserve("billing", None, "t")
        with pytest.raises(UnknownFlow):
            tracker.reserve("b", None, "t")


@pytest.mark.parametrize("timeout_secs", ["5", True, math.inf, math.nan, 1e200])
def test_a_timeout_that_is_no_time_is_refused(tracker: ObligationTracker, timeout_secs: Any) -> None:
    with pytest.raises(Refused) as error:
        tracker.reserve("publish", None, "t", timeout_secs=timeout_secs)
    assert error.value.code == "bad_timeout"
