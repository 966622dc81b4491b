"""Name look-ups on behalf of callers, shared out so that slow names of one caller delay nobody else's.

A look-up in the system's resolver holds a thread until the resolver gives up, whoever has stopped waiting for it. So a
principal has few look-ups at a time, and its further ones wait for those; look-ups of one name are made once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to addresses as text, in the order to be tried; raises OSError."""

MOST_EACH: Final = 2
"""How many names of one principal are looked up at a time. The system's resolver has sixteen times as many threads."""


class Lookups:
    """The look-ups of one service that are under way, by principal."""

    def __init__(self, resolver: Resolver, most_each: int = MOST_EACH) -> None:
        self._resolver = resolver
        self._most_each = most_each
        self._under_way: dict[tuple[str, str, int], asyncio.Task[Sequence[str]]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}

    def of(self, principal: str) -> Resolver:
        """A resolver that takes this principal's share and no more."""

        async def resolver(host: str, port: int) -> Sequence[str]:
            key = (principal, host, port)
            task = self._under_way.get(key)
            if task is None:
                task = asyncio.create_task(self._look_up(*key))
                self._under_way[key] = task
                task.add_done_callback(lambda ended: self._ended(key, ended))
            return await asyncio.shield(task)  # Who stops waiting ends no look-up: its thread goes on.

        return resolver

    async def _look_up(self, principal: str, host: str, port: int) -> Sequence[str]:
        turns = self._turns.setdefault(principal, asyncio.Semaphore(self._most_each))
        async with turns:
            return await self._resolver(host, port)

    def _ended(self, key: tuple[str, str, int], task: asyncio.Task[Sequence[str]]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # Nobody may be left to hear of it.
        principal = key[0]
        if not any(other == principal for other, _host, _port in self._under_way):
            self._turns.pop(principal, None)
