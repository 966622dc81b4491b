"""What ``make mutants`` changes, and how it tells a mutant that was noticed from one that was not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.docs import ROOT
from tools.mutants.mutate import mutants, mutated
from tools.mutants.trial import Baseline, Imported, functions_by_file


def changes(source: str) -> list[str]:
    """Every mutant of a file, without where it is."""
    return [mutant.change.partition(": ")[2] for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["a < b → a <= b"]),
        ("x = a < b <= c", ["a < b <= c → a <= b <= c", "a < b <= c → a < b < c"]),
        ("x = a is None", ["a is None → a is not None"]),
        ("x = a and b", ["a and b → a or b", "a and b → b", "a and b → a"]),
        ("x = not a", ["not a → a"]),
        ("x = a + 1", ["a + 1 → a - 1", "1 → 2"]),
        ("x = True", ["True → False"]),
        ("x = 'code'", ["'code' → 'code_'"]),
        ("x = b'tag'", ["b'tag' → b'tag_'"]),
        ("x = {a, b}", ["a → nothing", "b → nothing"]),
        ("x = f(a=b)", ["a=b → nothing"]),
        ("def f():\n    return g()", ["return g() → return None"]),
        ("def f():\n    if a:\n        g()", ["a → not a", "g() → pass"]),
        ("def f():\n    raise E", ["raise E → pass"]),
        ("def f(self):\n    self.a = b", ["self.a = b → pass"]),
        ("def f():\n    a += 1", ["a += 1 → pass", "a += 1 → a -= 1", "1 → 2"]),
        ("x = [a for a in b if a]", ["a → not a"]),
        ("x = lambda: a == b", ["a == b → a != b"]),
    ],
)
def test_a_programmer_makes_such_mistakes(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "import a",
        "x: A | B",
        "X: TypeAlias = dict[str, int]",
        "x = 'a text for people'",
        "x = f'{a} of 3'",
        "class C(B, frozen=True):\n    A = 'A'",
        "if TYPE_CHECKING:\n    import a",
        "T = TypeVar('T')",
        "x = Rule(row='T3-1', says='x', requirements=('A-1', 'A-2'))",
        "def f(a: int) -> str | None: ...",
    ],
)
def test_what_tests_should_not_tie_down_is_left_alone(source: str) -> None:
    left = [change for change in changes(source) if " → nothing" not in change and change != "... → pass"]
    assert left == []


def test_every_mutant_of_the_rules_is_another_program() -> None:
    for path in (ROOT / "src/twophp/core/fence.py", ROOT / "src/twophp/core/quota.py"):
        source = path.read_text(encoding="utf-8")
        whole = compile(source, str(path), "exec", dont_inherit=True)
        for mutant in mutants(source):
            assert compile(mutated(source, mutant.number), str(path), "exec", dont_inherit=True) != whole


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_mutant_takes_the_place_of_a_function_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    source = "LIMIT = 3\n\n\ndef admits(count):\n    return [count < LIMIT for _ in 'a']\n"
    path.write_text(source, encoding="utf-8")
    module = imported(path)
    (mutant,) = (one for one in mutants(source) if one.after == "count <= LIMIT")
    swaps = Imported(path, source, functions_by_file()[str(path)]).swaps(mutant.number)
    assert module.admits(3) == [False]
    for function, code in swaps:
        function.__code__ = code
    assert module.admits(3) == [True]
    assert mutant.in_function


def test_a_mutant_of_a_constant_is_in_no_function(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    source = "LIMIT = 3\n\n\ndef admits(count):\n    return count < LIMIT\n"
    path.write_text(source, encoding="utf-8")
    module = imported(path)
    (mutant,) = (one for one in mutants(source) if one.before == "3")
    assert not mutant.in_function
    assert Imported(path, source, functions_by_file()[str(path)]).swaps(mutant.number) == []
    assert module.admits(2)


def test_only_tests_that_run_a_line_and_newer_ones_are_asked() -> None:
    (mutant,) = (one for one in mutants("def f():\n    return g(\n        1)\n") if one.before == "1")
    seconds = {"test_a": 0.1, "test_b": 0.1, "test_c": 9.0}
    baseline = Baseline(seconds=seconds, tests={"x.py": {2: [0], 9: [1]}}, importing={"x.py": [2]})
    assert baseline.others("x.py", mutant) == {"test_b", "test_c"}
    assert baseline.runs_early("x.py", mutant)


ENDINGS = """
from tools.mutants.trial import forked
def spins():
    while True: pass
def raises(): raise ValueError
print(*(forked(work, seconds=0.5) for work in (lambda: False, lambda: True, raises, spins)))
"""


def test_a_trial_that_ends_badly_or_never_is_no_survivor() -> None:
    done = subprocess.run([sys.executable, "-c", ENDINGS], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.split() == ["survived", "killed", "killed", "stuck"]
