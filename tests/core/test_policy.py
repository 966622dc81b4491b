"""The three presets, the bounds, and the TTL that is in force."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.profile import STEADY
from twophp.core.errors import ConfigError
from twophp.core.policy import DAY_MS, MAX_REQUESTED_TTL_MS, Policy


@pytest.mark.parametrize(
    ("policy", "ttl_ms", "delta_ms"),
    [
        pytest.param(Policy.low_latency(), 5_000, 1_000, marks=pytest.mark.req("P-12.3-a")),
        pytest.param(Policy.standard(), 30_000, 5_000, marks=pytest.mark.req("P-12.3-b")),
        pytest.param(Policy.long_running(), 120_000, 10_000, marks=pytest.mark.req("P-12.3-c")),
    ],
)
def test_the_presets_are_the_drafts(policy: Policy, ttl_ms: int, delta_ms: int) -> None:
    assert (policy.ttl_ms, policy.delta_ms, policy.max_ttl_ms) == (ttl_ms, delta_ms, 4 * ttl_ms)


@pytest.mark.req("P-8.2-a")
def test_by_default_a_late_confirm_is_rejected() -> None:
    policy = Policy.standard()
    assert (policy.replay, policy.on_crash, policy.mode) == ("REJECT", "fail", "sync")
    assert (policy.transparent, policy.literal_ttl_reject, policy.allow_shorter_ttl) == (False, False, False)


@pytest.mark.req("P-12.3-d", "P-8.2-a")
def test_an_endpoint_changes_what_it_likes_of_a_preset() -> None:
    policy = Policy.low_latency(ttl_ms=7_000, replay="REUSE", mode="async")
    assert (policy.ttl_ms, policy.delta_ms, policy.replay, policy.mode) == (7_000, 1_000, "REUSE", "async")
    assert policy.max_ttl_ms == 28_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_ms": 0},
        {"ttl_ms": -1},
        {"delta_ms": -1},
        {"max_ttl_ms": 29_999},
        {"mode": "later"},
        {"replay": "ACCEPT"},
        {"on_crash": "panic"},
        {"processing_timeout_ms": 0},
        {"lease_ms": 0},
        {"payload_retention_ms": -1},
        {"payload_retention_ms": 8 * DAY_MS},
        {"horizon_ms": DAY_MS - 1, "payload_retention_ms": 0},
        {"ttl_ms": DAY_MS, "horizon_ms": 7 * DAY_MS},
        {"ttl_ms": "30"},
        {"no_such_setting": 1},
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy.standard(**wrong)
    assert caught.value.code == "bad_policy"


@pytest.mark.req("A-83")
def test_the_horizon_has_its_floor_at_a_day_and_at_ten_times_the_longest_wait() -> None:
    assert Policy.standard(horizon_ms=DAY_MS).horizon_ms == DAY_MS
    longest = Policy.standard(ttl_ms=10_000_000, max_ttl_ms=10_000_000, horizon_ms=100_050_000)
    assert longest.horizon_ms == 10 * (longest.max_ttl_ms + longest.delta_ms)


@pytest.mark.req("A-81")
@pytest.mark.parametrize(("lease_ms", "timeout_ms"), [(1_000, 600_000), (600_000, 1_000)])
def test_lease_and_processing_timeout_are_independent(lease_ms: int, timeout_ms: int) -> None:
    policy = Policy.standard(lease_ms=lease_ms, processing_timeout_ms=timeout_ms)
    assert (policy.lease_ms, policy.processing_timeout_ms) == (lease_ms, timeout_ms)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Policy.standard().ttl_ms = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Policy.standard(), ttl_ms=40_000).ttl_ms == 40_000


@pytest.mark.req("A-23")
@pytest.mark.parametrize(
    ("wish", "ttl_ms"),
    [
        (None, 30_000),
        (29_999, 30_000),
        (30_001, 30_001),
        (120_000, 120_000),
        (120_001, 120_000),
        (0, 30_000),
        (-5, 30_000),
        (MAX_REQUESTED_TTL_MS, 120_000),
        (MAX_REQUESTED_TTL_MS + 1, 30_000),
    ],
)
def test_a_wish_lengthens_up_to_the_cap_and_is_ignored_otherwise(wish: int | None, ttl_ms: int) -> None:
    assert Policy.standard().effective_ttl_ms(wish) == ttl_ms


@pytest.mark.req("A-23")
def test_a_shorter_wish_counts_where_it_is_allowed() -> None:
    assert Policy.standard(allow_shorter_ttl=True).effective_ttl_ms(10) == 10
    assert Policy.standard(allow_shorter_ttl=True).effective_ttl_ms(0) == 30_000


@given(st.none() | st.integers(-(2**60), 2**60), st.booleans())
@STEADY
@pytest.mark.req("A-23")
def test_the_ttl_in_force_is_always_positive_and_never_over_the_cap(wish: int | None, shorter: bool) -> None:
    policy = Policy.standard(allow_shorter_ttl=shorter)
    floor = 1 if shorter else policy.ttl_ms
    assert floor <= policy.effective_ttl_ms(wish) <= policy.max_ttl_ms


@pytest.mark.parametrize(
    ("wrong", "choices"), [({"mode": "asynch"}, "sync, async"), ({"on_crash": "retry"}, "fail, rerun")]
)
def test_where_one_of_a_few_was_meant_the_error_names_them(wrong: dict[str, Any], choices: str) -> None:
    with pytest.raises(ConfigError, match=f"one of {choices}"):
        Policy.standard(**wrong)
