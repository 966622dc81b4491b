"""docs/reference/registrar.md: prose from registrar_page.md beside this file, the rest from the rules."""

from __future__ import annotations

from pathlib import Path

from tools.diagrams import markdown, registrar_states, rules_in_order
from twophp.core import compensation, registrar
from twophp.core.rulebook import CODES
from twophp.core.surface import CRITERIA

PROSE = Path(__file__).with_name("registrar_page.md")


def registrar_page() -> str:
    """The whole page."""
    parts = {
        "states": registrar_states(),
        "codes": markdown(("Code", "Says"), ((f"`{code}`", says.replace("``", "`")) for code, says in CODES.items())),
        "rules": rules_in_order(registrar.RULES),
        "compensation": rules_in_order(compensation.RULES),
        "criteria": markdown(("Criterion", "What must be proven"), CRITERIA.items()),
    }
    text = PROSE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->\n", part)
    return text
