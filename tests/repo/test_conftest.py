"""The rules that conftest.py adds to a run, each seen to turn a small run red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, test: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one test in a folder of its own, under this project's conftest."""
    (folder / "test_it.py").write_text(f"import pytest\n\n{test}\n", encoding="utf-8")
    plugins = ("-p", "tests.conftest", "-p", "xdist.plugin")  # These alone: to import all others takes longer.
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_it.py"]
    bare = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""}
    surroundings = {**os.environ, **bare, **env}
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)  # noqa: S603


def test_a_known_requirement_is_taken(tmp_path: Path) -> None:
    outcome = run(tmp_path, "@pytest.mark.req('P-8.2-a', 'A-22')\ndef test_it(): ...")
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize(
    "test",
    [
        "@pytest.mark.req('P-8.2-a', 'P-99')\ndef test_it(): ...",
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.req('P-99'))])\ndef test_it(n): ...",
    ],
)
def test_an_unknown_requirement_is_refused(tmp_path: Path, test: str) -> None:
    outcome = run(tmp_path, test, "-n1")  # A worker must be able to say so, too.
    assert outcome.returncode != 0
    assert "not in docs/requirements: ['P-99']" in outcome.stdout


@pytest.mark.parametrize(
    ("reason", "in_ci", "red"),
    [("needs strace", "true", True), ("needs strace", "", False), ("only on another system", "true", False)],
)
def test_a_skip_for_want_of_something_is_red_in_ci_alone(tmp_path: Path, reason: str, in_ci: str, red: bool) -> None:
    outcome = run(tmp_path, f"def test_it(): pytest.skip({reason!r})", CI=in_ci)
    assert bool(outcome.returncode) is red, outcome.stdout
    assert ("skipped in CI: " in outcome.stdout) is red
