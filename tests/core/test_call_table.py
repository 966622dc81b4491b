"""The call machine cell by cell: what a client may write down, who may give a call up, and what an edit shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.profile import STEADY
from twophp.core.call import IN_LEDGER, OPEN, Call, Evidence, Stage, by_client_id, call_facts, evidence_of, meant_by
from twophp.core.call_commands import Command, GiveUp, Note, NotThere, Opening, Release, Renew, ServerReply, Tick
from twophp.core.call_machine import (
    CONTRADICTION,
    DEFAULT_CARE,
    IS_HELD,
    IS_OVERTAKEN,
    NOT_WAITING,
    OTHER_INTENT,
    TABLE,
    UNKNOWN,
    CallDecision,
    Signal,
    decide,
)
from twophp.core.entry import Writer, broken_rules, client_entry
from twophp.core.intent import Mode, Phase
from twophp.core.machine import Goto, Ignore, Never, Replay, missing_cells

T0 = 1_000_000
WRITER = Writer(source="checkout", service_ledger_id="guid")
LEASE_END = T0 + DEFAULT_CARE.lease_ms


def opening(**changes: Any) -> Opening:
    known: dict[str, Any] = {
        "client_correlation_id": "c1",
        "parent_reference_id": "c1",
        "method": "POST",
        "url": "https://orders.internal/orders",
        "meant": meant_by("POST", "https://orders.internal/orders", "", b""),
        "target": "orders",
        "service_endpoint": "orders/orders",
        "mode": Mode.STANDARD,
        "sent_at": T0,
        "owner": "me",
    }
    return Opening(**(known | changes))


def told(phase: Phase, by: Any = "phase_2", **facts: Any) -> ServerReply:
    known: dict[str, Any] = {"server_correlation_id": "s1", "ttl_ms": 30_000, "at": T0, "first": True}
    return ServerReply(phase=phase, by=by, **(known | facts))


FIRST = told(Phase.WAITING_CONFIRM, "phase_1", opening=opening(), confirm_by=T0 + 29_000)


def after(*commands: Command, now: int = T0) -> Call:
    call: Call | None = None
    for command in commands:
        call = decide(call, command, now).call
    assert call is not None
    return call


SENT = after(Note(opening=opening(mode=Mode.AUTO_CONFIRM)))
WAITING = after(FIRST)
PROCESSING = after(FIRST, told(Phase.PROCESSING))
COMMITTED = after(FIRST, told(Phase.COMMITTED, status=200, resource_id="r1"))
FAILED = after(FIRST, told(Phase.FAILED, status=422))
EXPIRED = after(FIRST, told(Phase.TTL_EXPIRED))
GIVEN_UP = after(FIRST, GiveUp(fence=1, late=False), now=T0 + 100)
ALL = {call.stage: call for call in (SENT, WAITING, GIVEN_UP, PROCESSING, COMMITTED, FAILED, EXPIRED)}


def test_the_table_is_total() -> None:
    assert missing_cells(TABLE, Stage, Signal) == []


@pytest.mark.req("A-49")
def test_there_is_no_way_back_but_the_one_that_reuse_implies() -> None:
    edges = {(state, cell.path[-1]) for state, row in TABLE.items() for cell in row.values() if isinstance(cell, Goto)}
    forward = {(before, now) for before, now in edges if before is not now}
    assert {before for before, now in forward if now is Stage.WAITING_CONFIRM} == {Stage.ABSENT, Stage.SENT}
    assert {now for before, now in forward if before in {Stage.COMMITTED, Stage.FAILED}} == {Stage.ABSENT}
    assert {now for before, now in forward if before is Stage.TTL_EXPIRED} == {
        Stage.PROCESSING,
        Stage.COMMITTED,
        Stage.FAILED,
        Stage.ABSENT,
    }
    assert {now for before, now in forward if before is Stage.GIVEN_UP} == {
        Stage.PROCESSING,
        Stage.COMMITTED,
        Stage.FAILED,
        Stage.TTL_EXPIRED,
    }, "what was given up is never driven again"
    assert "ABANDONED" not in {stage.value for stage in Stage}


@pytest.mark.req("A-34", "A-49")
@pytest.mark.parametrize("before", [SENT, WAITING, GIVEN_UP, PROCESSING, FAILED, EXPIRED], ids=lambda call: call.stage)
def test_what_is_indeterminate_is_noted_whenever_it_is_told(before: Call) -> None:
    lost = told(Phase.FAILED, status=500, indeterminate=True, at=T0 + 5)
    decision = decide(before, lost, T0 + 7)
    assert decision.call is not None
    row = client_entry(decision.call, WRITER)
    assert (row.phase, row.indeterminate, broken_rules(row)) == (Phase.FAILED, True, [])
    assert [(step.event, step.after) for step in decision.steps] == [("indeterminate", "FAILED")]
    assert decision.call.row_version == before.row_version + 1
    assert call_facts(replace(decision.call, indeterminate=False)) != decision.steps[0].detail
    assert decide(decision.call, lost, T0 + 8).verdict == Replay()
    assert decide(decision.call, told(Phase.FAILED), T0 + 8).verdict == Replay(), "nor is it unsaid"
    assert decide(COMMITTED, lost, T0).code == CONTRADICTION
    if before is FAILED:
        assert (decision.call.settled_at, decision.call.due_at) == (FAILED.settled_at, FAILED.due_at)


@pytest.mark.req("P-5.2.3-a", "P-5.2.3-b", "A-56")
def test_the_answer_to_phase_one_makes_the_call_and_its_row() -> None:
    decision = decide(None, FIRST, T0 + 5)
    assert decision.call is not None
    row = client_entry(decision.call, WRITER)
    assert broken_rules(row) == []
    assert (row.client_correlation_id, row.server_correlation_id, row.phase) == ("c1", "s1", Phase.WAITING_CONFIRM)
    assert (row.actor, row.target, row.version, row.phase_1_timestamp) == ("client", "orders", 1, T0)
    assert (decision.call.due_at, decision.call.fence) == (T0 + 5 + DEFAULT_CARE.lease_ms, 1)


@pytest.mark.req("A-49", "P-10.2-a")
@pytest.mark.parametrize("phase", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED, Phase.TTL_EXPIRED])
def test_what_the_server_says_is_what_the_row_says(phase: Phase) -> None:
    decision = decide(WAITING, told(phase, at=T0 + 7, status=200, resource_id="r1"), T0 + 9)
    assert decision.call is not None
    row = client_entry(decision.call, WRITER)
    assert broken_rules(row) == []
    assert (row.phase, row.phase_2_timestamp, row.version) == (phase, T0 + 7, 2)
    assert [(step.before, step.after) for step in decision.steps] == [("WAITING_CONFIRM", phase.value)]
    assert decision.steps[0].detail == call_facts(decision.call)


@pytest.mark.req("A-49", "A-21")
def test_a_client_is_never_told_that_its_intent_was_abandoned() -> None:
    decision = decide(WAITING, told(Phase.ABANDONED), T0)
    assert decision.call is not None
    assert decision.call.stage is Stage.TTL_EXPIRED


@pytest.mark.req("A-49")
def test_an_answer_that_was_overtaken_changes_nothing() -> None:
    for call in (PROCESSING, COMMITTED, FAILED, EXPIRED):
        assert not decide(call, told(Phase.WAITING_CONFIRM, "status_read"), T0).changed
    for call in (COMMITTED, FAILED):
        assert isinstance(decide(call, told(Phase.PROCESSING), T0).verdict, Ignore)
        assert isinstance(decide(call, told(Phase(call.stage.value)), T0).verdict, Replay)


def test_a_server_that_contradicts_itself_is_not_believed() -> None:
    assert decide(COMMITTED, told(Phase.FAILED), T0).code == CONTRADICTION
    assert decide(FAILED, told(Phase.COMMITTED), T0).code == CONTRADICTION
    assert decide(PROCESSING, told(Phase.TTL_EXPIRED), T0).code == CONTRADICTION
    assert decide(WAITING, told(Phase.COMMITTED, server_correlation_id="s2"), T0).code == OTHER_INTENT


@pytest.mark.req("A-49", "A-42", "A-30")
def test_a_408_ends_a_call_only_if_it_answers_the_first_confirm() -> None:
    late = told(Phase.TTL_EXPIRED, first=False)
    for call in ALL.values():
        assert not decide(call, late, T0).changed, "it says nothing of an earlier confirm"
        assert decide(call, late, T0).code is None
    first = told(Phase.TTL_EXPIRED, first=True)
    ended = decide(WAITING, first, T0).call
    assert ended is not None
    assert (ended.stage, ended.never_ran) == (Stage.TTL_EXPIRED, True)
    for call in (WAITING, SENT):
        assert not decide(after_takeover(call), first, LEASE_END).changed, "who drove it before may have confirmed"


@pytest.mark.req("A-49", "A-42")
@pytest.mark.parametrize(
    ("command", "never_ran"),
    [
        (GiveUp(fence=1, late=True), True),
        (NotThere(first=True), True),
        (NotThere(first=False), False),
        (told(Phase.TTL_EXPIRED, "status_read", first=False), False),
        (told(Phase.ABANDONED, "status_read", first=False), False),
    ],
)
def test_an_expired_call_knows_whether_it_can_have_run(command: Command, never_ran: bool) -> None:
    ended = decide(WAITING, command, T0).call
    assert ended is not None
    assert (ended.stage, ended.never_ran) == (Stage.TTL_EXPIRED, never_ran)
    assert [call.stage for call in ALL.values() if call.never_ran] == [Stage.GIVEN_UP, Stage.TTL_EXPIRED]


@pytest.mark.req("A-42")
@pytest.mark.parametrize("command", [NotThere(first=True), told(Phase.TTL_EXPIRED, "status_read")])
def test_who_took_a_call_over_never_knows_that_nothing_ran(command: Command) -> None:
    ended = decide(after_takeover(WAITING), command, LEASE_END).call
    assert ended is not None
    assert (ended.stage, ended.never_ran) == (Stage.TTL_EXPIRED, False)


@pytest.mark.req("A-49")
def test_only_the_holder_of_the_fence_gives_up_and_only_what_waits() -> None:
    for late, stage in ((False, Stage.GIVEN_UP), (True, Stage.TTL_EXPIRED)):
        given_up = decide(WAITING, GiveUp(fence=1, late=late), T0)
        assert given_up.call is not None
        assert (given_up.call.stage, given_up.steps[0].event) == (stage, "given_up")
    taken = after_takeover(WAITING)
    assert decide(taken, GiveUp(fence=1, late=False), LEASE_END).code == IS_OVERTAKEN
    assert decide(taken, Renew(fence=1), LEASE_END).code == IS_OVERTAKEN
    assert decide(taken, Release(fence=1), LEASE_END).code == IS_OVERTAKEN
    for call in (SENT, PROCESSING, COMMITTED, FAILED, EXPIRED):
        for late in (False, True):
            assert decide(call, GiveUp(fence=1, late=late), T0).code == NOT_WAITING


DEADLINE = T0 + 29_000


@pytest.mark.req("A-49", "A-27")
def test_what_was_given_up_says_what_was_told_until_its_deadline_has_passed() -> None:
    row = client_entry(GIVEN_UP, WRITER)
    assert (row.phase, row.outcome, row.settled_at, broken_rules(row)) == (Phase.WAITING_CONFIRM, None, None, [])
    assert (GIVEN_UP.due_at, GIVEN_UP.owner) == (DEADLINE, "")
    for visit in (Tick(owner="other"), Tick(owner="other", dead_driver="")):
        early = decide(GIVEN_UP, visit, DEADLINE - 1)
        assert (early.changed, early.code) == (False, None), "it has no driver, and none may take it over"
    noticed = decide(GIVEN_UP, Tick(owner="other"), DEADLINE + 5_000)
    assert noticed.call is not None
    ended = client_entry(noticed.call, WRITER)
    assert (ended.phase, ended.outcome, ended.settled_at) == (Phase.TTL_EXPIRED, Phase.TTL_EXPIRED, DEADLINE)
    assert (noticed.call.never_ran, noticed.call.fence, noticed.call.attempts) == (True, 1, 0)
    (line,) = noticed.steps
    assert (line.before, line.after, line.at, line.observed_at) == (
        "GIVEN_UP",
        "TTL_EXPIRED",
        DEADLINE,
        DEADLINE + 5_000,
    )
    assert noticed.call.due_at == DEADLINE + 5_000 + DEFAULT_CARE.kept_ms


@pytest.mark.req("A-49")
def test_a_call_without_a_deadline_is_over_when_it_is_given_up() -> None:
    for confirm_by in (None, T0 - 1):
        given_up = decide(replace(WAITING, confirm_by=confirm_by), GiveUp(fence=1, late=False), T0).call
        assert given_up is not None
        assert (given_up.stage, given_up.due_at) == (Stage.GIVEN_UP, T0)


@pytest.mark.req("A-49")
@pytest.mark.parametrize("phase", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED, Phase.TTL_EXPIRED])
def test_what_the_server_says_of_a_call_that_was_given_up_is_what_the_row_says(phase: Phase) -> None:
    decision = decide(GIVEN_UP, told(phase, "status_read", at=T0 + 700, first=False), T0 + 900)
    assert decision.call is not None
    assert client_entry(decision.call, WRITER).phase is phase
    assert decision.call.never_ran is (phase is Phase.TTL_EXPIRED), "not the server's word alone: it was given up"
    acknowledged = decide(GIVEN_UP, told(Phase.PROCESSING, "callback"), T0 + 900).call
    assert acknowledged is not None
    assert client_entry(acknowledged, WRITER).phase is Phase.PROCESSING


@pytest.mark.req("A-49")
@pytest.mark.parametrize(
    "command",
    [
        told(Phase.WAITING_CONFIRM, "status_read"),
        told(Phase.TTL_EXPIRED, first=False),
        NotThere(first=True),
        NotThere(plain=True),
        GiveUp(fence=1, late=False),
        Renew(fence=1),
        Release(fence=1, error="no_answer"),
        Note(opening=opening()),
    ],
    ids=lambda command: type(command).__name__,
)
def test_nothing_else_changes_what_was_given_up(command: Command) -> None:
    decision = decide(GIVEN_UP, command, T0 + 900)
    assert (decision.changed, decision.code) == (False, None)


def after_takeover(call: Call) -> Call:
    taken = decide(call, Tick(owner="other"), LEASE_END).call
    assert taken is not None
    return taken


@pytest.mark.parametrize("call", [SENT, WAITING, PROCESSING], ids=lambda call: call.stage)
def test_a_call_is_taken_over_when_its_lease_has_ended_and_not_before(call: Call) -> None:
    assert decide(call, Tick(owner="other"), LEASE_END - 1).code == IS_HELD
    renewed = decide(call, Renew(fence=1), LEASE_END - 1)
    assert renewed.call is not None
    assert (renewed.steps, renewed.call.row_version) == ((), call.row_version), "a heartbeat is no news to the ledger"
    assert decide(renewed.call, Tick(owner="other"), LEASE_END).code == IS_HELD
    taken = after_takeover(call)
    assert (taken.owner, taken.fence, taken.attempts) == ("other", 2, 1)


def test_what_is_released_is_asked_about_less_and_less_often() -> None:
    call, waits, now = WAITING, [], LEASE_END
    for _ in range(20):
        taken = decide(call, Tick(owner="other"), now).call
        assert taken is not None
        released = decide(taken, Release(fence=taken.fence, error="no_answer"), now).call
        assert released is not None
        assert released.due_at is not None
        waits.append(released.due_at - now)
        call, now = released, released.due_at
    assert waits == sorted(waits)
    assert waits[-1] == DEFAULT_CARE.longest_delay_ms
    assert call.last_error == "no_answer"


@pytest.mark.req("A-43", "A-41", "A-66")
def test_a_noted_call_has_no_row_until_the_server_id_is_known() -> None:
    assert (SENT.row_version, SENT.stage in IN_LEDGER) == (0, False)
    for news in (told(Phase.PROCESSING, "callback"), told(Phase.COMMITTED, "phase_1", status=201)):
        decision = decide(SENT, news, T0)
        assert decision.call is not None
        row = client_entry(decision.call, WRITER)
        assert (row.version, broken_rules(row)) == (1, [])
    assert decide(None, told(Phase.PROCESSING, "callback"), T0).code == UNKNOWN, "only known client ids"
    assert not decide(SENT, told(Phase.PROCESSING, "phase_1", server_correlation_id=""), T0).changed


@pytest.mark.req("A-06")
@pytest.mark.parametrize("plain", [True, False])
def test_what_was_never_registered_is_forgotten(plain: bool) -> None:
    decision = decide(SENT, NotThere(plain=plain), T0)
    assert decision.call is not None
    assert (decision.call.stage, decision.steps[0].event) == (Stage.ABSENT, "plain" if plain else "not_registered")


@pytest.mark.req("P-5.5.5-a", "P-5.5.5-b", "P-5.5.5-c", "P-5.5.5-d", "A-39")
def test_the_two_channels_may_come_in_any_order() -> None:
    callback, answer = told(Phase.PROCESSING, "callback"), told(Phase.COMMITTED, "phase_1", status=201)
    assert evidence_of(SENT) is Evidence.UNKNOWN
    acknowledged, answered = decide(SENT, callback, T0).call, decide(SENT, answer, T0).call
    assert acknowledged is not None
    assert answered is not None
    assert (evidence_of(acknowledged), evidence_of(answered)) == (Evidence.RESPONSE_LOST, Evidence.CALLBACK_LOST)
    both = [decide(acknowledged, answer, T0).call, decide(answered, callback, T0).call]
    assert [(call.stage, evidence_of(call)) for call in both if call] == [(Stage.COMMITTED, Evidence.NORMAL)] * 2
    assert both[0] is not None
    assert isinstance(decide(both[0], callback, T0).verdict, Replay), "delivered twice"


def test_what_has_ended_is_forgotten_in_time() -> None:
    assert COMMITTED.due_at is not None
    assert not decide(COMMITTED, Tick(owner="x"), COMMITTED.due_at - 1).changed
    decision = decide(COMMITTED, Tick(owner="x"), COMMITTED.due_at)
    assert decision.call is not None
    assert (decision.call.stage, decision.steps[0].event) == (Stage.ABSENT, "forgotten")


def test_an_edit_of_what_was_called_or_how_it_ended_shows() -> None:
    edits = {"parent_reference_id": "x", "url": "x", "target": "x", "status": 500, "resource_id": "x", "ttl_ms": 1}
    for name, value in edits.items():
        assert call_facts(replace(COMMITTED, **{name: value})) != call_facts(COMMITTED), name


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.just(Note(opening=opening())),
    st.builds(
        told,
        st.sampled_from([phase for phase in Phase if phase is not Phase.ABSENT]),
        st.sampled_from(["phase_1", "phase_2", "status_read"]),
        opening=st.just(opening()),
        server_correlation_id=st.sampled_from(["", "s1", "s2"]),
        first=st.booleans(),
    ),
    st.just(told(Phase.PROCESSING, "callback")),
    st.builds(NotThere, plain=st.booleans(), first=st.booleans()),
    st.builds(GiveUp, fence=st.integers(1, 3), late=st.booleans()),
    st.builds(Renew, fence=st.integers(1, 3)),
    st.builds(Release, fence=st.integers(1, 3)),
    st.just(Tick(owner="other")),
)


@STEADY
@given(st.lists(st.tuples(COMMANDS, st.integers(0, 10_000)), max_size=12))
def test_no_sequence_reaches_an_impossible_cell_and_every_row_is_sound(
    steps: list[tuple[Command, int]],
) -> None:
    call: Call | None = None
    now = T0
    for command, passed in steps:
        now += passed
        decision = decide(call, command, now)
        check(call, decision)
        call = None if decision.call is None or decision.call.stage is Stage.ABSENT else decision.call


def check(before: Call | None, decision: CallDecision) -> None:
    assert not isinstance(decision.verdict, Never)
    after_ = decision.call
    if not decision.changed or after_ is None or after_.stage is Stage.ABSENT:
        return
    assert after_.version == (1 if before is None else before.version + 1)
    assert (after_.stage in OPEN or after_.stage is Stage.GIVEN_UP) == (after_.settled_at is None)
    assert after_.due_at is not None
    if after_.stage in IN_LEDGER:
        assert broken_rules(client_entry(after_, WRITER)) == []
        assert after_.server_correlation_id
    assert after_.keys() == (by_client_id("c1"),)
