"""What a handler's status means, and what may follow a redirect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.intents import failed, register
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.outcome import has_failed, has_succeeded, is_followed_by, was_redirected

REDIRECTED = msgspec.structs.replace(failed(), status=307, request_digest="d", callback="")


@pytest.mark.req("A-08")
@pytest.mark.parametrize(
    ("status", "succeeded"),
    [(200, True), (299, True), (300, False), (302, False), (303, True), (304, False), (400, False), (500, False)],
)
def test_a_2xx_or_see_other_is_success_and_all_else_is_not(status: int, succeeded: bool) -> None:
    assert has_succeeded(status) is succeeded
    assert has_failed(status) is not succeeded


@pytest.mark.parametrize("no_status", [None, "500", 500.0, True])
def test_what_is_no_status_has_not_failed(no_status: object) -> None:
    assert has_failed(no_status) is False


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"status": 303}, False), ({"status": 500}, False), ({"phase": Phase.COMMITTED}, False)],
)
def test_a_redirect_is_a_failure_with_a_place_to_go_to(changes: dict[str, Any], expected: bool) -> None:
    assert was_redirected(msgspec.structs.replace(REDIRECTED, **changes)) is expected


FOLLOWING: dict[str, Any] = {
    "follows": "s1",
    "method": REDIRECTED.method,
    "request_digest": "d",
    "path": "/elsewhere",
}


def follows(intent: Intent = REDIRECTED, **changes: Any) -> bool:
    return is_followed_by(intent, register(**(FOLLOWING | changes)))


def test_the_same_request_at_the_other_place_follows() -> None:
    assert follows()


@pytest.mark.parametrize(
    "changes",
    [
        {"follows": "s2"},
        {"follows": None},
        {"method": "PUT"},
        {"request_digest": "another"},
        {"callback": "another"},
        {"mode": Mode.AUTO_CONFIRM},
    ],
)
def test_another_request_does_not_follow(changes: dict[str, Any]) -> None:
    assert not follows(**changes)


def test_nothing_follows_what_was_not_redirected() -> None:
    assert not follows(msgspec.structs.replace(REDIRECTED, status=500))


def test_an_asynchronous_request_may_follow_a_standard_one() -> None:
    assert follows(mode=Mode.ASYNC)
