"""The bookkeeping of requirements, and that the list itself is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import Result, Row, load, read_rows, render, state_of, summary, unshown

FOLDER = Path(__file__).parents[2] / "docs" / "requirements"

MUST = Row(id="P-1-a", level="MUST NOT", feature="kernel", text="Never twice.")
MAY = Row(id="P-1-b", level="MAY", feature="kernel", text="Perhaps.")
LATER = Row(id="P-1-c", level="MUST", feature="client", text="Later.")
ROWS = {row.id: row for row in (MUST, MAY, LATER)}
FEATURES = {"kernel": True, "client": False}


def result(outcome: str, *ids: str, test: str = "tests/test_a.py::test_a") -> Result:
    return Result(test=test, ids=ids, outcome=outcome)


def test_a_requirement_column_is_the_text_and_other_tables_are_passed_over() -> None:
    other = "| File | IDs |\n|---|---|\n| a | b |\n\n"
    table = (
        "| ID | Level | Binds | Feature | Requirement |\n|---|---|---|---|---|\n| P-1-b | MAY | S | kernel | Perhaps. |"
    )
    assert list(read_rows(other + table)) == [MAY]


def test_the_cells_of_a_decision_table_are_its_text() -> None:
    page = (
        "| ID | Level | Feature | Condition | Answer |\n|---|---|---|---|---|\n| T1-5 | rule | kernel | other | 403 |\n"
    )
    assert [row.text for row in read_rows(page)] == ["other · 403"]


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ((), "no test yet"),
        (("skipped",), "skipped"),
        (("skipped", "passed"), "passing"),
        (("passed", "failed"), "failing"),
    ],
)
def test_the_state_of_a_row(outcomes: tuple[str, ...], state: str) -> None:
    assert state_of(outcomes) == state


@pytest.mark.parametrize("results", [[], [result("failed", "P-1-a")], [result("skipped", "P-1-a")]])
def test_a_must_of_a_done_feature_wants_a_passing_test(results: list[Result]) -> None:
    assert unshown(ROWS, FEATURES, results) == [MUST]


def test_a_passing_test_shows_it_and_what_is_not_done_may_wait() -> None:
    assert unshown(ROWS, FEATURES, [result("passed", "P-1-b", "P-1-a")]) == []


def test_the_page_names_each_test_once_whatever_the_order() -> None:
    one, two = result("passed", "P-1-a"), result("passed", "P-1-a", test="tests/test_b.py::test_b")
    page = render(ROWS, FEATURES, [one, two, one])
    assert page == render(ROWS, FEATURES, [two, one])
    tests = "`tests/test_a.py::test_a`<br>`tests/test_b.py::test_b`"
    assert f"| P-1-a | MUST NOT | passing | Never twice. | {tests} |" in page
    assert "| [kernel](#kernel) | yes | 2 | 1 | 0 | 0 | 1 |" in page


def test_the_summary_counts_by_feature() -> None:
    page = summary(ROWS, FEATURES, [result("passed", "P-1-b"), result("failed", "P-1-a")])
    assert "| kernel | yes | 1 | 0 | 1 | 1 | 1 |\n| client | no | 1 | 0 | 1 | 0 | 0 |" in page
    assert "| all | | 2 | 0 | 2 | 1 | 1 |" in page


def test_the_summary_changes_only_with_a_number() -> None:
    one, two = result("passed", "P-1-a"), result("passed", "P-1-a", test="tests/test_b.py::test_b")
    assert summary(ROWS, FEATURES, [one]) == summary(ROWS, FEATURES, [two, one])
    assert summary(ROWS, FEATURES, [one]) != summary(ROWS, FEATURES, [])


def test_the_summary_in_git_counts_the_rows_that_there_are() -> None:
    rows, features = load(FOLDER)
    expected = [(name, sum(row.is_must for row in rows.values() if row.feature == name)) for name in features]
    lines = (FOLDER.parent / "conformance.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    assert [(line[1], int(line[3])) for line in cells[2:-1]] == expected


@pytest.mark.parametrize("extra", ["| P-1-a | MAY | kernel | again |", "| P-1-z | MAY | nowhere | no such feature |"])
def test_a_doubled_id_or_an_unknown_feature_is_refused(tmp_path: Path, extra: str) -> None:
    (tmp_path / "features.toml").write_text("[kernel]\ndone = true\n", encoding="utf-8")
    table = "| ID | Level | Feature | Requirement |\n|---|---|---|---|\n| P-1-a | MAY | kernel | once |\n"
    (tmp_path / "a.md").write_text(table, encoding="utf-8")
    assert list(load(tmp_path)[0]) == ["P-1-a"]
    (tmp_path / "a.md").write_text(table + extra + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"P-1-"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("prefix", "count"), [("P-", 243), ("OBL-", 43), ("REG-", 77), ("A-", 109), ("T", 34), ("P-10.3-E", 14)]
)
def test_the_list_is_whole(prefix: str, count: int) -> None:
    assert sum(id_.startswith(prefix) for id_ in load(FOLDER)[0]) == count
