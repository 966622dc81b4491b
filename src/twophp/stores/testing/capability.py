"""What a store may declare beyond the contract, and how a test says what it needs and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Capability(StrEnum):
    """Promises that not every store makes."""

    DURABLE = "DURABLE"  # Closed and opened again, everything is still there.
    SHARED = "SHARED"  # Several handles, also of several processes, may be open at the same time.
    SQL_STATEMENTS = "SQL_STATEMENTS"  # A change may bring statements for the store's own database.


DURABLE, SHARED, SQL_STATEMENTS = Capability


def needs(*capabilities: Capability) -> Callable[[F], F]:
    """Run the test only over stores that declare these."""
    return _noted("__capabilities__", frozenset(capabilities))


def unless(capability: Capability) -> Callable[[F], F]:
    """Run the test only over stores that do not declare this: they must refuse what they cannot do."""
    return _noted("__without__", capability)


def shows(*requirements: str) -> Callable[[F], F]:
    """Name the requirements that a test shows. No pytest mark: third parties would have to register the mark."""
    return _noted("__requirements__", requirements)


def _noted(name: str, value: object) -> Callable[[F], F]:
    def note(test: F) -> F:
        setattr(test, name, value)
        return test

    return note
