"""Linear time, shown by counting work instead of by a clock.

Two facts together bound the cost of a request. The interpreter's work (bytecodes and calls into C) grows by the same
amount for each further header, repeat or comma, and not at all with the length of a value. And the one call into C that
could cost more than the length of its argument, a regular expression, has nothing to try twice.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import twophp.wire
from twophp.core.errors import WireError
from twophp.wire.parse import parse, parse_response

from .samples import AUTO, CLIENT_ID, ENABLED, PHASE_ONE, PHASE_TWO, SERVER_ID, Pairs, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType


def work_of(call: Callable[[], object]) -> int:
    """Bytecodes executed plus calls into C while ``call`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "c_call"

    before_trace, before_profile = sys.gettrace(), sys.getprofile()
    gc.disable()  # A collection in between would run other people's callbacks, and count them.
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    except WireError:
        pass
    finally:
        sys.setprofile(before_profile)
        sys.settrace(before_trace)
        gc.enable()
    return count


def grows_evenly(build: Callable[[int], object], size: int = 64) -> bool:
    """Whether twice the input adds twice the work: the second difference is nil, but for a constant."""
    work_of(lambda: build(size))  # What is done once in a process is done.
    first, second, third = (work_of(lambda n=n: build(n)) for n in (size, 2 * size, 4 * size))  # type: ignore[misc]
    return abs((third - second) - 2 * (second - first)) <= size // 4


MANY: dict[str, Callable[[int], Pairs]] = {
    "foreign headers": lambda n: [(b"x-%d" % i, b"v") for i in range(n)] + PHASE_ONE,
    "foreign headers of the opt-in's length": lambda n: [(b"content-encoding", b"gzip")] * n + PHASE_ONE,
    "identical opt-ins": lambda n: [ENABLED] * n + [CLIENT_ID],
    "opt-ins that say no": lambda n: [field("enabled", b"false")] * n,
    "differing opt-ins": lambda n: [field("enabled", b"%d" % i) for i in range(n)] + PHASE_ONE,
    "differing ids": lambda n: [ENABLED] + [field("client-correlation-id", b"%d" % i) for i in range(n)],
    "commas in an id": lambda n: [ENABLED, field("client-correlation-id", b"a," * n)],
    "equal parts": lambda n: [ENABLED, field("client-correlation-id", b"a, " * n + b"a")],
    "commas in the opt-in": lambda n: [field("enabled", b"x," * n + b"true"), CLIENT_ID],
    "server ids": lambda n: [*PHASE_ONE, *[SERVER_ID] * n],
}


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize(("method", "path"), [("POST", "/orders"), ("POST", "/orders/confirm"), ("GET", "/orders")])
def test_each_further_field_costs_the_same(kind: str, method: str, path: str) -> None:
    assert grows_evenly(lambda n: parse(method, path, MANY[kind](n)))


@pytest.mark.parametrize("name", ["phase-state", "ttl", "message", "server-correlation-id"])
def test_each_further_field_of_an_answer_costs_the_same(name: str) -> None:
    waiting = field("phase-state", b"WAITING_CONFIRM")
    assert grows_evenly(lambda n: parse_response([waiting, *(field(name, b"%d" % i) for i in range(n))]))


LONG: dict[str, Callable[[int], Pairs]] = {
    "opt-in": lambda n: [field("enabled", b" " * n + b"true"), CLIENT_ID],
    "client id": lambda n: [ENABLED, field("client-correlation-id", b"a" * n)],
    "server id": lambda n: [*PHASE_ONE, field("server-correlation-id", b"a" * n)],
    "callback": lambda n: [ENABLED, AUTO, CLIENT_ID, field("callback", b"https://" + b"a" * n)],
    "requested ttl": lambda n: [*PHASE_ONE, field("requested-ttl", b"9" * n)],
    "foreign": lambda n: [*PHASE_TWO, (b"cookie", b"a" * n)],
}


@pytest.mark.parametrize("kind", LONG)
def test_a_longer_value_takes_no_further_step(kind: str) -> None:
    short, long = (work_of(lambda n=n: parse("POST", "/orders/confirm", LONG[kind](n))) for n in (5_000, 500_000))  # type: ignore[misc]
    assert short == long


def test_a_plain_request_costs_one_short_scan() -> None:
    """The scan is all there is: less than 15 bytecodes a header, for every header."""
    headers = [(b"x-%d" % i, b"true") for i in range(100)]
    assert work_of(lambda: parse("POST", "/orders", headers)) < 15 * 100 + 100


def test_the_meter_notices_a_quadratic_scan() -> None:
    def quadratic(n: int) -> list[int]:
        return [i for i in range(n) for j in range(i) if j < 0]

    assert not grows_evenly(quadratic)


# --- patterns ---------------------------------------------------------------------------------------------------

_PARSER: Any = importlib.import_module("re._parser")
_OPS: Any = importlib.import_module("re._constants")
EVERY_BYTE = frozenset(range(256))


def _class(items: Iterable[tuple[Any, Any]]) -> frozenset[int]:
    """The bytes of a ``[...]``; anything fancier than literals and ranges counts as every byte."""
    found: set[int] = set()
    for op, argument in items:
        if op is _OPS.LITERAL:
            found.add(argument)
        elif op is _OPS.RANGE:
            found.update(range(argument[0], argument[1] + 1))
        else:
            return EVERY_BYTE
    return frozenset(found)


def _branches(op: Any, argument: Any) -> list[Any]:
    """The alternatives of a group; a group without a bar has one."""
    if op is _OPS.BRANCH:
        return list(argument[1])
    return [argument[-1]] if op is _OPS.SUBPATTERN else []


def _starts(sequence: Iterable[tuple[Any, Any]], follow: frozenset[int]) -> frozenset[int]:
    """The bytes that a match of this sequence, or what follows an empty one, can begin with."""
    found: frozenset[int] = frozenset()
    for op, argument in sequence:
        if op is _OPS.LITERAL:
            return found | {argument}
        if op is _OPS.IN:
            return found | _class(argument)
        if op in (_OPS.MAX_REPEAT, _OPS.MIN_REPEAT):
            least, _, inner = argument
            found |= _starts(inner, frozenset())
            if least > 0:
                return found
        elif branches := _branches(op, argument):
            return found.union(*(_starts(branch, follow) for branch in branches))
        else:
            return EVERY_BYTE
    return found | follow


def _faults(sequence: list[tuple[Any, Any]], follow: frozenset[int]) -> list[str]:
    """Every spot where the matcher could try again what it has tried."""
    faults: list[str] = []
    for index, (op, argument) in enumerate(sequence):
        after = _starts(sequence[index + 1 :], follow)
        if op in (_OPS.MAX_REPEAT, _OPS.MIN_REPEAT):
            faults += _repeat_faults(argument, after)
        elif branches := _branches(op, argument):
            starts = [_starts(branch, after) for branch in branches]
            if sum(map(len, starts)) != len(frozenset().union(*starts)):
                faults.append("two alternatives begin alike")
            faults += [fault for branch in branches for fault in _faults(list(branch), after)]
        elif op not in (_OPS.LITERAL, _OPS.IN):
            faults.append(f"{op} is not a character class")
    return faults


def _repeat_faults(argument: Any, after: frozenset[int]) -> list[str]:
    least, most, inner = argument
    body = list(inner)
    faults = []
    if most == _OPS.MAXREPEAT:
        faults.append("a repeat has no bound")
    if most > 1 and (len(body) != 1 or body[0][0] not in (_OPS.LITERAL, _OPS.IN)):
        faults.append("a repeat holds more than a character class")
    if least != most and _starts(body, frozenset()) & after:
        faults.append("a repeat and its neighbour share a character")
    return faults + (_faults(body, after) if most <= 1 else [])


def faults_of(pattern: bytes) -> list[str]:
    return _faults(list(_PARSER.parse(pattern)), frozenset())


def _patterns() -> dict[str, re.Pattern[bytes]]:
    modules = [
        importlib.import_module(f"twophp.wire.{found.name}") for found in pkgutil.iter_modules(twophp.wire.__path__)
    ]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }


def test_every_pattern_of_the_wire_has_nothing_to_try_twice() -> None:
    patterns = _patterns()
    assert "twophp.wire.grammar._CALLBACK" in patterns
    assert {name: faults for name, found in patterns.items() if (faults := faults_of(found.pattern))} == {}


@pytest.mark.parametrize(
    "pattern",
    [rb"(a+)+", rb"(a{1,9}){1,9}", rb"[a-z]*", rb"[a-z]{0,9}[m-z]{0,9}", rb"(?:ab|[a-c])x", rb"a{0,9}(?:b|a)", rb"."],
)
def test_the_check_knows_a_bad_pattern(pattern: bytes) -> None:
    assert faults_of(pattern)
