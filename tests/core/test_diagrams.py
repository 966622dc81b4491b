"""The page of the machines is what the tables say."""

from __future__ import annotations

from pathlib import Path

from tools import diagrams
from twophp.core import call_machine, obligation, phase, registrar

DOCS = Path(__file__).parents[2] / "docs"
MACHINES = (phase, call_machine, obligation)


def test_the_committed_page_is_up_to_date(tmp_path: Path) -> None:
    (written,) = diagrams.write(tmp_path)
    assert written.read_bytes() == (DOCS / diagrams.PAGE).read_bytes(), "run `make docs`"


def test_every_cell_and_every_rule_is_on_the_page() -> None:
    page = diagrams.machines()
    for machine in MACHINES:
        assert page.count("| **") == sum(len(one.Signal) for one in MACHINES)
        assert all(f"**{signal.name}**" in page for signal in machine.Signal)
    assert all(f"| {rule.row} | {rule.says} | `{rule.code}` |" in page for rule in registrar.RULES)


def test_the_diagrams_show_the_edges_and_no_obligation_that_comes_back() -> None:
    page = diagrams.machines()
    assert "    [*] --> WAITING_CONFIRM: REGISTER, REGISTER_AUTO\n" in page
    assert "    TTL_EXPIRED --> PROCESSING: CONFIRM, CONFIRM_LATE\n" in page
    assert "    Overdue --> RolledBack: " in page
    assert "Committed --> Reserved" not in page
