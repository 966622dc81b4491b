"""What a settlement needs of a connection, whatever library it comes from.

There is an adapter for each library. Statements have their places as ``$n``, and rows are sequences. The coroutines of
a blocking library never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from twophp.core.errors import ConstraintViolation, StoreError
from twophp.stores.postgres import driver

Row: TypeAlias = Sequence[Any]


class LentConnection(Protocol):
    """One connection of the application's, from when a handler asks for it until its intent is settled."""

    is_blocking: bool

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """Take a connection and begin. Returns what the handler works with, and the transaction's number.

        ``first`` is the statement that tells it. Where the library lets BEGIN say DEFERRABLE, which a transaction that
        writes ignores, that is the mark of ours: it spares the trip, and the number is None.
        """
        ...

    async def fetch(self, statement: str, *values: Any) -> Sequence[Row]:
        """The rows that a statement answers."""
        ...

    async def fetchrow(self, statement: str, *values: Any) -> Row | None:
        """The first of them."""
        ...

    async def flush(self) -> None:
        """The handler's block has ended: send what the library has kept back."""
        ...

    async def commit(self) -> None:
        """Commit. What the library does after a commit is left to ``close``."""
        ...

    async def undo(self) -> None:
        """Roll back, if that can be said, and give the connection back. An error is raised when that is done."""
        ...

    async def close(self) -> None:
        """It is committed: give the connection back."""
        ...


class ThroughDriver:
    """Fetches through what the driver below a library gives."""

    _driver: Any  # With ``fetch``.

    async def fetch(self, statement: str, *values: Any) -> Sequence[Row]:
        """See ``LentConnection.fetch``."""
        rows: Sequence[Row] = await self._driver.fetch(statement, *values)
        return rows

    async def fetchrow(self, statement: str, *values: Any) -> Row | None:
        """See ``LentConnection.fetchrow``."""
        rows = await self.fetch(statement, *values)
        return rows[0] if rows else None


def as_lists(values: Sequence[Any]) -> list[Any]:
    """The values of a statement over sets of rows, whose columns may be tuples."""
    return [list(value) if isinstance(value, tuple) else value for value in values]


def state_of(error: BaseException) -> str:
    """The SQLSTATE of an error, empty where the server has said none. SQLAlchemy wraps the driver's."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str):
            return state
    return ""


def is_certain(error: BaseException) -> bool:
    """Whether an error that answers COMMIT says that all of it was rolled back."""
    state = state_of(error)
    return bool(state) and not driver.is_state_of_outage(state) and state != driver.CANCELED


def is_constraint(error: BaseException) -> bool:
    """Whether a constraint refused a row."""
    return isinstance(error, ConstraintViolation) or state_of(error).startswith("23")


def translated(error: Exception) -> StoreError:
    """Our error for what a library has raised, when everything was rolled back."""
    if is_constraint(error):
        return ConstraintViolation(f"the change breaks a constraint: {error}")
    return StoreError(f"your transaction was rolled back, and nothing happened: {error!r}", code="rolled_back")
