from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twophp
from twophp.core import phase
from twophp.core.errors import (
    CommitUnknown,
    Refused,
    StoreOverloaded,
    StorePoisoned,
    StoreUnavailable,
    Tampered,
    WireError,
)
from twophp.wire.problem import PROBLEMS, problem, problem_of

SOURCE = Path(twophp.__file__).parent

STATUSES = {
    400: {"bad_request", "bad_field", "bad_batch", "duplicate_field", "missing_field", "wrong_place", "bad_callback"}
    | {"bad_evidence", "idempotency_key_missing", "idempotency_key_malformed"},
    401: {"unauthenticated"},
    403: {"tls_required", "other_identity"},
    404: {"unknown_intent"},
    408: {"ttl_expired", "body_too_slow"},
    409: {"still_processing", "constraint_violated", "idempotency_key_in_use"},
    413: {"body_too_large"},
    422: {"fingerprint_mismatch", "invalid_request", "mode_mismatch", "idempotency_key_reused"},
    428: {"two_phase_required"},
    429: {"quota_exceeded"},
    500: {"internal", "needs_asyncio", "outcome_indeterminate", "handler_failed", "not_settled", "record_tampered"}
    | {"interrupted"},
    503: {"store_unavailable", "store_overloaded", "commit_unknown", "store_poisoned"},
}


@pytest.mark.req("A-10")
def test_the_vocabulary() -> None:
    told: dict[int, set[str]] = {}
    for code, kind in PROBLEMS.items():
        told.setdefault(kind.status, set()).add(code)
    assert told == STATUSES


@pytest.mark.req("A-10", "A-18", "A-69")
@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_is_a_complete_answer(code: str) -> None:
    answer, kind = problem(code), PROBLEMS[code]
    headers = dict(answer.headers)
    assert len(headers) == len(answer.headers)
    assert answer.status == kind.status
    detail = {"detail": kind.detail} if kind.detail else {}
    assert json.loads(answer.body) == {"status": kind.status, "code": code, "title": kind.title, **detail}
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"cache-control"] == b"no-store"
    if kind.is_plain:  # For a client that knows no 2PHP.
        assert not [name for name in headers if name.startswith(b"dtt-")]
        return
    message = headers[b"dtt-2php-message"]
    assert message == kind.title.encode("ascii")
    assert len(message) <= 200
    assert message.decode().isprintable()


@pytest.mark.req("P-5.4-b", "P-14.1-l", "A-21")
def test_the_408_is_the_drafts_figure() -> None:
    assert problem("ttl_expired").headers == (
        (b"content-type", b"application/problem+json"),
        (b"cache-control", b"no-store"),
        (b"dtt-2php-message", b"Request TTL exceeded. Re-submit as new request."),
        (b"dtt-2php-phase-state", b"TTL_EXPIRED"),
    )


@pytest.mark.req("A-67")
def test_a_phase_is_told_only_where_it_may_be() -> None:
    told = {code: dict(problem(code).headers).get(b"dtt-2php-phase-state") for code in PROBLEMS}
    assert {code: state for code, state in told.items() if state} == {
        "ttl_expired": b"TTL_EXPIRED",
        "still_processing": b"PROCESSING",
        "not_settled": b"PROCESSING",
        "constraint_violated": b"FAILED",
        "outcome_indeterminate": b"FAILED",
        "handler_failed": b"FAILED",
        "interrupted": b"FAILED",
    }


def _codes_raised_by(package: str) -> set[str]:
    """Every literal that names a code in ``WireError(..., code=...)`` or ``_refuse(code, ...)``."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (SOURCE / package).rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "code"]
    placed = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_refuse"]
    return {str(node.value) for node in [*named, *placed] if isinstance(node, ast.Constant)}


@pytest.mark.req("A-10")
def test_no_code_of_the_wire_is_unknown() -> None:
    codes = _codes_raised_by("wire")
    assert {"duplicate_field", "bad_field", "missing_field", "wrong_place", "bad_callback", "internal"} <= codes
    assert codes | {WireError.default_code} <= PROBLEMS.keys()


@pytest.mark.req("A-10")
def test_every_refusal_a_client_can_meet_has_its_own_answer() -> None:
    refusals = [phase.UNKNOWN, phase.TTL_EXPIRED, phase.OTHER_IDENTITY, phase.FINGERPRINT_MISMATCH, phase.MODE_MISMATCH]
    troubles = [kind("x").code for kind in (StoreUnavailable, StoreOverloaded, CommitUnknown, StorePoisoned)]
    assert {*refusals, *troubles} <= PROBLEMS.keys()


@pytest.mark.parametrize("error", [Refused("x", code=phase.FENCE_LOST), Tampered("secret"), Refused("x", code="\r\n")])
def test_an_error_that_is_not_for_the_wire_is_told_as_internal(error: Refused) -> None:
    assert problem_of(error) == problem("internal")


@pytest.mark.req("A-69")
@given(message=st.text(), code=st.text() | st.sampled_from(sorted(PROBLEMS)), name=st.none() | st.text())
def test_nothing_of_an_error_is_echoed(message: str, code: str, name: str | None) -> None:
    told = problem_of(WireError(message, code=code, field=name))
    assert told in [problem(known) for known in PROBLEMS]


@pytest.mark.req("A-10")
def test_the_field_is_named_when_it_is_one_of_the_twelve() -> None:
    told = problem_of(WireError("x", code="bad_field", field="DTT-2PHP-Callback"))
    assert json.loads(told.body)["field"] == "DTT-2PHP-Callback"


def test_retry_after_is_added_to_a_copy() -> None:
    later = problem("store_overloaded", retry_after_s=3)
    assert later.headers == (*problem("store_overloaded").headers, (b"retry-after", b"3"))
    assert b"retry-after" not in dict(problem("store_overloaded").headers)
