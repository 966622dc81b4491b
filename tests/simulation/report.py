"""A run in words: what was found, and the lines before it."""

from __future__ import annotations

from typing import Final

from tests.simulation.world import EVENTS, Result

LINES: Final = 60
MOST: Final = 5


def again(result: Result, events: int = EVENTS, bug: str = "") -> str:
    """The command that makes the same run again."""
    more = ("" if events == EVENTS else f" EVENTS={events}") + (f" BUG={bug}" if bug else "")
    return f"make simulate FROM={result.seed} SEEDS=1{more}"


def shown(result: Result, *, lines: int = LINES, events: int = EVENTS, bug: str = "") -> str:
    """What does not hold, the end of the trace, and how to see it again."""
    left_out = max(len(result.trace) - lines, 0)
    said = [f"seed {result.seed}: {len(result.findings)} findings, after {result.events} events"]
    said += [f"  {finding}" for finding in result.findings[:MOST]]
    said += [f"  ... {left_out} lines before this; ARGS=--trace shows all"] if left_out else []
    said += [*result.trace[left_out:], f"again: {again(result, events, bug)}"]
    return "\n".join(said)
