"""The figures of ``make coverage`` are sums over packages, and the bar can be missed."""

from __future__ import annotations

from tools import covered


def file(lines: int, branches: int) -> covered.File:
    return covered.File(covered.Summary(lines, 100, branches, 20))


REPORT = covered.Report(
    {
        "src/twophp/core/phase.py": file(100, 20),
        "src/twophp/core/job.py": file(90, 10),
        "src/twophp/wire/deep/emit.py": file(100, 20),
        "src/twophp/ports.py": file(50, 0),
    }
)


def test_the_table_has_a_line_for_each_package() -> None:
    assert covered.table(covered.packages(REPORT)).splitlines()[2:] == [
        "| core | 190 of 200 | 30 of 40 | 91.7 % |",
        "| twophp | 50 of 100 | 0 of 20 | 41.7 % |",
        "| wire | 100 of 100 | 20 of 20 | 100.0 % |",
    ]


def test_a_package_below_the_bar_is_named_and_so_is_one_without_any_line() -> None:
    assert covered.below_the_bar(covered.packages(REPORT)) == ["core", "engine", "kernel", "stores"]
