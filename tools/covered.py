"""How much of each package the tests run, by line and by branch: ``make coverage``.

Reads what coverage.py wrote, prints a table for docs/project/quality.md, and fails where a package that holds rules or
records is below the bar.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

REPORT: Final = Path(__file__).parents[1] / "build" / "coverage" / "report.json"
SOURCE: Final = "src/twophp/"
BAR: Final = 95.0
HELD: Final = frozenset({"core", "engine", "kernel", "stores", "wire"})


class Summary(msgspec.Struct):
    """What coverage.py counts in a file."""

    covered_lines: int
    num_statements: int
    covered_branches: int
    num_branches: int


class File(msgspec.Struct):
    """One file of the report."""

    summary: Summary


class Report(msgspec.Struct):
    """The part of the report that is read here."""

    files: dict[str, File]


class Package(msgspec.Struct):
    """The sum of a package's files."""

    lines: int = 0
    all_lines: int = 0
    branches: int = 0
    all_branches: int = 0

    def add(self, summary: Summary) -> None:
        """Add a file."""
        self.lines += summary.covered_lines
        self.all_lines += summary.num_statements
        self.branches += summary.covered_branches
        self.all_branches += summary.num_branches

    @property
    def percent(self) -> float:
        """Of lines and branches together, as coverage.py says it."""
        return 100 * (self.lines + self.branches) / max(self.all_lines + self.all_branches, 1)


def packages(report: Report) -> dict[str, Package]:
    """The packages of a report; ``twophp`` for what stands beside them."""
    found: dict[str, Package] = {}
    for path, file in sorted(report.files.items()):
        below = path.partition(SOURCE)[2]
        found.setdefault(below.partition("/")[0] if "/" in below else "twophp", Package()).add(file.summary)
    return found


def table(found: dict[str, Package]) -> str:
    """The packages as a table in Markdown."""
    rows = ["| package | lines | branches | together |", "|---|---|---|---|"]
    for name, one in sorted(found.items()):
        counted = f"{one.lines:,} of {one.all_lines:,} | {one.branches:,} of {one.all_branches:,}"
        rows.append(f"| {name} | {counted} | {one.percent:.1f} % |")
    return "\n".join(rows)


def below_the_bar(found: dict[str, Package]) -> list[str]:
    """The packages that have to be above it, and are not; also one that is missing."""
    return [name for name in sorted(HELD) if found.get(name, Package()).percent < BAR]


def main() -> int:
    """Print the table; 1 if all tests were run, and a package is below the bar."""
    found = packages(msgspec.json.decode(REPORT.read_bytes(), type=Report))
    print(table(found))
    low = [] if "--partial" in sys.argv else below_the_bar(found)
    for name in low:
        print(f"coverage: {name} is below {BAR:.0f} %", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
