"""The versions of Python that are tested are those that are promised."""

from __future__ import annotations

import sys
import tomllib

from tools import pythons
from tools.docs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LANGUAGE = "Programming Language :: Python :: "


def test_what_is_tested_is_what_is_promised() -> None:
    assert PROJECT["requires-python"] == f">={pythons.OLDEST}"
    named = [line.removeprefix(LANGUAGE) for line in PROJECT["classifiers"] if line.startswith(LANGUAGE)]
    assert tuple(name for name in named if name[-1].isdigit()) == pythons.VERSIONS


def test_the_python_that_runs_is_found_and_one_of_another_name_is_not_believed() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert pythons.interpreter(here) == sys.executable
    assert pythons._asked(["/no/such/python", "-V"]) is None
