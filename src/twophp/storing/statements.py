"""Which statements a business transaction takes: those that change something.

A transaction's statements run when its intent is settled, long after the handler has gone on: a SELECT could not return
its rows. So it is refused where it is written. The first word of a statement tells what it does; in a WITH, it is the
word after its tables.
"""

from __future__ import annotations

import re
from typing import Final

from twophp.core.errors import Refused

SELECT_REFUSED: Final = "select_refused"

_READS: Final = frozenset({"SELECT", "VALUES", "EXPLAIN"})
_VERBS: Final = frozenset({"SELECT", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE"})
_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|[A-Za-z_][A-Za-z_0-9$]*|[();]""",
    re.DOTALL,
)


def refuse_reading(sql: str) -> None:
    """Raise Refused if one of the statements returns rows and changes nothing."""
    for verb in _verbs(sql):
        if verb in _READS:
            message = (
                f"a transaction's statements run when the intent is settled, so a {verb} could return nothing to the "
                "handler; read with a connection of your own before you write"
            )
            raise Refused(message, code=SELECT_REFUSED)


def _verbs(sql: str) -> list[str]:
    """What each statement does. The body of a trigger is part of the statement that makes it."""
    found: list[str] = []
    verb, depth, in_trigger = "", 0, False
    for part in _TOKEN.findall(sql):
        word = part.upper()
        if part[0] in "-/'\"`[":
            continue
        if part in "()":
            depth += 1 if part == "(" else -1
        elif part == ";":
            if in_trigger:
                break
            verb, depth = "", 0
        elif not verb:
            verb = word
            if word != "WITH":
                found.append(word)
        elif verb == "WITH" and depth == 0 and word in _VERBS:
            verb = word
            found.append(word)
        elif verb == "CREATE" and word == "TRIGGER":
            in_trigger = True
    return found
