"""T4 cell by cell, the codes, flows and keys."""

from __future__ import annotations

from typing import Any

import pytest

from twophp.core import obligation
from twophp.core.errors import Refused
from twophp.core.machine import Goto, Ignore, Refuse, Replay, missing_cells
from twophp.core.obligation import (
    EVENTS,
    FLOWS,
    LEAK_TIMEOUT_MS,
    TABLE,
    Commit,
    Decision,
    Obligation,
    Reserve,
    Rollback,
    Scan,
    Signal,
    State,
    UnknownFlow,
    by_flow_and_key,
    by_id,
    canonical_key,
    decide,
    flows_with,
    scan_completed,
)

T0 = 5_000
OVERDUE = T0 + LEAK_TIMEOUT_MS


def reserve(name: str = "o1", **changes: Any) -> Reserve:
    return Reserve(**({"obligation_id": name, "flow": "publish", "trace_id": "t-reserve", "key": "k"} | changes))


def made(decision: Decision) -> Obligation:
    assert decision.obligation is not None
    return decision.obligation


def reserved() -> Obligation:
    return made(decide(None, reserve(), T0))


def committed() -> Obligation:
    return made(decide(reserved(), Commit(trace_id="t"), T0 + 1))


def rolled_back() -> Obligation:
    return made(decide(reserved(), Rollback(trace_id="t"), T0 + 1))


def events(decision: Decision) -> list[tuple[str, str]]:
    return [(step.subject, step.event) for step in decision.steps]


def test_the_table_is_total() -> None:
    assert missing_cells(TABLE, State, Signal) == []


@pytest.mark.req("OBL-SM-1")
def test_there_are_two_edges_out_of_reserved_and_none_out_of_the_ends() -> None:
    edges = set()
    for state, row in TABLE.items():
        for signal, cell in row.items():
            goto = cell.goto if isinstance(cell, Refuse) else cell
            if isinstance(goto, Goto) and goto.path[-1] is not State.RESERVED:
                edges.add((state, goto.path[-1]))
            elif isinstance(goto, Goto):
                assert signal is Signal.RESERVE  # Another obligation comes into being; this one stays.
    held = {State.RESERVED, State.OVERDUE}
    assert edges == {(state, end) for state in held for end in (State.COMMITTED, State.ROLLED_BACK)} - {
        (State.OVERDUE, State.COMMITTED)
    }


@pytest.mark.req("OBL-INV-5", "OBL-EVT-1", "OBL-EVT-2", "OBL-EVT-3", "OBL-EVT-4")
def test_no_cell_changes_a_state_without_its_event_code() -> None:
    gotos = {cell for row in TABLE.values() for cell in row.values() if isinstance(cell, Goto)}
    assert {(goto.path, goto.event) for goto in gotos} == {
        ((State.RESERVED,), "OBL-001"),
        ((State.COMMITTED,), "OBL-002"),
        ((State.ROLLED_BACK,), "OBL-003"),
        ((State.ROLLED_BACK,), "OBL-004"),
    }


@pytest.mark.req("OBL-EVT-1", "OBL-EVT-2", "OBL-EVT-3", "OBL-EVT-4", "OBL-EVT-5")
def test_event_codes_are_the_contracts() -> None:
    assert list(EVENTS) == ["OBL-001", "OBL-002", "OBL-003", "OBL-004", "OBL-005"]


@pytest.mark.req("OBL-ERR-1", "OBL-ERR-2", "OBL-ERR-3", "OBL-ERR-4", "OBL-ERR-5")
def test_error_codes_are_the_contracts_and_the_table_uses_each() -> None:
    codes = {cell.code for row in TABLE.values() for cell in row.values() if isinstance(cell, Refuse)}
    assert (
        codes
        == set(obligation.ERRORS)
        == {
            "ERR_OBL_ALREADY_COMMITTED",
            "ERR_OBL_ALREADY_ROLLED_BACK",
            "ERR_OBL_NOT_FOUND",
            "ERR_OBL_LEAK_TIMEOUT",
            "ERR_OBL_DUPLICATE_RESERVE",
        }
    )


# T4, first row: commit.


@pytest.mark.req("T4-1", "OBL-CMT-3", "OBL-EVT-2", "OBL-SM-2")
def test_commit_in_time() -> None:
    decision = decide(reserved(), Commit(trace_id="t-commit"), OVERDUE - 1)
    done = made(decision)
    assert (done.state, done.version, done.settled_at, done.resolution) == (State.COMMITTED, 2, OVERDUE - 1, "caller")
    assert events(decision) == [("o1", "OBL-002")]
    assert (decision.steps[0].trace_id, decision.steps[0].kind) == ("t-commit", "obligation")
    assert done.keys() == (by_id("o1"),)


@pytest.mark.req("T4-1", "OBL-ERR-4", "OBL-INV-2", "A-73", "A-74")
@pytest.mark.parametrize("at", [OVERDUE, OVERDUE + 1, OVERDUE * 9])
def test_a_late_commit_leaks_on_the_spot_and_is_refused(at: int) -> None:
    decision = decide(reserved(), Commit(trace_id="t-commit"), at)
    leaked = made(decision)
    assert (decision.code, decision.changed) == ("ERR_OBL_LEAK_TIMEOUT", True)
    assert (leaked.state, leaked.resolution, leaked.due_at) == (State.ROLLED_BACK, "leak_scan", None)
    assert decision.records == (leaked,)
    (step,) = decision.steps
    assert (step.event, step.at, step.observed_at, step.detail) == ("OBL-004", OVERDUE, at, "ERR_OBL_LEAK_TIMEOUT")


@pytest.mark.req("T4-1", "OBL-ERR-1", "OBL-ERR-2", "OBL-ERR-3")
@pytest.mark.parametrize(
    ("found", "code"),
    [
        (committed(), "ERR_OBL_ALREADY_COMMITTED"),
        (rolled_back(), "ERR_OBL_ALREADY_ROLLED_BACK"),
        (made(decide(reserved(), Scan(), OVERDUE)), "ERR_OBL_ALREADY_ROLLED_BACK"),
        (None, "ERR_OBL_NOT_FOUND"),
    ],
)
def test_commit_of_what_is_not_reserved(found: Obligation | None, code: str) -> None:
    decision = decide(found, Commit(trace_id="t"), OVERDUE + 5)
    assert (decision.code, decision.obligation, decision.changed, decision.records) == (code, found, False, ())
    assert decision.steps == ()


# T4, second row: rollback.


@pytest.mark.req("T4-2", "OBL-RBK-3", "OBL-EVT-3")
@pytest.mark.parametrize("at", [T0, OVERDUE - 1, OVERDUE, OVERDUE + 9])
@pytest.mark.parametrize("who", ["caller", "guard"])
def test_rollback_of_what_is_reserved_succeeds_even_late(at: int, who: Any) -> None:
    decision = decide(reserved(), Rollback(trace_id="t", resolution=who, strict=True), at)
    assert (decision.code, made(decision).state, made(decision).resolution) == (None, State.ROLLED_BACK, who)
    assert events(decision) == [("o1", "OBL-003")]
    assert decision.steps[0].at == at


@pytest.mark.req("T4-2", "OBL-INV-4", "A-70")
def test_rolling_back_again_is_a_success_that_says_so() -> None:
    found = rolled_back()
    for _ in range(3):
        decision = decide(found, Rollback(trace_id="t"), T0 + 9)
        assert (decision.verdict, decision.code, decision.changed) == (Replay(), None, False)
        assert (decision.obligation, decision.steps) == (found, ())
        assert decision.information == "ERR_OBL_ALREADY_ROLLED_BACK"


@pytest.mark.req("A-70", "OBL-ERR-2")
def test_a_strict_caller_is_refused_the_second_rollback() -> None:
    decision = decide(rolled_back(), Rollback(trace_id="t", strict=True), T0 + 9)
    assert (decision.code, decision.changed, decision.information) == ("ERR_OBL_ALREADY_ROLLED_BACK", False, None)


@pytest.mark.req("T4-2", "A-71")
@pytest.mark.parametrize("strict", [False, True])
def test_rollback_of_what_is_committed_or_unknown(strict: bool) -> None:
    found, command = committed(), Rollback(trace_id="t", strict=strict)
    assert decide(found, command, OVERDUE).code == "ERR_OBL_ALREADY_COMMITTED"
    assert decide(None, command, OVERDUE).code == "ERR_OBL_NOT_FOUND"


# T4, third row: reserve.


@pytest.mark.req("T4-3", "OBL-RSV-3", "OBL-EVT-1", "OBL-SM-2")
def test_reserve() -> None:
    decision = decide(None, reserve(intent="s1", timeout_ms=70), T0)
    new = made(decision)
    assert new == Obligation("o1", "publish", "k", "t-reserve", "s1", T0, 70, State.RESERVED, 1, None, "", T0 + 70)
    assert new.keys() == (by_id("o1"), by_flow_and_key("publish", "k"))
    assert events(decision) == [("o1", "OBL-001")]
    assert (decision.steps[0].trace_id, decision.steps[0].detail) == ("t-reserve", "publish")


@pytest.mark.req("T4-3", "OBL-ERR-5", "A-75")
def test_a_second_reserve_of_the_same_flow_and_key_is_refused() -> None:
    found = reserved()
    decision = decide(found, reserve("o2"), OVERDUE - 1)
    assert (decision.code, decision.obligation, decision.records) == ("ERR_OBL_DUPLICATE_RESERVE", found, ())


@pytest.mark.req("T4-3", "OBL-INV-2")
def test_a_reserve_over_an_overdue_holder_leaks_it_and_reserves_in_one_change() -> None:
    decision = decide(reserved(), reserve("o2"), OVERDUE)
    old, new = decision.records
    assert (old.obligation_id, old.state, old.resolution) == ("o1", State.ROLLED_BACK, "leak_scan")
    assert (new.obligation_id, new.state, new.reserved_at) == ("o2", State.RESERVED, OVERDUE)
    assert (decision.code, decision.obligation, decision.leaked) == (None, new, old)
    assert events(decision) == [("o1", "OBL-004"), ("o2", "OBL-001")]
    assert by_flow_and_key("publish", "k") not in old.keys()  # noqa: SIM118 - A record is no mapping.


@pytest.mark.req("T4-3", "A-75", "OBL-RBK-2")
@pytest.mark.parametrize("found", [committed(), rolled_back()])
def test_a_settled_holder_is_no_hindrance_and_stays_as_it_is(found: Obligation) -> None:
    decision = decide(found, reserve("o2"), T0 + 2)
    assert [record.obligation_id for record in decision.records] == ["o2"]
    assert decision.leaked is None


@pytest.mark.parametrize(
    ("found", "at"),
    [(reserved(), OVERDUE - 1), (committed(), T0 + 2), (committed(), OVERDUE), (rolled_back(), OVERDUE)],
)
def test_the_same_reserve_said_again_changes_nothing(found: Obligation, at: int) -> None:
    decision = decide(found, reserve(), at)
    assert (decision.verdict, decision.obligation, decision.changed) == (Replay(), found, False)


@pytest.mark.req("OBL-ERR-4", "OBL-INV-2", "A-73")
def test_the_same_reserve_said_again_too_late_leaks_and_is_refused() -> None:
    """A replay would say Reserved, and the commit that follows would fail."""
    decision = decide(reserved(), reserve(), OVERDUE)
    assert decision.code == "ERR_OBL_LEAK_TIMEOUT"
    assert [(record.state, record.resolution) for record in decision.records] == [(State.ROLLED_BACK, "leak_scan")]
    assert events(decision) == [("o1", "OBL-004")]


@pytest.mark.parametrize("other", [{"flow": "revoke"}, {"key": "other"}, {"key": ""}])
@pytest.mark.parametrize(("found", "at"), [(reserved(), T0), (reserved(), OVERDUE), (committed(), T0 + 2)])
def test_another_reserve_under_a_taken_id_is_refused(found: Obligation, at: int, other: dict[str, str]) -> None:
    with pytest.raises(Refused, match="fresh id") as refused:
        decide(found, reserve(**other), at)
    assert refused.value.code == "reserve_mismatch"


def test_without_a_key_there_is_nothing_to_collide_with() -> None:
    assert made(decide(None, reserve(key=""), T0)).keys() == (by_id("o1"),)


# T4, fourth row: the scan.


@pytest.mark.req("T4-4", "OBL-LEAK-5", "OBL-LEAK-6", "A-74")
def test_the_scan_rolls_back_what_is_at_or_over_its_timeout() -> None:
    assert decide(reserved(), Scan(), OVERDUE - 1).verdict == Ignore()
    decision = decide(reserved(), Scan(), OVERDUE)
    assert (made(decision).state, made(decision).resolution) == (State.ROLLED_BACK, "leak_scan")
    assert events(decision) == [("o1", "OBL-004")]
    assert decision.steps[0].trace_id == "t-reserve"  # Its own: the scan has none.


@pytest.mark.req("T4-4")
@pytest.mark.parametrize("found", [committed(), rolled_back(), None])
def test_the_scan_leaves_everything_else_alone(found: Obligation | None) -> None:
    decision = decide(found, Scan(), OVERDUE * 2)
    assert (decision.verdict, decision.obligation, decision.changed) == (Ignore(), found, False)


@pytest.mark.req("OBL-LEAK-4")
def test_a_clock_that_went_backwards_leaks_nothing() -> None:
    assert decide(reserved(), Scan(), T0 - OVERDUE).verdict == Ignore()
    assert made(decide(reserved(), Commit(trace_id="t"), T0 - 1)).settled_at == T0


@pytest.mark.req("OBL-LEAK-7", "OBL-EVT-5")
def test_a_finished_scan_is_one_event() -> None:
    event = scan_completed(scanned=3, leaked=0, now=T0)
    assert (event.kind, event.event, event.detail) == ("obligation", "OBL-005", "scanned=3 leaked=0")


# Flows, timeouts, keys.


@pytest.mark.req("OBL-LEAK-1")
def test_the_leak_timeout_is_thirty_seconds_unless_said_otherwise() -> None:
    assert reserved().overdue_at - T0 == 30_000
    assert made(decide(None, reserve(timeout_ms=7), T0)).due_at == T0 + 7
    with pytest.raises(Refused):
        decide(None, reserve(timeout_ms=0), T0)


@pytest.mark.req("OBL-FLOW-1", "OBL-FLOW-2", "OBL-FLOW-3", "OBL-FLOW-4", "OBL-FLOW-5")
@pytest.mark.parametrize("flow", ["publish", "revoke", "quarantine", "migration", "fencing"])
def test_the_five_flows(flow: str) -> None:
    assert decide(None, reserve(flow=flow), T0).steps[0].detail == flow
    assert len(FLOWS) == 5


@pytest.mark.req("OBL-FLOW-6", "A-78")
def test_an_unknown_flow_is_a_value_error_until_it_is_declared() -> None:
    with pytest.raises(ValueError, match="unknown flow") as caught:
        decide(None, reserve(flow="other"), T0)
    assert isinstance(caught.value, UnknownFlow)
    assert caught.value.code == "unknown_flow"
    assert made(decide(None, reserve(flow="other"), T0, flows_with(["other"]))).flow == "other"
    with pytest.raises(UnknownFlow):
        flows_with([""])


@pytest.mark.req("A-75")
def test_where_a_key_comes_from() -> None:
    assert canonical_key({"key": "k1", "x": 1}) == "k1"
    assert canonical_key({"key": "k1"}, key="mine") == "mine"
    assert canonical_key({"key": 7}) == "7"
    digest = canonical_key({"a": 1, "b": [2, {"d": 3, "c": 4}]})
    assert len(digest) == 64
    assert digest == canonical_key({"b": [2, {"c": 4, "d": 3}], "a": 1})
    assert digest != canonical_key({"a": 1, "b": [2, {"d": 3, "c": 5}]})
    assert canonical_key({"key": None, "a": 1}) == canonical_key({"a": 1, "key": None}) != canonical_key({"a": 1})
    assert canonical_key(b"ab") != canonical_key("ab")


@pytest.mark.req("A-75")
@pytest.mark.parametrize("payload", [None, {}, [], "", b""])
def test_an_empty_payload_has_no_key(payload: object) -> None:
    assert canonical_key(payload) == ""


@pytest.mark.req("A-75")
def test_a_key_that_cannot_be_is_refused() -> None:
    with pytest.raises(Refused) as empty:
        canonical_key({"a": 1}, key="")
    with pytest.raises(Refused) as odd:
        canonical_key({"a": object()})
    assert (empty.value.code, odd.value.code) == ("empty_key", "payload_not_canonical")
