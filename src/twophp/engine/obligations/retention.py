"""Deletes obligations that were settled long ago.

A settled obligation holds nothing and blocks no other; its record is there for people to look at. Its history is in
the journal and stays there for ever, also without the record. So records older than the retention are dropped, a bite
at a time and the oldest first. One line of the journal names those of each bite: by it, verification can tell a record
that retention dropped from one that was deleted from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from twophp.core.policy import DAY_MS
from twophp.core.records import Key
from twophp.kernel.retention import ForgetObligations
from twophp.ports import ObligationStore
from twophp.storing.bites import Bites

RETENTION_MS: Final = 30 * DAY_MS
"""As long as ledger rows are kept at home (A-59)."""
INTERVAL_S: Final = 60.0
"""How often the service looks for them."""


async def forget_settled(store: ObligationStore, retention_ms: int | None) -> int:
    """Drop what was settled longer ago than this, and return how many. With None all is kept for ever."""
    if retention_ms is None:
        return 0
    before = store.now() - retention_ms

    def forget(keys: Sequence[Key]) -> Any:
        return store.transact(ForgetObligations(keys, before))

    return await Bites("obligations", partial(store.settled, before), forget, _name).run()


def _name(key: Key) -> str:
    return str(key.values[0])
