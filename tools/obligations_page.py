"""docs/reference/obligations.md: prose from obligations_page.md beside this file, diagram and tables from the rules."""

from __future__ import annotations

from pathlib import Path

from tools.diagrams import diagram, edges_of_one_obligation, markdown, table
from twophp.core.obligation import ERRORS, EVENTS, TABLE, State

PROSE = Path(__file__).with_name("obligations_page.md")


def obligations_page() -> str:
    """The whole page."""
    parts = {
        "states": diagram(edges_of_one_obligation(), absent=State.ABSENT),
        "table": table(TABLE),
        "events": markdown(("Event", "Meaning"), ((f"`{code}`", text) for code, text in EVENTS.items())),
        "errors": markdown(("Error", "Meaning"), ((f"`{code}`", text) for code, text in ERRORS.items())),
    }
    text = PROSE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->\n", part)
    return text
