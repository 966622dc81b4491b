"""T3 row by row, the failure table RP-01 to RP-10, and what surrounds the transaction."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from tests.core.registrations import (
    BOUND_FIELDS,
    NONCE,
    NONCE_ENDS_AT,
    READY,
    REQUEST,
    STALE_AT,
    T0,
    asks,
    consumed,
    knows,
    registered,
)
from twophp.core import compensation, registrar, rulebook
from twophp.core.errors import Refused
from twophp.core.registrar import (
    RULES,
    Decision,
    Facts,
    Readback,
    decide,
    require_kept,
    resolve,
    uncommitted,
    validate,
    verify,
)
from twophp.core.registration import (
    STEPS,
    Binding,
    Nonce,
    Registration,
    RegistrationRequest,
    State,
    VerifyStatus,
    compare_bindings,
)
from twophp.core.surface import CRITERIA, judge_surface

YEARS = 10**11


class Untouchable:
    """A nonce record that fails the test when a rule reads it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the nonce's {name} was examined")


UNEXAMINED = cast(Nonce, Untouchable())


def short(decision: Decision) -> tuple[str, str, bool]:
    return decision.row, decision.code, decision.admitted


# T3.


@pytest.mark.req("T3-0")
@pytest.mark.parametrize("known", [READY, consumed()])
def test_under_hold_nothing_is_admitted_and_nothing_is_shown(known: Facts) -> None:
    held = msgspec.structs.replace(known, gate_open=False)
    assert decide(REQUEST, held, T0) == Decision("REGISTRATION_HOLD", False, None, row="T3-0")
    unfit = msgspec.structs.replace(known, surface_fit=False)
    refused = decide(REQUEST, unfit, T0)
    assert short(refused) == ("T3-0", "REGISTRATION_HOLD", False)
    assert (refused.cause, refused.result) == ("REPLAY_SURFACE_NOT_FIT", None)


@pytest.mark.req("T3-0")
def test_without_facts_every_request_is_refused() -> None:
    assert not decide(REQUEST, Facts(), T0).admitted


@pytest.mark.req("A-85", "A-100")
@pytest.mark.parametrize("field", REQUEST.__struct_fields__[:9])
def test_an_empty_field_is_refused_before_any_row(field: str) -> None:
    for known in (READY, consumed()):
        decision = decide(asks(**{field: ""}), known, T0)
        assert (decision.code, decision.admitted, decision.result) == ("incomplete_binding", False, None)


@pytest.mark.req("T3-1", "REG-1-16")
@pytest.mark.parametrize("field", BOUND_FIELDS)
@pytest.mark.parametrize("raced", [False, True])
def test_row_1_a_consumed_key_with_another_binding_learns_nothing(field: str, raced: bool) -> None:
    for at in (T0, STALE_AT):
        decision = decide(asks(**{field: "another"}), consumed(raced=raced), at)
        assert (decision.code, decision.admitted) == ("REPLAY_DUPLICATE", False)
        assert (decision.state, decision.result, decision.prior) == (None, None, None)


@pytest.mark.req("T3-2")
@pytest.mark.parametrize(
    ("status", "state"),
    [(VerifyStatus.PENDING, State.S2), (VerifyStatus.PASS, State.CLOSED), (VerifyStatus.FAIL, State.S3)],
)
def test_row_2_an_exact_retry_gets_the_prior_result(status: VerifyStatus, state: State) -> None:
    prior = registered(status)
    assert decide(REQUEST, consumed(status), T0) == Decision("prior_result", False, state, prior, prior, row="T3-2")
    noted = decide(asks(attempt_id="a-2"), consumed(status), T0)
    assert noted == Decision("REPLAY_ATTEMPT_NO_BYPASS", False, state, prior, prior, row="T3-2")


@pytest.mark.req("T3-3")
@pytest.mark.parametrize("at", [STALE_AT, STALE_AT + YEARS, T0 - 1])
def test_row_3_a_stale_retry_is_inadmissible_and_informed(at: int) -> None:
    decision = decide(asks(attempt_id="a-2"), consumed(), at)
    assert short(decision) == ("T3-3", "REPLAY_STALE_ROW", False)
    assert decision.prior == registered(VerifyStatus.PASS)


@pytest.mark.req("T3-4")
@pytest.mark.parametrize("status", list(VerifyStatus))
@pytest.mark.parametrize("at", [T0, STALE_AT])
def test_row_4_another_nonce_is_not_even_examined(status: VerifyStatus, at: int) -> None:
    known = msgspec.structs.replace(consumed(status), nonce=UNEXAMINED)
    decision = decide(asks(authorization_nonce="n-2"), known, at)
    assert short(decision) == ("T3-4", "REPLAY_DUPLICATE", False)
    assert (decision.prior, decision.state) == (registered(status), registered(status).state)


@pytest.mark.req("T3-1", "T3-2", "T3-3", "T3-4")
@pytest.mark.parametrize(
    "request_",
    [REQUEST, asks(attempt_id="a-2"), asks(run_id="run-2"), asks(authorization_nonce="junk")],
)
@pytest.mark.parametrize("raced", [False, True])
def test_a_consumed_key_is_decided_without_looking_at_the_nonce(request_: RegistrationRequest, raced: bool) -> None:
    known = msgspec.structs.replace(consumed(raced=raced), nonce=UNEXAMINED)
    for at in (T0, STALE_AT):
        assert not decide(request_, known, at).admitted


@pytest.mark.req("T3-5")
def test_row_5_a_stale_request_does_not_enter() -> None:
    assert decide(REQUEST, READY, STALE_AT - 1).admitted
    for at in (STALE_AT, T0 - 1):
        decision = decide(REQUEST, READY, at)
        assert short(decision) == ("T3-5", "REPLAY_STALE_ROW", False)
        assert decision.state is State.S0


@pytest.mark.req("T3-6")
@pytest.mark.parametrize("by", ["lrk-1", "lrk-9"])
def test_row_6_a_spent_nonce_buys_nothing(by: str) -> None:
    spent = msgspec.structs.replace(NONCE, consumed_by=by)
    assert short(decide(REQUEST, knows(nonce=spent), T0)) == ("T3-6", "REPLAY_NONCE_CONSUMED", False)


UNBOUND = [
    None,
    msgspec.structs.replace(NONCE, owner_or_approval_binding="owner-2"),
    msgspec.structs.replace(NONCE, authorization_nonce="n-2"),
    msgspec.structs.replace(NONCE, valid_from=T0 + 1),
    msgspec.structs.replace(NONCE, valid_until=T0),
]


@pytest.mark.req("T3-7")
@pytest.mark.parametrize("nonce", UNBOUND)
def test_row_7_a_nonce_that_is_not_bound_to_this_request_now(nonce: Nonce | None) -> None:
    assert short(decide(REQUEST, knows(nonce=nonce), T0)) == ("T3-7", "NONCE_UNBOUND", False)


@pytest.mark.req("T3-8")
def test_row_8_the_same_effect_under_another_key() -> None:
    assert short(decide(REQUEST, knows(effect_elsewhere=True), T0)) == ("T3-8", "REPLAY_DUPLICATE", False)


@pytest.mark.req("T3-9")
def test_row_9_the_loser_of_a_race_reads_the_winners_result() -> None:
    winner = registered()
    for loser in (asks(attempt_id="a-2"), asks(attempt_id="a-2", authorization_nonce="n-2")):
        decision = decide(loser, consumed(VerifyStatus.PENDING, raced=True), T0)
        assert decision == Decision(
            "ATTEMPT_COLLISION", False, State.S4, winner, winner, cause="REPLAY_DUPLICATE", row="T3-9"
        )
    stranger = decide(asks(run_id="run-2"), consumed(raced=True), T0)
    assert (*short(stranger), stranger.result) == ("T3-9", "REPLAY_DUPLICATE", False, None)


@pytest.mark.req("T3-10")
def test_row_10_consumes_and_writes_the_inert_row() -> None:
    decision = decide(REQUEST, READY, T0 + 3)
    assert short(decision) == ("T3-10", "registered", True)
    assert (decision.state, decision.prior) == (State.S2, None)
    row = decision.result
    assert row is not None
    assert (row.status, row.verify_status, row.registered_at) == ("draft", VerifyStatus.PENDING, T0 + 3)
    assert (row.replay_key, row.logical_request_key, row.authorization_nonce) == (REQUEST.replay_key, "lrk-1", "n-1")


@pytest.mark.req("T3-11")
def test_row_11_an_uncommitted_decision_shows_nothing_and_sends_to_resolve() -> None:
    admitted = decide(REQUEST, READY, T0)
    assert uncommitted(admitted, known=True) == Decision("commit_failed", False, State.S1, row="T3-11")
    assert uncommitted(admitted, known=False) == Decision("commit_unknown", False, State.S1, row="T3-11")
    assert resolve(None) == Decision("ABSENT", False, State.S0)
    assert decide(REQUEST, READY, T0 + 1).admitted  # rolled back, so key and nonce are as they were.


@pytest.mark.req("A-96", "REG-S1")
def test_an_attempt_that_began_before_resolve_said_absent_has_lost() -> None:
    decision = decide(REQUEST, knows(fenced=True), T0)
    assert decision == Decision("attempt_fenced", False, State.S0, row="A-96")
    assert decide(REQUEST, consumed(fenced=True), T0).code == "prior_result"  # What is consumed is not fenced off.


@pytest.mark.req("T3-10", "REG-3-11", "REG-3-13")
@pytest.mark.parametrize(
    ("status", "code", "state"),
    [
        (VerifyStatus.PENDING, "registered", State.S2),
        (VerifyStatus.PASS, "registered", State.CLOSED),
        (VerifyStatus.FAIL, "verify_failed", State.S3),
    ],
)
def test_the_verifier_says_how_an_admitted_decision_ends(status: VerifyStatus, code: str, state: State) -> None:
    decision = registrar.verified(decide(REQUEST, READY, T0), status)
    assert (decision.code, decision.state, decision.admitted) == (code, state, True)
    assert decision.result == registered(status)


def test_no_step_leads_from_a_consumed_key_back_to_s0() -> None:
    ahead, seen = [State.S2, State.S4], set[State]()
    while ahead:
        state = ahead.pop()
        if state not in seen:
            seen.add(state)
            ahead += STEPS[state].values()
    assert seen == {State.S2, State.S3, State.S4, State.CLOSED}


@pytest.mark.parametrize("value", [None, 7, "", "\ud800"])
def test_what_is_no_text_is_incomplete(value: Any) -> None:
    assert decide(asks(run_id=value), READY, T0).code == "incomplete_binding"


@pytest.mark.req("A-96")
@pytest.mark.parametrize("status", list(VerifyStatus))
def test_resolve_answers_at_any_age(status: VerifyStatus) -> None:
    found = registered(status)
    assert resolve(found) == Decision("CONSUMED", False, found.state, found, found)


def test_the_list_is_in_the_order_of_t3_and_one_rule_admits() -> None:
    rows = [int(rule.row.removeprefix("T3-")) for rule in RULES if rule.row.startswith("T3-")]
    assert rows == sorted(rows)
    assert set(rows) == set(range(11))
    assert [rule.row for rule in RULES if rule.admits] == ["T3-10"]


def test_every_failure_of_the_contract_is_named_by_a_rule() -> None:
    named = {ref for rule in RULES for ref in rule.requirements if ref.startswith("REG-RP-")}
    assert named == {f"REG-RP-{number:02}" for number in range(1, 11)}


def test_a_request_that_no_rule_answers_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        rulebook.first_match(RULES[:-1], registrar.Case(request=REQUEST, facts=READY, now=T0, binding=Binding.FREE))
    assert caught.value.code == "no_rule"


@pytest.mark.req("A-82")
def test_one_comparison_of_bindings_for_registrar_and_phase_1() -> None:
    assert compare_bindings(None, "a") is Binding.FREE
    assert compare_bindings("a", "a") is Binding.SAME
    assert compare_bindings("a", "b") is Binding.OTHER


# The failure table. RP-06, RP-09 and RP-10 need a database to be shown whole; here is what the rules owe them.


@pytest.mark.req("REG-RP-01", "REG-1-12")
def test_RP_01_a_new_attempt_does_not_bypass_the_key() -> None:  # noqa: N802
    decision = decide(asks(attempt_id="a-2"), consumed(), T0)
    assert (decision.code, decision.admitted) == ("REPLAY_ATTEMPT_NO_BYPASS", False)
    assert decision.result == registered(VerifyStatus.PASS)


@pytest.mark.req("REG-RP-02", "REG-1-10")
def test_RP_02_a_fresh_nonce_does_not_buy_the_same_effect_again() -> None:  # noqa: N802
    fresh = msgspec.structs.replace(NONCE, authorization_nonce="n-2")
    known = msgspec.structs.replace(consumed(), nonce=fresh)
    decision = decide(asks(authorization_nonce="n-2", attempt_id="a-2"), known, T0)
    assert (decision.code, decision.admitted, decision.prior) == ("REPLAY_DUPLICATE", False, known.consumed)
    other_key = asks(logical_request_key="lrk-2", authorization_nonce="n-2")
    assert decide(other_key, knows(nonce=fresh, effect_elsewhere=True), T0).code == "REPLAY_DUPLICATE"


@pytest.mark.req("REG-RP-03")
def test_RP_03_a_consumed_nonce_is_refused_for_another_key() -> None:  # noqa: N802
    spent = msgspec.structs.replace(NONCE, consumed_by="lrk-1")
    decision = decide(asks(logical_request_key="lrk-2", run_id="run-2"), knows(nonce=spent), T0)
    assert (decision.code, decision.admitted) == ("REPLAY_NONCE_CONSUMED", False)


@pytest.mark.req("REG-RP-04", "REG-1-08")
@pytest.mark.parametrize("nonce", UNBOUND)
def test_RP_04_a_free_floating_nonce_is_refused_by_validator_and_registrar(nonce: Nonce | None) -> None:  # noqa: N802
    assert validate(REQUEST, nonce, T0) == ("NONCE_UNBOUND",)
    assert decide(REQUEST, knows(nonce=nonce), T0).code == "NONCE_UNBOUND"


@pytest.mark.req("REG-RP-05")
def test_RP_05_an_exact_retry_returns_the_very_bytes_of_the_prior_result() -> None:  # noqa: N802
    first = decide(REQUEST, READY, T0)
    retry = decide(REQUEST, knows(consumed=first.result), T0 + 7)
    assert not retry.admitted
    assert msgspec.json.encode(retry.result) == msgspec.json.encode(first.result)


def test_RP_06_after_a_crash_before_commit_nothing_was_consumed() -> None:  # noqa: N802
    crashed = uncommitted(decide(REQUEST, READY, T0), known=False)
    assert (crashed.state, crashed.result) == (State.S1, None)
    assert resolve(None).code == "ABSENT"


@pytest.mark.req("REG-RP-07")
def test_RP_07_after_a_failed_verification_the_key_stays_consumed() -> None:  # noqa: N802
    fresh = msgspec.structs.replace(NONCE, authorization_nonce="n-2")
    known = msgspec.structs.replace(consumed(VerifyStatus.FAIL), nonce=fresh)
    for again in (REQUEST, asks(attempt_id="a-2"), asks(authorization_nonce="n-2")):
        decision = decide(again, known, T0)
        assert (decision.admitted, decision.state) == (False, State.S3)


@pytest.mark.req("REG-RP-08", "REG-4-02", "REG-4-05")
@pytest.mark.parametrize("at", [STALE_AT, NONCE_ENDS_AT, T0 + YEARS])
def test_RP_08_staleness_does_not_erase_that_it_was_consumed(at: int) -> None:  # noqa: N802
    assert decide(REQUEST, consumed(), at).code == "REPLAY_STALE_ROW"
    renewed = asks(issued_at=at, valid_until=at + 9)
    assert decide(renewed, consumed(), at).prior == registered(VerifyStatus.PASS)
    assert validate(REQUEST, NONCE, STALE_AT) == ("REPLAY_STALE_ROW",)


def test_RP_09_of_two_attempts_one_wins() -> None:  # noqa: N802
    winner = decide(REQUEST, READY, T0)
    loser = decide(asks(attempt_id="a-2"), knows(consumed=winner.result, raced=True), T0)
    assert (winner.admitted, loser.admitted, loser.code) == (True, False, "ATTEMPT_COLLISION")
    assert loser.result == winner.result


def test_RP_10_an_attempt_ledger_is_not_fit() -> None:  # noqa: N802
    assert judge_surface(dict.fromkeys(CRITERIA, False)).code == "REPLAY_SURFACE_NOT_FIT"
    assert decide(REQUEST, knows(surface_fit=False), T0).cause == "REPLAY_SURFACE_NOT_FIT"


# The validator.


@pytest.mark.req("REG-7-04", "A-100")
def test_the_validator_owns_no_state_and_the_registrar_repeats_its_objections() -> None:
    assert validate(REQUEST, NONCE, T0) == validate(REQUEST, NONCE, T0) == ()
    bad = asks(run_id="")
    assert validate(bad, None, STALE_AT) == ("incomplete_binding", "REPLAY_STALE_ROW", "NONCE_UNBOUND")
    for request_, nonce, at in ((bad, NONCE, T0), (REQUEST, NONCE, STALE_AT), (REQUEST, None, T0)):
        assert decide(request_, knows(nonce=nonce), at).code == validate(request_, nonce, at)[0]


@pytest.mark.req("REG-7-04")
def test_the_validator_cannot_tell_a_consumed_nonce() -> None:
    assert validate(REQUEST, msgspec.structs.replace(NONCE, consumed_by="lrk-1"), T0) == ()


def test_a_request_without_a_window_is_always_fresh() -> None:
    assert asks(issued_at=None, valid_until=None).is_fresh(YEARS)


# The verifier, and the invariant.


def read(row: Registration | None = None, **changes: Any) -> Readback:
    return Readback(**({"registrations": (row or registered(),), "nonce_consumed_by": "lrk-1"} | changes))


@pytest.mark.req("A-92")
@pytest.mark.parametrize(
    ("readback", "status"),
    [
        (read(), VerifyStatus.PASS),
        (None, VerifyStatus.PENDING),
        (read(registrations=()), VerifyStatus.FAIL),
        (read(registrations=(registered(), registered())), VerifyStatus.FAIL),
        (read(nonce_consumed_by=None), VerifyStatus.FAIL),
        (read(nonce_consumed_by="lrk-2"), VerifyStatus.FAIL),
        (read(msgspec.structs.replace(registered(), status="active")), VerifyStatus.FAIL),
        (read(msgspec.structs.replace(registered(), run_id="run-2")), VerifyStatus.FAIL),
        (read(msgspec.structs.replace(registered(), run_id="")), VerifyStatus.FAIL),
    ],
)
def test_the_verifier_passes_only_what_it_read_back_whole(readback: Readback | None, status: VerifyStatus) -> None:
    assert verify(readback) is status


@pytest.mark.req("REG-4-07")
def test_a_consumed_record_that_disappears_is_called_by_its_name() -> None:
    require_kept(["lrk-1"], {"lrk-1", "lrk-2"})
    with pytest.raises(Refused) as caught:
        require_kept(["lrk-1", "lrk-2"], {"lrk-2"})
    assert caught.value.code == "CONSUMED_STATE_ERASED_BY_STALE_REQUEST"


# The surface.


@pytest.mark.req("REG-6-00", "REG-7-01", "REG-7-02")
@pytest.mark.parametrize("letter", list(CRITERIA))
def test_each_criterion_alone_keeps_the_domain_closed(letter: str) -> None:
    verdict = judge_surface({other: other != letter for other in CRITERIA})
    assert (verdict.fit, verdict.code, verdict.failed) == (False, "REPLAY_SURFACE_NOT_FIT", (letter,))
    assert verdict.domain_status == "REPLAY_DOMAIN_FAIL_CLOSED_UNTIL_SURFACE_FIT_PROVEN"


@pytest.mark.req("REG-6-00", "REG-6-09")
def test_only_proofs_open_the_domain() -> None:
    assert judge_surface(dict.fromkeys(CRITERIA, True)).domain_status == "REPLAY_DOMAIN_READY_AS_CRITERIA"
    assert judge_surface({}).failed == tuple("abcdefgh")
    assert not judge_surface(dict.fromkeys(CRITERIA, cast(bool, "yes"))).fit


# Codes.


def test_every_code_has_its_meaning_and_no_other_is_explained() -> None:
    said = {rule.code for rules in (RULES, compensation.RULES) for rule in rules}
    said |= {rule.cause for rule in RULES if rule.cause is not None}
    around = {"verify_failed", "commit_failed", "commit_unknown", "CONSUMED", "ABSENT"}
    assert set(rulebook.CODES) == said | around | {"CONSUMED_STATE_ERASED_BY_STALE_REQUEST"}
