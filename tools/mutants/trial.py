"""How a mutant is tried: in a process of its own that is forked for it, by the tests that run its line.

A mutant in a function is put in the place of that function's code after all tests were collected, so that a trial
costs a fork and a few tests. Any other is there before its file is imported, and the tests are collected anew; so is
one that survives in a function that runs while files are imported. Tests run in the order of their duration, and the
first failure ends the trial. So does a bound on time and memory: a mutant that runs into it is killed as well.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, Literal, TypeAlias

import msgspec
import pytest

from tools.mutants.mutate import Mutant, mutated

OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "--assert=plain", "--capture=no", "--tb=no")
"""Of every run of pytest: nobody reads why a test failed, and to say it takes longer than most tests."""
FRESH_S: Final = 20.0  # What collecting the tests may take, in CPU time.
SLOW_S: Final = 5.0  # While noted. Slower are some Hypothesis walks, beside the seeded walks of the same models.
PATIENCE: Final = 5.0  # How many times as long as without a mutant the tests may take.
MEMORY: Final = 4 * 1024**3

Verdict: TypeAlias = Literal["killed", "stuck", "survived"]
Loader: TypeAlias = importlib.machinery.SourceFileLoader


class Baseline(msgspec.Struct, kw_only=True):
    """What the tests do without a mutant."""

    seconds: dict[str, float]  # Of CPU time, for each test.
    tests: dict[str, dict[int, list[int]]]  # By file and line: the tests, by their place in ``seconds``, that run it.
    importing: dict[str, list[int]]  # By file: the lines that run while it is imported or tests are collected.

    def quickest(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Those that are asked, the quickest first."""
        timed = [(self.seconds.get(item.nodeid, 0.0), place) for place, item in enumerate(items)]
        return [items[place] for seconds, place in sorted(timed) if seconds < SLOW_S]

    def others(self, file: str, mutant: Mutant) -> set[str]:
        """The tests that do not run a mutant's statement up to its line: not every line of an expression is noted."""
        names, noted = list(self.seconds), self.tests.get(file, {})
        lines = range(mutant.statement, mutant.line + 1)
        return set(names) - {names[place] for line in lines for place in noted.get(line, ())}

    def runs_early(self, file: str, mutant: Mutant) -> bool:
        """Whether its statement also runs while files are imported or tests are collected."""
        lines = range(mutant.statement, mutant.line + 1)
        return any(line in lines for line in self.importing.get(file, ()))


class Changed(msgspec.Struct, frozen=True):
    """A file, and one of its mutants."""

    path: Path
    source: str
    mutant: Mutant


Tell: TypeAlias = Callable[[Changed, Verdict | None, float], None]
"""Is called with each verdict, None if the mutant could not be put in place, and with the seconds that it took."""


def forked(work: Callable[[], bool], *, seconds: float) -> Verdict:
    """Do something in a process of its own, whose output nobody reads: whether it found a failure."""
    child = os.fork()
    if child == 0:
        failed = True
        gc.disable()
        try:
            _be_bounded(seconds)
            failed = work()
        finally:
            os._exit(1 if failed else 0)
    _pid, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "stuck"
    return "killed" if os.WEXITSTATUS(status) else "survived"


def _be_bounded(seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


class InPlace:
    """Pytest's plugin that collects once, and then tries mutants in functions instead of running the tests."""

    def __init__(self, baseline: Baseline, changes: Iterable[Changed], tell: Tell) -> None:
        self._baseline = baseline
        self._changes = changes
        self._tell = tell
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure in any of its steps fails a test."""
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each mutant."""
        items = self._baseline.quickest(session.items)
        functions, files = functions_by_file(), dict[Path, Imported]()
        if self._try(items[: len(items) // 2], []) != "survived":
            raise SystemExit("mutants: tests fail without any mutant when they are run like this")
        gc.collect()
        gc.freeze()  # Or each child would copy what its collector looks at.
        for changed in self._changes:
            began, path = time.monotonic(), changed.path
            if path not in files:
                files[path] = Imported(path, changed.source, functions.get(str(path), []))
            others = self._baseline.others(path.name, changed.mutant)
            chosen = [item for item in items if item.nodeid not in others]  # So is a test that is newer.
            swaps = files[path].swaps(changed.mutant.number)
            self._tell(changed, self._try(chosen, swaps) if swaps else None, time.monotonic() - began)
        return True

    def _try(self, chosen: list[pytest.Item], swaps: list[tuple[FunctionType, CodeType]]) -> Verdict:
        def fails() -> bool:
            for function, code in swaps:
                function.__code__ = code
            for item in chosen:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if self._failed:
                    return True
            return False

        usual = sum(self._baseline.seconds.get(item.nodeid, 0.0) for item in chosen)
        return forked(fails, seconds=2.0 + PATIENCE * usual)


class Imported:
    """The functions of a file that was imported, and the code that each of them came with."""

    def __init__(self, path: Path, source: str, functions: list[FunctionType]) -> None:
        self._path = path
        self._source = source
        self._functions = functions
        self._codes = _codes(compile(source, str(path), "exec", dont_inherit=True))

    def swaps(self, number: int) -> list[tuple[FunctionType, CodeType]]:
        """The functions that a mutant changes, each with its code as the mutant has it; none if that does not fit."""
        mutant = _codes(compile(mutated(self._source, number), str(self._path), "exec", dont_inherit=True))
        ours = self._codes
        if ours.keys() != mutant.keys() or any(len(ours[key]) != len(mutant[key]) for key in ours):
            return []
        pairs = (pair for key in ours for pair in zip(ours[key], mutant[key], strict=True))
        changed = {was: now for was, now in pairs if was != now}
        swaps = [(one, changed[one.__code__]) for one in self._functions if one.__code__ in changed]
        fits = all(one.__code__.co_freevars == code.co_freevars for one, code in swaps)
        return swaps if fits else []


def functions_by_file() -> dict[str, list[FunctionType]]:
    """Every function that there is."""
    found: dict[str, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def _codes(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    found: dict[tuple[str, int], list[CodeType]] = {}
    waiting = [code]
    while waiting:
        one = waiting.pop(0)
        found.setdefault((one.co_qualname, one.co_firstlineno), []).append(one)
        waiting.extend(constant for constant in one.co_consts if isinstance(constant, CodeType))
    return found


class Quickest:
    """Pytest's plugin that runs the quickest tests first, and the slow ones not at all."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose, and sort."""
        items[:] = self._baseline.quickest(items)


def try_fresh(changed: Changed, baseline: Baseline, tests: str) -> Verdict:
    """Try a mutant that is there before its file is imported. Nothing of ours may be imported in this process."""
    tree = mutated(changed.source, changed.mutant.number)

    def fails() -> bool:
        with _imported_as(changed.path, tree):
            return pytest.main(["-x", *OPTIONS, tests], plugins=[Quickest(baseline)]) != pytest.ExitCode.OK

    return forked(fails, seconds=FRESH_S + PATIENCE * sum(baseline.seconds.values()))


@contextlib.contextmanager
def _imported_as(path: Path, tree: Any) -> Iterator[None]:
    """While this lasts, a file is imported as if ``tree`` stood in it."""
    of_file = Loader.get_code

    def get_code(loader: Loader, name: str) -> CodeType | None:
        if Path(loader.path) == path:
            return compile(tree, str(path), "exec", dont_inherit=True)
        return of_file(loader, name)

    Loader.get_code = get_code  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Loader.get_code = of_file  # type: ignore[method-assign]
