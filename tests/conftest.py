"""What every run of the tests has: the ``req`` mark, the conformance page, and no silent skips in CI."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests import requirements

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "docs" / "conformance.md"
PAGE = ROOT / "build" / "conformance.md"  # Git ignores it: it names every test, so every change would be in it.
ROWS, FEATURES = requirements.load(ROOT / "docs" / "requirements")
NOT_LISTED = "not in docs/requirements: {}"
IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance", action="store_true", help="write the conformance pages even if this run is partial"
    )


# How long one example takes is the machine's business: with a deadline, a busy one would fail tests that hold.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that: tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # xdist's workers send their reports here.
        config.pluginmanager.register(Verdict(config), "verdict")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse an unknown requirement while collecting."""
    if unknown := [id_ for id_ in marked(metafunc.definition) if id_ not in ROWS]:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {NOT_LISTED.format(unknown)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse an unknown requirement on one parameter or a unittest class, which the hook above does not see."""
    if unknown := [id_ for id_ in marked(item) if id_ not in ROWS]:
        pytest.fail(NOT_LISTED.format(unknown), pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note each test's requirements on its report, the one thing that travels from an xdist worker."""
    for item in items:
        item.user_properties.append(("req", marked(item)))


def marked(item: pytest.Item) -> tuple[str, ...]:
    """Return the requirements a test says it shows."""
    return tuple(sorted({str(id_) for mark in item.iter_markers("req") for id_ in mark.args}))


class Verdict:
    """Gathers a run's results, writes the pages of a full run, and turns the run red where a rule is broken."""

    def __init__(self, config: pytest.Config) -> None:
        self._full = bool(config.getoption("--conformance")) or is_full(config)
        self._results: dict[str, requirements.Result] = {}
        self._wanting: list[str] = []
        self._complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test passes in its call phase, and may fail or be skipped in any."""
        if report.skipped:
            self._note_skip(report)
        if report.passed and report.when != "call":
            return
        ids = dict(report.user_properties).get("req", ())
        test, before = report.nodeid.partition("[")[0], self._results.get(report.nodeid)
        if ids and (before is None or before.outcome != "failed"):
            assert isinstance(ids, tuple | list)
            result = requirements.Result(test=test, ids=tuple(ids), outcome=report.outcome)
            self._results[report.nodeid] = result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note_skip(report)

    def _note_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if reason.removeprefix("Skipped: ").startswith("needs "):
            self._wanting.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if IN_CI:
            self._complaints += [f"skipped in CI: {skip}" for skip in self._wanting]
        if self._full and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and not session.shouldstop:
            self._judge()
        if self._complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge(self) -> None:
        results = list(self._results.values())
        for row in requirements.unshown(ROWS, FEATURES, results):
            self._complaints.append(f"{row.id} ({row.level}, {row.feature}): no passing test: {row.text}")
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(requirements.render(ROWS, FEATURES, results), encoding="utf-8")
        summary = requirements.summary(ROWS, FEATURES, results)
        if not SUMMARY.exists() or SUMMARY.read_text(encoding="utf-8") != summary:
            SUMMARY.write_text(summary, encoding="utf-8")
            if IN_CI:
                self._complaints.append("docs/conformance.md was out of date: commit the one that `make test` writes")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._complaints:
            terminalreporter.section("requirements", red=True)
            for complaint in self._complaints:
                terminalreporter.line(complaint)


def is_full(config: pytest.Config) -> bool:
    """Whether this run takes every test there is: nothing named, filtered or left out."""
    narrowing = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "collectonly")
    return config.args_source is config.ArgsSource.TESTPATHS and not any(map(config.getoption, narrowing))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Every async test runs on asyncio, which is what we need; what becomes of us under trio has tests of its own."""
    return "asyncio"
