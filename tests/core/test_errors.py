"""What an error says, as text and in its parts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.cli.running import UNUSABLE, run
from tests.core.registrations import REQUEST
from twophp import TwoPHPError
from twophp.central.api.problems import problem_of
from twophp.core import budget, errors, fence, obligation
from twophp.core.errors import Advice, ConfigError, WireError, words_of
from twophp.obligations import ObligationTracker
from twophp.registrar import Registrar

MODULES = (errors, obligation, budget, fence)


def tree() -> Iterator[type[TwoPHPError]]:
    for module in MODULES:
        for _name, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, TwoPHPError) and found.__module__ == module.__name__:
                yield found


def made(kind: type[TwoPHPError], message: str, **more: Any) -> TwoPHPError:
    if issubclass(kind, errors.PhaseError):
        more["advice"] = Advice.FIX
    if issubclass(kind, errors.EgressError):
        more["reason"] = "unreachable"
    return kind(message, **more)


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_an_error_as_text_begins_with_its_code(kind: type[TwoPHPError]) -> None:
    error = made(kind, "the order is gone", code="gone")
    assert str(error) == "[gone] the order is gone"
    assert (error.code, error.message) == ("gone", "the order is gone")
    if not issubclass(kind, errors.PhaseError):  # It has no code of its own.
        assert str(made(kind, "gone")) == f"[{kind.default_code}] gone"


def test_words_have_no_code() -> None:
    assert words_of(ConfigError("no such setting")) == "no such setting"
    assert words_of(OSError("no such file")) == "no such file"


def test_obligations_and_the_registrar_say_their_codes() -> None:
    with ObligationTracker("memory:") as tracker:
        with pytest.raises(TwoPHPError, match=r"^\[unknown_flow\] ") as flow:
            tracker.reserve("no-such-flow", {"key": "k"}, "t")
        with pytest.raises(TwoPHPError, match=r"^\[ERR_OBL_NOT_FOUND\] ") as missing:
            tracker.commit("nobody", "t")
    for raised in (flow, missing):
        assert raised.value.code not in raised.value.message
    with pytest.raises(TwoPHPError, match=r"^\[bad_setting\] "):
        Registrar("memory:", verifer=None)  # type: ignore[call-arg]
    with pytest.raises(TwoPHPError, match=r"^\[\w+\] \S"):
        _ = msgspec.structs.replace(REQUEST, run_id="").replay_key


@pytest.mark.req("A-10")
def test_a_problem_document_tells_the_code_once() -> None:
    answer = problem_of(WireError("row 3: it has no actor", code="bad_batch"))
    assert b'"detail":"row 3: it has no actor"' in bytes(answer.body)
    assert bytes(answer.body).count(b"bad_batch") == 1


def test_a_command_tells_the_code_once() -> None:
    result = run("ledger", "verify", "nowhere.db")
    assert result.exit_code == UNUSABLE
    assert result.stderr == "error[no_such_database]: there is no database nowhere.db\n"
