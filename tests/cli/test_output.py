"""What a ledger holds was chosen by callers: it must not reach an operator's terminal as more than text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import document, run
from twophp.cli.output import out, show, table
from twophp.obligations import ObligationTracker
from twophp.registrar import Registrar

CLEARS = "a\x1b[2Jb\x07\r\u202e"


def test_plain_text_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table("key", "trace")
    rows.add_row(CLEARS, "two\nlines")
    show(rows)
    out().print(CLEARS)
    shown = "a\N{REPLACEMENT CHARACTER}[2Jb" + 3 * "\N{REPLACEMENT CHARACTER}"
    said = capsys.readouterr().out
    assert said.count(shown) == 2
    assert [line.split()[-1] for line in said.splitlines()[1:3]] == ["two", "lines"]


def test_an_obligations_key_and_a_gates_authority_are_shown_harmless(tmp_path: Path) -> None:
    path = tmp_path / "effects.db"
    with ObligationTracker(f"sqlite:///{path}", scan_interval_secs=None) as tracker:
        id_ = tracker.reserve("publish", {"key": CLEARS}, f"trace\nstate  Committed{CLEARS}")
    with Registrar(f"sqlite:///{path}") as registrar:
        registrar.open_gate(CLEARS)
    listed, shown = run("obligations", "list", path), run("obligations", "show", path, id_, "--payload")
    for said in (listed, shown, run("registrar", "gate", path)):
        assert "a\N{REPLACEMENT CHARACTER}[2Jb" in said.stdout
        assert "\x1b" not in said.stdout
    assert "\nstate" not in shown.stdout
    assert document(run("obligations", "list", path, "--json"))[0]["key"] == CLEARS  # Programs get what is there.
