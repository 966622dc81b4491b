"""Name look-ups on behalf of principals, shared out so that slow names of one delay no other's.

A look-up in the system's resolver holds a thread until the resolver gives up, also after its caller has left. So a
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


class _Share:
    """What one principal has of the look-ups."""

    def __init__(self, most: int) -> None:
        self.turns = asyncio.Semaphore(most)
        self.users = 0  # Look-ups that are under way, and callers that wait for their turn.


class Lookups:
    """The look-ups of one service that are under way, by principal."""

    def __init__(self, resolver: Resolver, most_each: int = MOST_EACH) -> None:
        self._resolver = resolver
        self._most_each = most_each
        self._under_way: dict[tuple[str, str, int], asyncio.Task[Sequence[str]]] = {}
        self._shares: dict[str, _Share] = {}

    def of(self, principal: str) -> Resolver:
        """A resolver that takes this principal's share and no more."""

        async def resolver(host: str, port: int) -> Sequence[str]:
            key = (principal, host, port)
            if key not in self._under_way:
                await self._turn(key)
            return await asyncio.shield(self._under_way[key])  # A caller that leaves ends no look-up.

        return resolver

    async def _turn(self, key: tuple[str, str, int]) -> None:
        """Wait for a turn and begin. A caller that stops waiting before its turn leaves nothing behind."""
        principal = key[0]
        share = self._shares.setdefault(principal, _Share(self._most_each))
        share.users += 1
        try:
            await share.turns.acquire()
        except asyncio.CancelledError:
            self._leave(principal, share)
            raise
        if key in self._under_way:  # Another caller has begun this look-up by now.
            share.turns.release()
            self._leave(principal, share)
            return
        task = self._under_way[key] = asyncio.create_task(self._look_up(*key[1:]))
        task.add_done_callback(lambda ended: self._ended(key, share, ended))

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        return await self._resolver(host, port)

    def _ended(self, key: tuple[str, str, int], share: _Share, task: asyncio.Task[Sequence[str]]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would log it: perhaps no caller waits any more.
        share.turns.release()
        self._leave(key[0], share)

    def _leave(self, principal: str, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[principal]
