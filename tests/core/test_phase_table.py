"""T1 and T2 row by row, the boundaries, and what the table as a whole promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from tests.core.intents import (
    ABANDONED,
    DEADLINE,
    DELTA,
    IN_PHASE,
    LITERAL,
    REJECT,
    REUSE,
    T0,
    TTL,
    abandoned,
    after,
    committed,
    confirm,
    expired,
    failed,
    processing,
    register,
    settle,
    waiting,
)
from twophp.core import phase
from twophp.core.intent import Intent, Mode, Phase, by_logical_key, by_pair, outcome_facts
from twophp.core.intent_commands import Command, Renew, Settle, Tick
from twophp.core.machine import Goto, Ignore, Never, Refuse, Replay, missing_cells
from twophp.core.phase import TABLE, Signal, decide
from twophp.core.policy import Policy

Find: TypeAlias = Callable[[Policy], Intent]

DRAFT_EDGES = {
    (Phase.ABSENT, Phase.WAITING_CONFIRM),
    (Phase.WAITING_CONFIRM, Phase.PROCESSING),
    (Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED),
    (Phase.TTL_EXPIRED, Phase.ABANDONED),
    (Phase.TTL_EXPIRED, Phase.PROCESSING),  # The one that REUSE, and a confirm that queued, imply.
    (Phase.PROCESSING, Phase.COMMITTED),
    (Phase.PROCESSING, Phase.FAILED),
}


def edges() -> set[tuple[Phase, Phase]]:
    found = set()
    for state, row in TABLE.items():
        for cell in row.values():
            goto = cell.goto if isinstance(cell, Refuse) else cell
            if isinstance(goto, Goto):
                path = [state, *(Phase(step) for step in goto.path)]
                found |= set(pairwise(path))
    return found


# The table as a whole.


def test_the_table_is_total() -> None:
    assert missing_cells(TABLE, Phase, Signal) == []
    assert all(set(row) == set(Signal) for row in TABLE.values())


@pytest.mark.req("P-6-g", "A-22")
def test_there_is_no_edge_but_the_drafts() -> None:
    changes = {(before, after_) for before, after_ in edges() if before is not after_ and after_ is not Phase.ABSENT}
    assert changes == DRAFT_EDGES


@pytest.mark.req("P-2-c")
def test_past_the_point_of_no_return_there_is_no_way_back() -> None:
    ways = {after_ for before, after_ in edges() if before is Phase.PROCESSING}
    assert ways == {Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED}


@pytest.mark.req("P-7-c", "P-7-d")
@pytest.mark.parametrize("final", [Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED])
def test_a_last_phase_is_left_only_to_be_forgotten(final: Phase) -> None:
    assert {after_ for before, after_ in edges() if before is final} <= {final, Phase.ABSENT}


@pytest.mark.req("P-7-d")
def test_failed_is_reached_only_from_processing() -> None:
    assert {before for before, after_ in edges() if after_ is Phase.FAILED} == {Phase.PROCESSING, Phase.FAILED}


def test_a_never_cell_says_why() -> None:
    assert all(cell.why for row in TABLE.values() for cell in row.values() if isinstance(cell, Never))


# Phase 1, new and known (T2).


@pytest.mark.req("P-7-a", "T1-9")
def test_phase_1_registers() -> None:
    decision = decide(None, register(), T0 + 7, REJECT)
    intent = after(decision)
    assert decision.changed
    assert (intent.phase, intent.version, intent.fence) == (Phase.WAITING_CONFIRM, 1, 0)
    assert intent.deadline_at == DEADLINE  # Counted from the arrival, not from the decision.
    assert intent.abandoned_at == ABANDONED
    assert intent.due_at == DEADLINE
    assert [(step.before, step.after, step.at) for step in decision.steps] == [("ABSENT", "WAITING_CONFIRM", T0 + 7)]


@pytest.mark.req("A-32", "A-82", "P-13.1-a")
def test_an_intent_is_found_by_its_pair_and_by_its_logical_key() -> None:
    odd = waiting(client_correlation_id="not-a-uuid:~1", principal="bob")
    assert odd.keys() == (by_pair("not-a-uuid:~1", "s1"), by_logical_key("bob", "not-a-uuid:~1"))
    assert waiting(principal="eve").keys()[1] != waiting(principal="bob").keys()[1]


@pytest.mark.parametrize(
    ("state", "at", "verdict"),
    [
        pytest.param(Phase.WAITING_CONFIRM, T0 + 5, Replay(), marks=pytest.mark.req("T2-1")),
        pytest.param(Phase.WAITING_CONFIRM, DEADLINE - 1, Replay(), marks=pytest.mark.req("T2-1", "A-26")),
        pytest.param(Phase.WAITING_CONFIRM, DEADLINE, Refuse(phase.TTL_EXPIRED), marks=pytest.mark.req("T2-4", "A-27")),
        pytest.param(Phase.PROCESSING, T0 + 5, Replay(), marks=pytest.mark.req("T2-2")),
        pytest.param(Phase.PROCESSING, ABANDONED, Replay(), marks=pytest.mark.req("T2-2", "A-30")),
        pytest.param(Phase.COMMITTED, ABANDONED, Replay(), marks=pytest.mark.req("T2-3")),
        pytest.param(Phase.FAILED, ABANDONED, Replay(), marks=pytest.mark.req("T2-3")),
        pytest.param(Phase.TTL_EXPIRED, DEADLINE, Refuse(phase.TTL_EXPIRED), marks=pytest.mark.req("T2-4")),
        pytest.param(Phase.ABANDONED, ABANDONED, Refuse(phase.TTL_EXPIRED), marks=pytest.mark.req("T2-4")),
    ],
)
def test_phase_1_again_with_the_same_request(state: Phase, at: int, verdict: object) -> None:
    known = IN_PHASE[state]()
    decision = decide(known, register(at, server_correlation_id="s2"), at, REJECT)
    assert decision.verdict == verdict
    assert after(decision).server_correlation_id == "s1"
    assert after(decision).deadline_at == DEADLINE  # Never extended.


@pytest.mark.req("T2-1", "T2-2", "T2-3", "T2-4", "A-32")
@pytest.mark.parametrize("state", list(IN_PHASE))
def test_a_known_id_with_another_request_is_refused_in_every_phase(state: Phase) -> None:
    known = IN_PHASE[state]()
    decision = decide(known, register(DEADLINE + 1, replay_key="something else"), DEADLINE + 1, REJECT)
    assert (decision.code, decision.intent, decision.changed) == (phase.FINGERPRINT_MISMATCH, known, False)


@pytest.mark.req("T2-6")
@pytest.mark.parametrize("state", list(IN_PHASE))
@pytest.mark.parametrize("other", [{"mode": Mode.AUTO_CONFIRM}, {"callback": "another"}])
def test_a_known_id_in_another_mode_is_refused_in_every_phase(state: Phase, other: dict[str, object]) -> None:
    known = IN_PHASE[state]()
    decision = decide(known, register(T0 + 3, **other), T0 + 3, REJECT)
    assert (decision.code, decision.intent, decision.changed) == (phase.MODE_MISMATCH, known, False)


@pytest.mark.req("T2-5")
def test_the_loser_of_a_racing_insert_is_answered_by_the_winners_intent() -> None:
    winner = waiting()
    assert decide(winner, register(server_correlation_id="s2"), T0, REJECT).verdict == Replay()
    assert decide(winner, register(replay_key="other"), T0, REJECT).code == phase.FINGERPRINT_MISMATCH


@pytest.mark.req("P-5.5.7-a", "A-44")
@pytest.mark.parametrize("mode", [Mode.AUTO_CONFIRM, Mode.TRANSPARENT])
def test_auto_confirm_folds_two_steps_into_one_change(mode: Mode) -> None:
    decision = decide(None, register(mode=mode), T0, REJECT)
    intent = after(decision)
    assert (intent.phase, intent.version, intent.fence) == (Phase.PROCESSING, 1, 1)
    assert (intent.confirmed_at, intent.ttl_ms, intent.received_at) == (None, TTL, T0)
    assert [step.after for step in decision.steps] == ["WAITING_CONFIRM", "PROCESSING"]
    assert decide(intent, register(mode=mode), T0 + 1, REJECT).verdict == Replay()


# Phase 2 (T1).


@pytest.mark.req("T1-4")
@pytest.mark.parametrize("wrong", [{"client_correlation_id": "c2"}, {"path": "/refunds"}])
def test_a_wrong_id_or_path_looks_like_no_intent(wrong: dict[str, object]) -> None:
    decision = decide(waiting(), confirm(T0 + 1, **wrong), T0 + 1, REJECT)
    assert (decision.code, decision.intent, decision.changed) == (phase.UNKNOWN, None, False)
    assert decide(None, confirm(T0 + 1), T0 + 1, REJECT).verdict == decision.verdict


@pytest.mark.req("T1-5")
@pytest.mark.parametrize("state", list(IN_PHASE))
def test_another_identity_is_refused_and_changes_nothing(state: Phase) -> None:
    known = IN_PHASE[state]()
    decision = decide(known, confirm(ABANDONED + 1, principal="eve"), ABANDONED + 1, REJECT)
    assert (decision.code, decision.intent, decision.changed) == (phase.OTHER_IDENTITY, known, False)


@pytest.mark.req("T1-5", "T1-9")
def test_after_a_strangers_try_the_owner_can_still_confirm() -> None:
    tried = after(decide(waiting(), confirm(T0 + 1, principal="eve"), T0 + 1, REJECT))
    assert after(decide(tried, confirm(T0 + 2), T0 + 2, REJECT)).phase is Phase.PROCESSING


@pytest.mark.req("T1-6", "T1-7", "T1-8", "A-30")
@pytest.mark.parametrize("state", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED])
@pytest.mark.parametrize("at", [T0 + 5, DEADLINE, ABANDONED, ABANDONED + 10**9])
def test_what_is_confirmed_answers_its_own_outcome_at_any_time(state: Phase, at: int) -> None:
    known = IN_PHASE[state]()
    decision = decide(known, confirm(at), at, REJECT)
    assert (decision.verdict, decision.intent, decision.changed) == (Replay(), known, False)


@pytest.mark.req("A-30")
@pytest.mark.parametrize("state", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED])
def test_literal_ttl_reject_refuses_late_replays_and_keeps_the_outcome(state: Phase) -> None:
    known = IN_PHASE[state](LITERAL)
    assert decide(known, confirm(DEADLINE - 1), DEADLINE - 1, LITERAL).verdict == Replay()
    late = decide(known, confirm(DEADLINE), DEADLINE, LITERAL)
    assert (late.code, late.intent, late.changed) == (phase.TTL_EXPIRED, known, False)


@pytest.mark.req("T1-9", "P-6-b", "P-7-b")
def test_confirmed_in_time_it_runs() -> None:
    decision = decide(waiting(), confirm(DEADLINE - 1), DEADLINE - 1, REJECT)
    intent = after(decision)
    assert (intent.phase, intent.fence, intent.owner) == (Phase.PROCESSING, 1, "worker-1")
    assert intent.confirmed_at == DEADLINE - 1
    assert intent.lease_until == intent.due_at == DEADLINE - 1 + REJECT.lease_ms


@pytest.mark.req("A-26", "P-6-e")
def test_at_the_deadline_it_is_too_late_and_just_before_it_is_not() -> None:
    assert decide(waiting(), confirm(DEADLINE - 1), DEADLINE - 1, REJECT).code is None
    assert decide(waiting(), confirm(DEADLINE), DEADLINE, REJECT).code == phase.TTL_EXPIRED


@pytest.mark.req("A-20", "P-5.4-c", "T1-9")
@pytest.mark.parametrize("find", [waiting, expired])
def test_a_confirm_that_arrived_in_time_and_queued_is_admitted_inside_the_grace(find: Find) -> None:
    known = find(REJECT)
    decision = decide(known, confirm(DEADLINE - 1), ABANDONED - 1, REJECT)
    assert after(decision).phase is Phase.PROCESSING
    assert after(decision).confirmed_at == DEADLINE - 1
    assert after(decision).settled_at is None


@pytest.mark.req("A-20", "A-26", "P-6-f")
@pytest.mark.parametrize("find", [waiting, expired])
def test_a_confirm_that_queued_through_the_whole_grace_is_refused(find: Find) -> None:
    known = find(REJECT)
    decision = decide(known, confirm(DEADLINE - 1), ABANDONED, REJECT)
    assert (decision.code, after(decision).phase) == (phase.TTL_EXPIRED, Phase.ABANDONED)


@pytest.mark.req("A-20", "P-8.2-a", "T1-11")
def test_reject_refuses_every_confirm_inside_the_grace() -> None:
    for at in (DEADLINE, DEADLINE + DELTA // 2, ABANDONED - 1):
        decision = decide(waiting(), confirm(at, guard_passed=True), at, REJECT)
        assert (decision.code, after(decision).phase) == (phase.TTL_EXPIRED, Phase.TTL_EXPIRED)


@pytest.mark.req("A-22", "P-8.2-a", "T1-10")
@pytest.mark.parametrize("find", [waiting, expired])
def test_reuse_lets_a_guarded_late_confirm_in_until_the_grace_ends(find: Find) -> None:
    known = find(REUSE)
    for at in (DEADLINE, ABANDONED - 1):
        decision = decide(known, confirm(at, guard_passed=True), at, REUSE)
        assert (after(decision).phase, after(decision).version) == (Phase.PROCESSING, known.version + 1)
        assert decision.steps[-1].before == "TTL_EXPIRED"
    late = decide(known, confirm(ABANDONED, guard_passed=True), ABANDONED, REUSE)
    assert (late.code, after(late).phase) == (phase.TTL_EXPIRED, Phase.ABANDONED)


@pytest.mark.req("T1-10", "T1-11")
def test_reuse_without_its_guard_refuses() -> None:
    assert decide(waiting(REUSE), confirm(DEADLINE), DEADLINE, REUSE).code == phase.TTL_EXPIRED


@pytest.mark.req("T1-11")
def test_an_abandoned_intent_says_expired_to_early_and_late_confirms_alike() -> None:
    for policy in (REJECT, REUSE, LITERAL):
        known = abandoned(policy)
        for at in (T0 + 1, ABANDONED, ABANDONED + 10**6):
            decision = decide(known, confirm(at, guard_passed=True), max(at, ABANDONED), policy)
            assert (decision.code, decision.intent) == (phase.TTL_EXPIRED, known)


# Time.


@pytest.mark.req("P-6-e", "P-6-f", "A-26", "A-27", "P-7-e")
@pytest.mark.parametrize(
    ("at", "steps"),
    [
        (DEADLINE - 1, []),
        (DEADLINE, [("TTL_EXPIRED", DEADLINE)]),
        (ABANDONED - 1, [("TTL_EXPIRED", DEADLINE)]),
        (ABANDONED, [("TTL_EXPIRED", DEADLINE), ("ABANDONED", ABANDONED)]),
        (ABANDONED + 999, [("TTL_EXPIRED", DEADLINE), ("ABANDONED", ABANDONED)]),
    ],
)
def test_time_moves_what_is_unconfirmed(at: int, steps: list[tuple[str, int]]) -> None:
    decision = decide(waiting(), Tick(), at, REJECT)
    assert [(step.after, step.at) for step in decision.steps] == steps
    assert all(step.observed_at == at for step in decision.steps)
    assert after(decision).has_payload is (at < ABANDONED)
    assert isinstance(decision.verdict, Goto if steps else Ignore)


@pytest.mark.req("A-27")
def test_a_request_ages_an_intent_as_the_sweeper_does() -> None:
    for at in (DEADLINE, ABANDONED - 1, ABANDONED):
        swept = decide(waiting(), Tick(), at, REJECT)
        assert decide(waiting(), confirm(at), at, REJECT).intent == swept.intent
        assert decide(waiting(), register(at), at, REJECT).steps == swept.steps


def test_without_a_grace_expiry_and_abandonment_are_one_instant() -> None:
    policy = Policy.standard(delta_ms=0)
    decision = decide(waiting(policy), confirm(DEADLINE), DEADLINE, policy)
    assert [step.after for step in decision.steps] == ["TTL_EXPIRED", "ABANDONED"]
    assert (decision.code, after(decision).version) == (phase.TTL_EXPIRED, 2)


@pytest.mark.req("A-83")
def test_a_tombstone_is_forgotten_only_at_its_horizon() -> None:
    known = abandoned()
    ends_at = ABANDONED + REJECT.horizon_ms
    assert decide(known, Tick(), ends_at - 1, REJECT).verdict == Ignore()
    assert after(decide(known, Tick(), ends_at, REJECT)).phase is Phase.ABSENT


@pytest.mark.req("A-83")
def test_a_settled_intent_loses_its_payload_then_its_row() -> None:
    known = committed()
    purged = after(decide(known, Tick(), T0 + 2 + REJECT.payload_retention_ms, REJECT))
    assert (purged.phase, purged.has_payload, purged.status) == (Phase.COMMITTED, False, 200)
    assert purged.due_at == T0 + 2 + REJECT.horizon_ms
    assert decide(purged, Tick(), T0 + 1 + REJECT.horizon_ms, REJECT).verdict == Ignore()
    gone = decide(purged, Tick(), T0 + 2 + REJECT.horizon_ms, REJECT)
    assert (after(gone).phase, gone.steps[0].event) == (Phase.ABSENT, "forgotten")


# Workers: the lease and its fence.


@pytest.mark.req("P-6-c", "P-6-d")
@pytest.mark.parametrize(("succeeded", "last"), [(True, Phase.COMMITTED), (False, Phase.FAILED)])
def test_the_holder_settles(succeeded: bool, last: Phase) -> None:
    decision = decide(processing(), settle(succeeded=succeeded), T0 + 9, REJECT)
    intent = after(decision)
    assert (intent.phase, intent.settled_at, intent.owner, intent.lease_until) == (last, T0 + 9, None, None)
    assert decide(intent, settle(succeeded=succeeded), T0 + 10, REJECT).verdict == Replay()
    assert decide(intent, settle(succeeded=not succeeded), T0 + 10, REJECT).code == phase.ALREADY_SETTLED


@pytest.mark.req("A-34")
def test_the_holder_may_report_an_unknown_outcome() -> None:
    lost = Settle(fence=1, succeeded=False, status=500, indeterminate=True)
    decision = decide(processing(), lost, T0 + 9, REJECT)
    intent = after(decision)
    assert (intent.phase, intent.indeterminate, decision.steps[0].event) == (Phase.FAILED, True, "indeterminate")
    edited = replace(intent, indeterminate=False)
    assert outcome_facts(edited) != outcome_facts(intent) == decision.steps[0].detail
    assert decide(intent, lost, T0 + 10, REJECT).verdict == Replay()
    assert decide(intent, settle(), T0 + 10, REJECT).code == phase.ALREADY_SETTLED
    assert after(decide(processing(), settle(succeeded=False), T0 + 9, REJECT)).indeterminate is False


@pytest.mark.req("A-34")
def test_a_recovery_takes_the_fence_and_the_old_holder_can_no_longer_settle() -> None:
    known = processing()
    assert known.lease_until is not None
    assert decide(known, Tick(owner="worker-2"), known.lease_until - 1, REJECT).verdict == Ignore()
    taken = after(decide(known, Tick(owner="worker-2"), known.lease_until, REJECT))
    assert (taken.fence, taken.owner, taken.phase) == (2, "worker-2", Phase.PROCESSING)
    for late in (settle(1), settle(1, succeeded=False), Renew(fence=1)):
        assert decide(taken, late, known.lease_until + 1, REJECT).code == phase.FENCE_LOST
    settled = after(decide(taken, settle(2), known.lease_until + 1, REJECT))
    assert decide(settled, settle(1), known.lease_until + 2, REJECT).code == phase.FENCE_LOST


@pytest.mark.req("A-34")
def test_what_a_dead_owner_executed_is_taken_over_before_its_lease_ends() -> None:
    known = processing()
    assert decide(known, Tick(owner="worker-2", dead_owner="worker-3"), T0 + 1, REJECT).verdict == Ignore()
    taken = after(decide(known, Tick(owner="worker-2", dead_owner=known.owner), T0 + 1, REJECT))
    assert (taken.fence, taken.owner, taken.phase) == (2, "worker-2", Phase.PROCESSING)


@pytest.mark.req("A-34")
def test_what_a_live_owner_executes_is_not_taken_over_however_old_its_lease_is() -> None:
    known = processing()
    long_after = T0 + 1_000 * REJECT.lease_ms
    decision = decide(known, Tick(owner="worker-2", live_owner=known.owner), long_after, REJECT)
    assert (after(decision).fence, after(decision).owner, decision.steps) == (1, known.owner, ())
    assert after(decision).lease_until == long_after + REJECT.lease_ms
    assert after(decide(after(decision), settle(1), long_after + 1, REJECT)).phase is Phase.COMMITTED


@pytest.mark.req("A-34")
def test_a_live_owner_has_a_leases_time_to_take_up_what_it_has_given_up() -> None:
    known = processing()
    assert known.owner is not None
    assert known.lease_until is not None
    another, itself = Tick(owner="worker-2", live_owner=known.owner), Tick(owner=known.owner)
    patience_ends = known.lease_until + REJECT.lease_ms
    for at in (known.lease_until, patience_ends - 1):
        assert decide(known, another, at, REJECT).verdict == Ignore()
        assert after(decide(known, itself, at, REJECT)).fence == 2
    assert after(decide(known, another, patience_ends, REJECT)).fence == 1


@pytest.mark.req("A-34")
def test_a_heartbeat_extends_the_lease_and_keeps_the_fence() -> None:
    decision = decide(processing(), Renew(fence=1), T0 + 1_000, REJECT)
    assert after(decision).lease_until == after(decision).due_at == T0 + 1_000 + REJECT.lease_ms
    assert (after(decision).fence, decision.steps, decision.changed) == (1, (), True)


@pytest.mark.req("A-34")
def test_a_lease_that_ran_out_still_settles_until_it_is_taken_over() -> None:
    assert after(decide(processing(), settle(), ABANDONED + 10**6, REJECT)).phase is Phase.COMMITTED


@pytest.mark.parametrize("find", [waiting, expired, abandoned])
@pytest.mark.parametrize("command", [settle(0), settle(0, succeeded=False), settle(9), Renew(fence=0), Renew(fence=9)])
def test_an_intent_that_does_not_run_cannot_be_settled(find: Find, command: Command) -> None:
    assert decide(find(REJECT), command, ABANDONED, REJECT).code == phase.NOT_PROCESSING


def test_a_worker_of_a_forgotten_intent_is_told_that_there_is_none() -> None:
    for command in (settle(), settle(succeeded=False), Renew(fence=1)):
        assert decide(None, command, T0, REJECT).code == phase.UNKNOWN
    assert decide(None, Tick(), T0, REJECT).verdict == Ignore()


@pytest.mark.parametrize("find", [committed, failed])
def test_a_heartbeat_after_the_end_learns_that_it_is_over(find: Find) -> None:
    assert decide(find(REJECT), Renew(fence=1), T0 + 9, REJECT).code == phase.ALREADY_SETTLED


# A confirm and the clock.


@pytest.mark.req("A-29")
def test_a_decision_is_never_made_before_the_request_arrived() -> None:
    decision = decide(waiting(), confirm(DEADLINE), T0, REJECT)
    assert (decision.code, after(decision).phase) == (phase.TTL_EXPIRED, Phase.TTL_EXPIRED)
