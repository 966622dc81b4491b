"""Change one thing in ``core`` at a time, and see whether its tests notice: ``make mutants``.

    make mutants ARGS="phase quota --minutes 20"

What is found stands in build/mutants, and the next run goes on from there: a file that has not changed is not tried
again, but for its survivors when the tests have. ``make clean`` forgets it, as after a test was taken out. A mutant
that survives is judged in docs/project/mutants.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Final

import hypothesis.stateful  # noqa: F401 - so that no trial has to import it.
import msgspec
import pytest

from tools.mutants.baseline import measure
from tools.mutants.mutate import Mutant, mutants
from tools.mutants.trial import OPTIONS, Baseline, Changed, InPlace, Verdict, try_fresh

ROOT: Final = Path(__file__).parents[2]
CORE: Final = ROOT / "src" / "twophp" / "core"
TESTS: Final = "tests/core"
BUILD: Final = ROOT / "build" / "mutants"
TRIALS: Final = BUILD / "trials.jsonl"
LATER: Final = BUILD / "later"  # Mutants in functions that have to be there before an import.
PAGE: Final = ROOT / "docs" / "project" / "mutants.md"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How one mutant ended."""

    file: str
    digest: str  # Of the file.
    tests: str  # The digest of the tests.
    mutant: Mutant
    verdict: Verdict
    seconds: float

    @property
    def name(self) -> str:
        """How the page calls it."""
        return f"{self.file} {self.mutant.change}"


class Trials:
    """All that was found, on disk."""

    def __init__(self, tests: str) -> None:
        self._tests = tests
        self._found: dict[tuple[str, str, int], Trial] = {}
        if TRIALS.exists():
            for line in TRIALS.read_text(encoding="utf-8").splitlines():
                self._note(msgspec.json.decode(line, type=Trial))

    def _note(self, trial: Trial) -> None:
        self._found[trial.file, trial.digest, trial.mutant.number] = trial

    def of(self, changed: Changed) -> Trial | None:
        """How it ended, if it was tried. What has survived is tried again when the tests have changed."""
        found = self._found.get((changed.path.name, digest(changed.source), changed.mutant.number))
        return found if found is None or found.verdict != "survived" or found.tests == self._tests else None

    def add(self, changed: Changed, verdict: Verdict, seconds: float) -> None:
        """Keep one more."""
        trial = Trial(
            file=changed.path.name,
            digest=digest(changed.source),
            tests=self._tests,
            mutant=changed.mutant,
            verdict=verdict,
            seconds=round(seconds, 2),
        )
        self._note(trial)
        with TRIALS.open("a", encoding="utf-8") as file:
            file.write(msgspec.json.encode(trial).decode() + "\n")
        if verdict != "killed":
            print(f"{verdict}: {changed.path.name}:{changed.mutant.line} {changed.mutant.change}", flush=True)


def digest(*texts: str) -> str:
    """What a finding holds for."""
    return sha256("".join(texts).encode()).hexdigest()[:16]


def of_tests() -> str:
    """The digest of the tests."""
    return digest(*(path.read_text(encoding="utf-8") for path in sorted((ROOT / TESTS).rglob("*.py"))))


def in_another(work: Callable[[], None]) -> None:
    """Do something in a process of its own: this one must never import what it changes."""
    child = os.fork()
    if child == 0:
        try:
            work()
            sys.stdout.flush()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("mutants: the run ended early")


def baseline(files: list[Path]) -> Baseline:
    """Measure the tests, unless they were since the files have changed. A test that is newer is asked about all."""
    file = BUILD / f"baseline-{digest(*(file.read_text(encoding='utf-8') for file in files))}.json"
    if not file.exists():
        print("mutants: running the tests once, without any", flush=True)
        in_another(lambda: _write(file, measure(files, TESTS)))
    return msgspec.json.decode(file.read_bytes(), type=Baseline)


def _write(file: Path, found: Baseline) -> None:
    file.write_bytes(msgspec.json.encode(found))


def report(trials: Trials, changes: list[Changed]) -> None:
    """Print what is known by now: a line for each file, and each survivor that the page does not judge."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    counts: dict[str, Counter[str]] = {}
    print("\n| file | mutants | killed | stuck | survived |\n|---|---|---|---|---|")
    for changed in changes:
        trial = trials.of(changed)
        counts.setdefault(changed.path.name, Counter())[trial.verdict if trial else "untried"] += 1
    for name, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        cells = [sum(count.values()) - count["untried"], count["killed"], count["stuck"], count["survived"]]
        untried = f" ({count['untried']} not tried)" if count["untried"] else ""
        print(f"| {name} | {' | '.join(map(str, cells))} |{untried}")
    found = [trial for changed in changes if (trial := trials.of(changed))]
    for trial in found:
        if trial.verdict == "survived" and trial.name not in page:
            print(f"not judged: {trial.name}")


class Run:
    """Tries every mutant that was not tried yet, those in functions first, until its time is over."""

    def __init__(self, files: list[Path], seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._known = baseline(sorted(CORE.glob("*.py")))
        self._changes = [
            Changed(path, source, mutant)
            for path in files
            for source in [path.read_text(encoding="utf-8")]
            for mutant in mutants(source)
        ]

    def in_place(self) -> None:
        """Those in functions. What could not be put in place, or survives where imports run it, is left for later."""
        trials = Trials(of_tests())

        def tell(changed: Changed, verdict: Verdict | None, took: float) -> None:
            if verdict is None or (verdict == "survived" and self._known.runs_early(changed.path.name, changed.mutant)):
                with LATER.open("a", encoding="utf-8") as file:
                    file.write(f"{changed.path.name} {changed.mutant.number}\n")
            else:
                trials.add(changed, verdict, took)

        plugin = InPlace(self._known, self._waiting(trials, in_function=True), tell)
        LATER.unlink(missing_ok=True)
        in_another(lambda: _collect_with(plugin))

    def fresh(self, *, functions_only: bool) -> None:
        """The others, each there before its file is imported."""
        trials = Trials(of_tests())
        later = set(LATER.read_text(encoding="utf-8").splitlines()) if LATER.exists() else set()
        again = [changed for changed in self._changes if f"{changed.path.name} {changed.mutant.number}" in later]
        others = [] if functions_only else self._waiting(trials, in_function=False)
        for changed in chain(again, others):
            if time.monotonic() < self._ends:
                began = time.monotonic()
                trials.add(changed, try_fresh(changed, self._known, TESTS), time.monotonic() - began)

    def report(self) -> None:
        """Print what is known by now."""
        report(Trials(of_tests()), self._changes)

    def _waiting(self, trials: Trials, *, in_function: bool) -> Iterator[Changed]:
        for changed in self._changes:
            if time.monotonic() > self._ends:
                return
            if changed.mutant.in_function is in_function and trials.of(changed) is None:
                yield changed


def _collect_with(plugin: InPlace) -> None:
    pytest.main([*OPTIONS, TESTS], plugins=[plugin])


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of core, without .py; all of them if none is named")
    parser.add_argument("--minutes", type=float, default=240.0, help="stop after so long; the next run goes on")
    parser.add_argument("--functions", action="store_true", help="only mutants in functions, which are tried quickly")
    given = parser.parse_args()
    files = [CORE / f"{name}.py" for name in given.files] or sorted(CORE.glob("*.py"))
    BUILD.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    run = Run(files, given.minutes * 60)
    run.in_place()
    run.fresh(functions_only=given.functions)
    run.report()


if __name__ == "__main__":
    main()
