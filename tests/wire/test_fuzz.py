"""Any bytes give a value or a WireError, and the same fields give the same result however they were packed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twophp.core.errors import WireError
from twophp.core.intent import Mode, Phase
from twophp.wire.fields import FIELDS
from twophp.wire.parse import PLAIN, PhaseOne, PhaseTwo, Request, StatusRead, parse, parse_response
from twophp.wire.problem import PROBLEMS, problem, problem_of

from .samples import AUTO_CONFIRM, CALLBACK, PHASE_ONE, PHASE_TWO, REQUESTED_TTL, TRANSPARENT, Pairs, outcome

if TYPE_CHECKING:
    from twophp.wire.problem import Problem

OPAQUE = [b"dtt-2php-resource-id", b"dtt-2php-message"]
IDS = [b"dtt-2php-client-correlation-id", b"dtt-2php-server-correlation-id"]
SPECIAL = [b"true", b"TRUE", b"false", b"", b",", b"true, true", b"true,false", b" \t", b"a", b"a,a", b"a,b", b"\x00"]
SPECIAL += [b"https://a/x", b"http://a", b"https://u@a", b"5000", b"-1", b"\r\n x", b"\xff\xfe", b"9" * 400, b"a" * 129]
SPECIAL += [b"COMMITTED", b"WAITING_CONFIRM", b"2026-01-02T03:04:05.678Z", b"REUSE"]

our_names = st.sampled_from([field.key for field in FIELDS]).flatmap(
    lambda key: st.sampled_from([key, key.upper(), key.title(), key + b" ", key[:-1]])
)
names = our_names | st.sampled_from([b"host", b"", b"cookie"]) | st.binary(max_size=40)
values = st.sampled_from(SPECIAL) | st.binary(max_size=60)
any_headers = st.lists(st.tuples(names, values), max_size=12)
methods = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]) | st.text(max_size=6)
any_paths = st.sampled_from(["/orders", "/orders/confirm", "/", "/confirm", "", "*"]) | st.text(max_size=20)


def judged(method: str, path: str, headers: Pairs) -> Request | Problem:
    """What the service would do; anything but a WireError goes through and fails the test."""
    try:
        return parse(method, path, headers)
    except WireError as error:
        answer = problem_of(error)
        assert answer.status == 400
        assert answer in {problem(code, field=field.name) for code in PROBLEMS for field in FIELDS}
        return answer


def is_sound(found: Request) -> bool:
    """What the rest of the code may rely on."""
    if isinstance(found, PhaseOne):
        named = found.client_correlation_id is not None or found.mode is Mode.TRANSPARENT
        return named and (found.callback is not None) == (found.mode is Mode.AUTO_CONFIRM)
    if isinstance(found, PhaseTwo | StatusRead):
        return bool(found.client_correlation_id) and bool(found.server_correlation_id)
    return found is PLAIN


@given(method=methods, path=any_paths, headers=any_headers)
def test_any_request_is_judged(method: str, path: str, headers: Pairs) -> None:
    found = judged(method, path, headers)
    assert not isinstance(found, Request) or is_sound(found)


@pytest.mark.req("P-5.1-c", "A-36")
@given(method=methods, path=any_paths, headers=any_headers)
def test_without_the_opt_in_nothing_else_matters(method: str, path: str, headers: Pairs) -> None:
    rest = [(name, value) for name, value in headers if name.lower() != b"dtt-2php-enabled"]
    assert parse(method, path, rest) is PLAIN


# --- mutations of valid requests ---------------------------------------------------------------------------------

VALID: list[tuple[str, str, Pairs]] = [
    ("POST", "/orders", PHASE_ONE),
    ("PUT", "/orders/42", [*PHASE_ONE, REQUESTED_TTL, CALLBACK]),
    ("POST", "/orders/confirm", PHASE_TWO),
    ("GET", "/orders/42", PHASE_TWO),
    ("DELETE", "/orders/42", AUTO_CONFIRM),
    ("PATCH", "/", TRANSPARENT),
]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, str, Pairs]:
    """A valid request with one to three things changed: a byte, a value, a name, a repeat, a loss."""
    method, path, valid = draw(st.sampled_from(VALID))
    headers = list(valid)
    for _ in range(draw(st.integers(1, 3))):
        if not headers:
            break
        at = draw(st.integers(0, len(headers) - 1))
        name, value = headers[at]
        change = draw(st.sampled_from(["byte", "value", "name", "repeat", "drop", "join"]))
        if change == "byte":
            spot = draw(st.integers(0, len(value)))
            headers[at] = name, value[:spot] + draw(st.binary(min_size=1, max_size=1)) + value[spot:]
        elif change == "value":
            headers[at] = name, draw(values)
        elif change == "name":
            headers[at] = draw(our_names), value
        elif change == "repeat":
            headers.append((name, draw(st.just(value) | values)))
        elif change == "join":
            headers[at] = name, value + b"," + draw(st.just(value) | values)
        else:
            del headers[at]
    return draw(st.just(method) | methods), draw(st.just(path) | any_paths), headers


@given(mutated())
def test_a_damaged_request_is_judged(request_: tuple[str, str, Pairs]) -> None:
    found = judged(*request_)
    assert not isinstance(found, Request) or is_sound(found)


@pytest.mark.req("A-11", "A-17")
@given(request_=mutated(), seed=st.integers(0, 2**32))
def test_order_case_and_padding_change_nothing(request_: tuple[str, str, Pairs], seed: int) -> None:
    method, path, headers = request_
    dice = random.Random(seed)  # noqa: S311 (Only a shuffle that Hypothesis can repeat.)
    repacked = [
        (dice.choice([name, name.upper(), name.title()]), dice.choice([b"", b" ", b"\t "]) + value + b" ")
        for name, value in headers
    ]
    dice.shuffle(repacked)
    assert outcome(method, path, repacked) == outcome(method, path, headers)


@pytest.mark.req("A-12")
@given(mutated())
def test_joining_repeated_lines_changes_nothing(request_: tuple[str, str, Pairs]) -> None:
    method, path, headers = request_
    lines: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lines.setdefault(name.lower(), []).append(value)
    # An id with a comma, or joined with nothing, reads as another one; it is never joined by our own side.
    assume(all(value.strip(b" \t") and b"," not in value for key in IDS for value in lines.get(key, ())))
    joined = [(name, b", ".join(found)) for name, found in lines.items() if name not in OPAQUE]
    kept = [(name, value) for name, value in headers if name.lower() in OPAQUE]
    assert outcome(method, path, joined + kept) == outcome(method, path, headers)


# --- answers ----------------------------------------------------------------------------------------------------


@pytest.mark.req("A-06", "P-14.1-g")
@given(any_headers)
def test_any_answer_is_read_or_refused(headers: Pairs) -> None:
    try:
        found = parse_response(headers)
    except WireError as error:
        assert error.code in ("bad_field", "duplicate_field", "missing_field")  # noqa: PT017 (Any is fine.)
        return
    assert found is None or found.phase is not Phase.ABSENT
    assert (found is None) == all(name.lower() != b"dtt-2php-phase-state" for name, _ in headers)
