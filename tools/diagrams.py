"""docs/explanation/machines.md: the rules as diagrams and tables, drawn from the very tables that decide.

Nothing here knows a rule. What the page shows is what ``decide`` looks up, so it cannot say anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from twophp.core import call_machine, compensation, obligation, phase, registrar, surface
from twophp.core.call import Stage
from twophp.core.intent import Phase
from twophp.core.machine import Cell, Goto, Ignore, Never, Refuse, Replay
from twophp.core.registration import STEPS
from twophp.core.rulebook import Rule

PAGE = "explanation/machines.md"

INTRODUCTION = """\
# The machines

Written by `make docs` from the tables in `src/twophp/core`; a test compares it with them. Every state and every signal
has one cell:

- `→ STATE` walks there, in one atomic change; two arrows are two steps of the same change.
- `replay` changes nothing and answers what was decided before.
- `ignore` changes nothing, and there is nothing to say.
- a code refuses. With an arrow, the refusal itself makes that state durable.
- `✗` cannot happen; the note says why, and a test that walks 100,000 steps never gets there.
"""

PHASE = """\
## Phase: one intent

`src/twophp/core/phase.py`. A point is what is not there: not yet registered, or forgotten after the horizon.
"""

CALL = """\
## Call: what a client knows of an intent at its server

`src/twophp/core/call_machine.py`. SENT is only noted, not in the ledger. GIVEN_UP is what only
the client knows: its row says WAITING_CONFIRM, as it was told. Everything else is what the client was told.
"""

OBLIGATION = """\
## Obligation: one tentative effect

`src/twophp/core/obligation.py`. Overdue is Reserved at or over its timeout; it is never stored. A reserve is looked up
under the state of the holder of its flow and key: it makes a new obligation, and a settled holder stays as it is.
"""

REGISTRAR = """\
## Registrar: one logical request

`src/twophp/core/registrar.py`. The first rule that holds answers. One rule admits; it asks for everything itself.
"""

COMPENSATION = """\
## Compensation: after the verifier said no

`src/twophp/core/compensation.py`. The first rule that holds answers.
"""

SURFACE = """\
## Surface: which table may serve as the replay store

`src/twophp/core/surface.py`. All of them proven, or `REPLAY_SURFACE_NOT_FIT`.
"""


def machines() -> str:
    """The whole page."""
    sections = [
        INTRODUCTION,
        PHASE,
        diagram(edges(phase.TABLE), absent=Phase.ABSENT),
        table(phase.TABLE),
        CALL,
        diagram(edges(call_machine.TABLE), absent=Stage.ABSENT),
        table(call_machine.TABLE),
        OBLIGATION,
        diagram(edges_of_one_obligation(), absent=obligation.State.ABSENT),
        table(obligation.TABLE),
        markdown(("Event", "Meaning"), ((f"`{code}`", text) for code, text in obligation.EVENTS.items())),
        markdown(("Error", "Meaning"), ((f"`{code}`", text) for code, text in obligation.ERRORS.items())),
        REGISTRAR,
        registrar_states(),
        rules(registrar.RULES),
        COMPENSATION,
        rules(compensation.RULES),
        SURFACE,
        markdown(("Criterion", "What must be proven"), surface.CRITERIA.items()),
    ]
    return "\n".join(sections)


def write(docs: Path) -> list[Path]:
    """Write the page into ``docs`` and return what was written."""
    target = docs / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(machines(), encoding="utf-8")
    return [target]


Edges = Mapping[tuple[StrEnum, StrEnum], Sequence[str]]


def edges(states: Mapping[Any, Mapping[Any, Cell]]) -> Edges:
    """Every step from one state to the next, with the signals that take it."""
    found: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for state, row in states.items():
        for signal, cell in row.items():
            for step, label in _steps(state, signal, cell):
                labels = found.setdefault(step, [])
                if label not in labels:
                    labels.append(label)
    return found


def _steps(state: StrEnum, signal: StrEnum, cell: Cell) -> Iterator[tuple[tuple[StrEnum, StrEnum], str]]:
    goto = cell.goto if isinstance(cell, Refuse) else cell
    if not isinstance(goto, Goto):
        return
    label = f"{signal.name} / {goto.event}" if goto.event else signal.name
    for after in goto.path:
        yield (state, after), label
        state = after


def edges_of_one_obligation() -> Edges:
    """Without the cells in which a reserve meets a settled holder: there, another obligation begins."""
    state, signal = obligation.State, obligation.Signal
    settled = {state.COMMITTED, state.ROLLED_BACK}
    own = {
        one: {name: cell for name, cell in row.items() if not (one in settled and name is signal.RESERVE)}
        for one, row in obligation.TABLE.items()
    }
    return {**edges(own), (state.RESERVED, state.OVERDUE): ["time"]}


def diagram(found: Edges, *, absent: StrEnum) -> str:
    """A mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), labels in found.items():
        start, end = ("[*]" if state is absent else state.value for state in (before, after))
        lines.append(f"    {start} --> {end}: {', '.join(labels)}")
    return "\n".join([*lines, "```", ""])


def table(states: Mapping[Any, Mapping[Any, Cell]]) -> str:
    """Signals down, states across, and the reasons of what cannot happen below."""
    notes: dict[str, int] = {}
    signals = list(next(iter(states.values())))
    ordered = [signal for signal in type(signals[0]) if signal in signals]
    rows = [(f"**{signal.name}**", *(_text(states[state][signal], notes) for state in states)) for signal in ordered]
    reasons = "".join(f"{number}. {why}\n" for why, number in notes.items())
    return markdown(("Signal", *(state.value for state in states)), rows) + (f"\n{reasons}" if notes else "")


def _text(cell: Cell, notes: dict[str, int]) -> str:
    match cell:
        case Goto():
            path = " ".join(f"→ {state}" for state in cell.path)
            return f"{path}, {cell.event}" if cell.event else path
        case Refuse(goto=None):
            return f"`{cell.code}`"
        case Refuse(goto=Goto() as goto):
            return f"`{cell.code}` {_text(goto, notes)}"
        case Never():
            return f"✗ ({notes.setdefault(cell.why, len(notes) + 1)})"
        case Replay():
            return "replay"
        case Ignore():
            return "ignore"
    raise TypeError(cell)


def registrar_states() -> str:
    """The states of a logical key. S0, where nothing is there, is written out: the contract counts from it."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> S0: a request arrives"]
    for before, steps in STEPS.items():
        lines += [f"    {_id(before)} --> {_id(after)}: {step}" for step, after in steps.items()]
        lines += [] if before.isidentifier() else [f'    state "{before}" as {_id(before)}']
    return "\n".join([*lines, "```", ""])


def _id(state: StrEnum) -> str:
    return state.value if state.isidentifier() else state.name


def rules(ordered: Iterable[Rule[Any]]) -> str:
    """A decision list as a table, in its order, with the requirements that each rule enforces."""
    found = ((rule.row, *_told(rule), ", ".join(rule.requirements)) for rule in ordered)
    return markdown(("Row", *RULE, "Enforces"), found)


def rules_in_order(ordered: Iterable[Rule[Any]]) -> str:
    """A decision list as a table for those who use it: numbered, without IDs."""
    return markdown(("", *RULE), ((str(number), *_told(rule)) for number, rule in enumerate(ordered, 1)))


RULE: Final = ("When", "Code", "Cause", "Prior shown", "Effect")


def _told(rule: Rule[Any]) -> tuple[str, ...]:
    cause = f"`{rule.cause}`" if rule.cause else ""
    shown, effect = "yes" if rule.discloses else "no", "yes" if rule.admits else "none"
    return rule.says, f"`{rule.code}`", cause, shown, effect


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    for path in write(Path(__file__).parents[1] / "docs"):
        print(path)
