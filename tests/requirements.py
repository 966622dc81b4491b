"""Which requirement is shown by which test: pure functions over docs/requirements and a run's results.

`conftest.py` feeds them. A *row* is one requirement; a *result* is one test that carries the mark ``req``; the *state*
of a row follows from the outcomes of its tests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NO_TEST = "no test yet"
STATES = ("passing", "failing", "skipped", NO_TEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One requirement. ``text`` is its Requirement column or, in a decision table, its remaining cells."""

    id: str
    level: str
    feature: str
    text: str

    @property
    def is_must(self) -> bool:
        """Whether the source leaves no choice."""
        return self.level.startswith(("MUST", "SHALL"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one test ended: ``outcome`` is pytest's passed, failed or skipped."""

    test: str
    ids: tuple[str, ...]
    outcome: str


def read_rows(markdown: str) -> Iterator[Row]:
    """Yield the rows of every table that has the columns ID, Level and Feature."""
    columns: list[str] = []
    for line in markdown.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = cells
        elif {"ID", "Level", "Feature"} <= set(columns) and not line.startswith("|--"):
            yield _row(dict(zip(columns, cells, strict=True)))


def _row(cells: dict[str, str]) -> Row:
    known = {name: cells.pop(name) for name in ("ID", "Level", "Feature")}
    text = cells.get("Requirement") or " · ".join(cells.values())
    return Row(id=known["ID"], level=known["Level"], feature=known["Feature"], text=text)


def load(folder: Path) -> tuple[dict[str, Row], dict[str, bool]]:
    """Return the rows by ID in reading order, and for each feature whether it is done.

    Raises ValueError when an ID stands twice or a row names a feature that features.toml does not.
    """
    declared = tomllib.loads((folder / "features.toml").read_text(encoding="utf-8"))
    features = {name: bool(table["done"]) for name, table in declared.items()}
    rows: dict[str, Row] = {}
    for page in sorted(folder.glob("*.md")):
        for row in read_rows(page.read_text(encoding="utf-8")):
            if row.id in rows or row.feature not in features:
                raise ValueError(f"{page.name}: {row.id} stands twice or names no feature: {row.feature}")
            rows[row.id] = row
    return rows, features


def state_of(outcomes: Iterable[str]) -> str:
    """One failure fails a row; a skipped test shows nothing."""
    seen = set(outcomes)
    if "failed" in seen:
        return "failing"
    if "passed" in seen:
        return "passing"
    return "skipped" if seen else NO_TEST


def results_by_id(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Group results by the requirement they show."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        for requirement in result.ids:
            grouped.setdefault(requirement, []).append(result)
    return grouped


def unshown(rows: Mapping[str, Row], features: Mapping[str, bool], results: Iterable[Result]) -> list[Row]:
    """Return the MUST rows of features declared done that no passing test shows."""
    grouped = results_by_id(results)
    return [
        row
        for row in rows.values()
        if row.is_must
        and features[row.feature]
        and state_of(result.outcome for result in grouped.get(row.id, ())) != "passing"
    ]


def render(rows: Mapping[str, Row], features: Mapping[str, bool], results: Iterable[Result]) -> str:
    """Write the page of every row. The same results, in whatever order, give the same bytes."""
    grouped = results_by_id(results)
    states = _states(rows, grouped)
    sections = [_section(name, features[name], rows, states, grouped) for name in features]
    return "\n".join([_HEAD, _totals(rows, features, states), *sections])


def summary(rows: Mapping[str, Row], features: Mapping[str, bool], results: Iterable[Result]) -> str:
    """Write the page in git: numbers of rows by feature and no names of tests, so it changes when a number does."""
    states = _states(rows, results_by_id(results))
    lines = ["| Feature | Done | MUST rows | shown | missing | Other rows | shown |", "|---|---|---|---|---|---|---|"]
    for name, done in features.items():
        mine = [row for row in rows.values() if row.feature == name]
        lines.append(f"| {name} | {'yes' if done else 'no'} | {_shown(mine, states)} |")
    lines.append(f"| all | | {_shown(list(rows.values()), states)} |")
    return "\n".join([_SUMMARY, *lines]) + "\n"


def _shown(rows: Sequence[Row], states: Mapping[str, str]) -> str:
    """The four figures of one line of the summary."""
    musts = [states[row.id] == "passing" for row in rows if row.is_must]
    others = [states[row.id] == "passing" for row in rows if not row.is_must]
    figures = (len(musts), sum(musts), len(musts) - sum(musts), len(others), sum(others))
    return " | ".join(map(str, figures))


def _states(rows: Mapping[str, Row], grouped: Mapping[str, list[Result]]) -> dict[str, str]:
    return {id_: state_of(result.outcome for result in grouped.get(id_, ())) for id_ in rows}


_HEAD = """# Every requirement and its tests

The tests that show each requirement, and how they ended. Written by a full test run (`make test`).
"""
_SUMMARY = """# Conformance

How many [requirements](requirements/README.md) a passing test shows. A full test run (`make test`) writes this page;
do not edit it. The same run writes `build/conformance.md`: every requirement, its tests, and how they ended.
`make docs` appends those tables to this page of the site.

A MUST row of a feature that is done, without a passing test, makes the run red.
"""


def _totals(rows: Mapping[str, Row], features: Mapping[str, bool], states: Mapping[str, str]) -> str:
    lines = [f"| Feature | Done | Rows | {' | '.join(STATES)} |", "|---" * (3 + len(STATES)) + "|"]
    for name, done in features.items():
        mine = [states[row.id] for row in rows.values() if row.feature == name]
        lines.append(_total_line(f"[{name}](#{name})", "yes" if done else "no", mine))
    lines.append(_total_line("all", "", list(states.values())))
    return "\n".join(lines) + "\n"


def _total_line(name: str, done: str, states: Sequence[str]) -> str:
    counts = [len(states), *(states.count(state) for state in STATES)]
    return f"| {name} | {done} | {' | '.join(map(str, counts))} |"


def _section(
    feature: str, done: bool, rows: Mapping[str, Row], states: Mapping[str, str], grouped: Mapping[str, list[Result]]
) -> str:
    lines = [f"## {feature}", "", "Done." if done else "Not done yet.", ""]
    lines += ["| ID | Level | State | Requirement | Tests |", "|---|---|---|---|---|"]
    for row in rows.values():
        if row.feature == feature:
            tests = "<br>".join(sorted({f"`{result.test}`" for result in grouped.get(row.id, ())}))
            lines.append(f"| {row.id} | {row.level} | {states[row.id]} | {row.text} | {tests} |")
    return "\n".join(lines) + "\n"
