"""Deletes many records a few at a time, and skips those that cannot be deleted: above all, ledger rows.

A bite is one change of the background (ADR 30): small, so that no request waits for it for long. When the store refuses
a bite, its records are tried one by one. A record that is refused alone is skipped, so that it delays none behind it.

A ledger row goes when the central ledger has had its newest version for the retention, and its record is forgotten as
well: as long as a record can answer a request, its row is beside it. What was never sent is never purged (A-57), so a
ledger that no central ledger gathers keeps everything. Each row leaves a line in the journal, which itself stays: by
it, `twophp ledger verify` can tell a row that was purged from one that was taken away (A-59).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from twophp.core.entry import LedgerEntry
from twophp.core.errors import CommitUnknown, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.policy import DAY_MS
from twophp.kernel.retention import PurgeRows
from twophp.ports import LedgerStore
from twophp.storing.reopening import transacted

log: Final = logging.getLogger("twophp.engine")

BITE: Final = 64
MOST_LEFT: Final = 10_000
"""How many records that cannot be deleted one visit skips."""

T = TypeVar("T")


class Bites(Generic[T]):
    """One visit. ``find`` returns the first records that are due, up to a number; ``forget`` deletes a bite of them."""

    def __init__(
        self,
        what: str,
        find: Callable[[int], Awaitable[Sequence[T]]],
        forget: Callable[[Sequence[T]], Awaitable[object]],
        name: Callable[[T], str],
    ) -> None:
        self._what = what
        self._find = find
        self._forget = forget
        self._name = name
        self._left: dict[str, str] = {}  # Why, by name.

    async def run(self) -> int:
        """Delete until no record is found that can be deleted. Return how many were."""
        count, before = 0, frozenset[str]()
        while some := await self._next():
            for one in some:
                if self._name(one) in before:  # It was in the last bite and is there still.
                    self._left[self._name(one)] = "it stays"
            some = [one for one in some if self._name(one) not in self._left]
            before = frozenset(map(self._name, some))
            count += await self._bite(some)
        if self._left:
            name, why = next(iter(self._left.items()))
            log.warning("%d %s cannot be deleted, the first is %s: %s", len(self._left), self._what, name, why)
        return count

    async def _next(self) -> list[T]:
        if len(self._left) >= MOST_LEFT:
            return []
        found = await self._find(BITE + len(self._left))
        return [one for one in found if self._name(one) not in self._left][:BITE]

    async def _bite(self, some: Sequence[T]) -> int:
        try:
            if some:
                await self._forget(some)
        except (StoreUnavailable, CommitUnknown, StorePoisoned):
            raise
        except StoreError as error:
            if len(some) == 1:
                self._left[self._name(some[0])] = str(error)
                return 0
            return sum(await asyncio.gather(*(self._bite([one]) for one in some)))
        return len(some)


RETENTION_MS: Final = 30 * DAY_MS


async def purge(store: LedgerStore, retention_ms: int) -> int:
    """Forget the rows that were kept long enough; return how many."""
    before = store.now() - retention_ms

    def forget(rows: Sequence[LedgerEntry]) -> Any:
        return transacted(store, PurgeRows(rows))

    return await Bites("ledger rows", partial(store.purgeable, before), forget, _name).run()


def _name(row: LedgerEntry) -> str:
    return f"{row.client_correlation_id} {row.server_correlation_id} {row.actor}"
