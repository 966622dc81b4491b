"""Which cells of a machine's table a run has looked up, seen from outside the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from twophp.core.machine import Never

Cells: TypeAlias = set[tuple[str, str]]


class _Row(dict[StrEnum, Any]):
    def __init__(self, state: StrEnum, cells: Mapping[StrEnum, Any], reached: Cells) -> None:
        super().__init__(cells)
        self._state, self._reached = state, reached

    def __getitem__(self, signal: StrEnum) -> Any:
        self._reached.add((self._state.value, signal.value))
        return super().__getitem__(signal)


@contextmanager
def recording(machine: ModuleType) -> Iterator[Cells]:
    """Note every cell that ``machine.decide`` looks up inside the block."""
    reached: Cells = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "TABLE", {state: _Row(state, row, reached) for state, row in machine.TABLE.items()})
        yield reached


def reachable(machine: ModuleType) -> Cells:
    """Every cell that is not marked as impossible."""
    return {
        (state.value, signal.value)
        for state, row in machine.TABLE.items()
        for signal, cell in row.items()
        if not isinstance(cell, Never)
    }
