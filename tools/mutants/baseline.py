"""What the tests do without a mutant: how long each takes, and which lines it runs."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import coverage
import pytest

from tools.mutants.trial import OPTIONS, Baseline

_IMPORTING: Final = "importing"


class Measuring:
    """Pytest's plugin that takes notes of a run."""

    def __init__(self, files: list[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self._files = files
        self._tracer = coverage.Coverage(include=[str(file) for file in files], data_file=None, config_file=False)
        self._tracer.start()
        self._tracer.switch_context(_IMPORTING)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """One test, with its fixtures."""
        self._tracer.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self._tracer.switch_context(_IMPORTING)

    def result(self) -> Baseline:
        """What was noted."""
        self._tracer.stop()
        data = self._tracer.get_data()
        places = {name: place for place, name in enumerate(self.seconds)}
        tests: dict[str, dict[int, list[int]]] = {}
        importing: dict[str, list[int]] = {}
        for file in self._files:
            contexts = data.contexts_by_lineno(str(file))
            tests[file.name] = {
                line: sorted(places[name] for name in names if name in places) for line, names in contexts.items()
            }
            importing[file.name] = sorted(line for line, names in contexts.items() if _IMPORTING in names)
        return Baseline(seconds=self.seconds, tests=tests, importing=importing)


def measure(files: list[Path], tests: str) -> Baseline:
    """Run the tests once."""
    plugin = Measuring(files)
    status = pytest.main([*OPTIONS, tests], plugins=[plugin])
    if status != pytest.ExitCode.OK:
        raise SystemExit("the tests fail without any mutant")
    return plugin.result()
