"""Quotas, budgets and fencing tokens: counts that are kept in the change they belong to."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.intents import processing, waiting
from twophp.core import budget, fence, quota
from twophp.core.budget import BudgetExhausted, Spent, spent_after
from twophp.core.errors import ConfigError
from twophp.core.fence import Fence, is_current, raised
from twophp.core.intent import Intent, Phase
from twophp.core.obligation import Obligation, State
from twophp.core.quota import Quota, Usage, admitted, counts, released
from twophp.core.records import Key

INTENT = msgspec.structs.replace(waiting(), principal="alice", counted_bytes=100)


# Quotas


def test_the_first_intent_of_a_principal_begins_its_usage() -> None:
    assert admitted(None, INTENT, Quota()) == Usage("alice", 1, 100, 1)


def test_every_intent_counts_with_its_bytes_and_makes_a_new_version() -> None:
    usage = Usage("alice", 3, 500, 7)
    assert admitted(usage, INTENT, Quota()) == Usage("alice", 4, 600, 8)
    assert released(usage, INTENT) == Usage("alice", 2, 400, 8)


@pytest.mark.parametrize(
    ("usage", "is_admitted"),
    [
        (Usage("alice", 4, 0, 1), True),  # The fifth of five.
        (Usage("alice", 5, 0, 1), False),
        (Usage("alice", 0, 900, 1), True),  # The last byte of a thousand.
        (Usage("alice", 0, 901, 1), False),
        (Usage("alice", 5, 901, 1), False),
    ],
)
def test_a_quota_is_full_when_either_is_used_up(usage: Usage, is_admitted: bool) -> None:
    assert (admitted(usage, INTENT, Quota(open_intents=5, open_bytes=1_000)) is not None) is is_admitted
    assert admitted(usage, INTENT, None) is not None


def test_the_last_intent_takes_the_usage_with_it() -> None:
    assert released(Usage("alice", 1, 100, 1), INTENT) is None
    assert released(Usage("alice", 2, 100, 1), INTENT) == Usage("alice", 1, 0, 2)


def test_what_was_not_counted_is_not_subtracted() -> None:
    uncounted = msgspec.structs.replace(INTENT, counted_bytes=None)
    assert released(Usage("alice", 2, 50, 1), uncounted) == Usage("alice", 1, 50, 2)
    assert released(Usage("alice", 2, 50, 1), INTENT) == Usage("alice", 1, 0, 2)  # Never below nothing.
    assert admitted(Usage("alice", 2, 50, 1), uncounted, None) == Usage("alice", 3, 50, 2)


def test_an_intent_counts_while_it_waits_and_while_it_runs() -> None:
    running = msgspec.structs.replace(processing(), counted_bytes=0)
    settled = msgspec.structs.replace(running, phase=Phase.COMMITTED)
    expired = msgspec.structs.replace(INTENT, phase=Phase.TTL_EXPIRED)
    uncounted = msgspec.structs.replace(INTENT, counted_bytes=None)
    told: list[Intent | None] = [INTENT, running, settled, expired, uncounted, None]
    assert [counts(intent) for intent in told] == [True, True, False, False, False, False]


def test_a_usage_is_found_by_its_principal_and_never_due() -> None:
    usage = Usage("alice", 1, 1, 1)
    assert usage.keys() == (Key("quota.principal", ("alice",)),) == (quota.by_principal("alice"),)
    assert usage.due_at is None


@pytest.mark.parametrize("wrong", [{"open_intents": 0}, {"open_bytes": 0}, {"open_intents": True}, {"open_bytes": 1.5}])
def test_a_quota_that_admits_nothing_or_is_no_number_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Quota(**wrong)
    assert refusal.value.code == "bad_quota"


def test_one_intent_of_one_byte_is_the_smallest_quota() -> None:
    assert admitted(None, msgspec.structs.replace(INTENT, counted_bytes=1), Quota(open_intents=1, open_bytes=1))


# Budgets


def test_a_budget_counts_what_is_reserved_and_forgets_an_empty_flow() -> None:
    first = spent_after(None, "publish", 1, 2)
    assert first == Spent("publish", 1, 1)
    second = spent_after(first, "publish", 1, 2)
    assert second == Spent("publish", 2, 2)
    assert spent_after(second, "publish", -1, 2) == Spent("publish", 1, 3)
    assert spent_after(first, "publish", -1, 2) is None


def test_a_budget_refuses_growth_alone() -> None:
    full = Spent("publish", 2, 5)
    with pytest.raises(BudgetExhausted) as refusal:
        spent_after(full, "publish", 1, 2)
    assert refusal.value.code == "flow_budget_exhausted"
    assert spent_after(full, "publish", 1, None) == Spent("publish", 3, 6)
    assert spent_after(Spent("publish", 9, 5), "publish", -1, 2) == Spent("publish", 8, 6)  # It was lowered.
    assert spent_after(full, "publish", 0, 1) == Spent("publish", 2, 6)


def test_a_count_is_found_by_its_flow_and_never_due() -> None:
    spent = Spent("publish", 1, 1)
    assert spent.keys() == (Key("budget.flow", ("publish",)),) == (budget.by_flow("publish"),)
    assert spent.due_at is None


# Fencing tokens


def test_a_token_rises_by_one_with_each_holder() -> None:
    first = raised(None, "printer", "o-1")
    assert first == Fence("printer", 1, "o-1", 1)
    assert raised(first, "printer", "o-2") == Fence("printer", 2, "o-2", 2)
    assert first.keys() == (Key("fence.resource", ("printer",)),) == (fence.by_resource("printer"),)
    assert first.due_at is None


@pytest.mark.parametrize(
    ("token", "holder", "at", "holds"),
    [
        (2, "o-2", 99, True),
        (1, "o-2", 99, False),  # Of an earlier holder.
        (3, "o-2", 99, False),  # Of nobody.
        (2, "o-1", 99, False),  # Another obligation.
        (2, None, 99, False),
        (2, "o-2", 101, False),  # Its time is over.
    ],
)
def test_only_the_newest_token_holds_and_only_in_time(token: int, holder: str | None, at: int, holds: bool) -> None:
    known = None if holder is None else reserved(holder)
    assert is_current(Fence("printer", 2, "o-2", 2), token, known, at) is holds
    assert not is_current(None, token, known, at)


def test_what_was_released_holds_no_longer() -> None:
    done = msgspec.structs.replace(reserved("o-2"), state=State.COMMITTED)
    assert not is_current(Fence("printer", 2, "o-2", 2), 2, done, 50)


def reserved(obligation_id: str) -> Obligation:
    return Obligation(obligation_id, "fencing", "printer", "t", "", reserved_at=0, timeout_ms=100, state=State.RESERVED)
