"""What a handle on a server is, whatever server it is: opened and closed, with one writer and the server's time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from twophp.core.errors import StoreUnavailable
from twophp.core.records import Instant, Key
from twophp.ports import Command, Load, Then
from twophp.stores.clock import StoreTime
from twophp.stores.group_commit import GroupCommit
from twophp.stores.owners import NobodyKnown

W = TypeVar("W", bound=GroupCommit)


class Handle(ABC, Generic[W]):
    """Use it from one event loop, as a context manager or after ``open``."""

    at_once: Final = None
    owners: Final = NobodyKnown()  # Of another machine nothing is known: leases decide.

    def __init__(self, time: StoreTime) -> None:
        self._time = time
        self._writer: W | None = None
        self._is_closed = False

    @abstractmethod
    async def open(self) -> None:
        """Connect, refuse what would not be durable, and prove that a write is. All of it or nothing."""

    @abstractmethod
    async def close(self) -> None:
        """See ``Store.close``."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed", code="store_closed")

    @property
    def _opened(self) -> W:
        self._refuse_if_closed()
        if self._writer is None:
            raise StoreUnavailable("the store was not opened: use it as a context manager", code="store_not_open")
        return self._writer

    def load(self) -> Load:
        """See ``Store.load``."""
        return Load() if self._writer is None else self._writer.load()

    def now(self) -> Instant:
        """See ``Store.now``: the server's time, as this process last heard it, and what has passed since then."""
        return self._time.now()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._time.wall_ahead_ms()

    def transact(self, command: Command) -> Awaitable[Any]:
        """See ``Store.transact``: answered once the server has made it durable."""
        return self._opened.transact(command)

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``."""
        self._opened.submit(command, then)

    async def owners_of(self, _kind: str) -> Sequence[str]:
        """See ``Store.owners_of``: nothing is known about any of them."""
        return ()

    async def owned(self, _kind: str, _owner: str, _limit: int) -> Sequence[Key]:
        """See ``Store.owned``."""
        return ()
