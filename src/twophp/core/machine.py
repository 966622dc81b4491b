"""The five kinds of cells in a machine's table. All machines share them.

A machine is a *total* table: for every state and every signal there is one cell. Totality is what lets a reader
check the rules by looking: there is no branch elsewhere that quietly adds an edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec


class Goto(msgspec.Struct, frozen=True):
    """Walk these states in order, all in one atomic change. ``event`` is the audit code of the step, if it has one."""

    path: tuple[StrEnum, ...]
    event: str | None = None


class Replay(msgspec.Struct, frozen=True):
    """Change nothing and give the earlier answer."""


class Ignore(msgspec.Struct, frozen=True):
    """Change nothing and give no answer."""


class Refuse(msgspec.Struct, frozen=True):
    """Answer ``code``. The state stays, unless ``goto`` names the one this refusal makes durable."""

    code: str
    goto: Goto | None = None


class Never(msgspec.Struct, frozen=True):
    """The guards cannot produce this signal in this state; ``why`` says so, and reaching it is our bug."""

    why: str


Cell: TypeAlias = Goto | Replay | Ignore | Refuse | Never
Table: TypeAlias = Mapping[Any, Mapping[Any, Cell]]  # By state, then by signal; a Mapping's key cannot be widened.


def missing_cells(table: Table, states: Iterable[StrEnum], signals: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """The holes of a table; a total table has none."""
    wanted = list(signals)
    return [(state, signal) for state in states for signal in wanted if signal not in table.get(state, {})]
