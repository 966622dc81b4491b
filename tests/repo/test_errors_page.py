"""docs/errors.md has every stable code of the tree, with what to do, and none that is not there."""

from __future__ import annotations

import re

import pytest

from tests.repo.error_codes import codes
from tools import docs
from twophp.central.api import problems as api_problems
from twophp.central.ingest.intake import BROKEN_RULE, FOREIGN_ROW, VERSION_CONFLICT
from twophp.core.rulebook import REPLAY_SURFACE_NOT_FIT
from twophp.wire import problem

ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
PAGE = (docs.ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = {code: re.split(r"\s*\|\s*", cells) for code, cells in ROW.findall(PAGE)}

BY_NAME = {REPLAY_SURFACE_NOT_FIT, BROKEN_RULE, FOREIGN_ROW, VERSION_CONFLICT}
"""Raised with the code of a verdict, or told by an acknowledgement."""
ANSWERS = {"REGISTRATION_HOLD", "REPLAY_DOMAIN_READY_AS_CRITERIA"}
"""What the registrar answers and nobody raises: docs/reference/registrar.md."""


def test_the_page_has_every_code_once_and_no_other() -> None:
    found = {code: place for code, place in codes().items() if code not in ANSWERS}
    named = [code for code, _cells in ROW.findall(PAGE)]
    assert len(named) == len(set(named))
    assert {code: place for code, place in found.items() if code not in named} == {}
    assert sorted(set(named) - found.keys() - BY_NAME) == []


@pytest.mark.parametrize("code", sorted(ROWS))
def test_every_code_says_what_it_means_and_what_to_do(code: str) -> None:
    cells = ROWS[code]
    means, _limit, cure = cells[-3:]
    assert means.endswith(".")
    assert cure


@pytest.mark.req("A-10")
@pytest.mark.parametrize("table", [problem.PROBLEMS, api_problems.PROBLEMS], ids=["server", "central"])
def test_what_is_told_by_http_has_its_status(table: dict[str, problem.Kind | api_problems.Kind]) -> None:
    assert {code: ROWS[code][0] for code in table} == {code: str(kind.status) for code, kind in table.items()}
