"""Letting go of what was settled long ago.

A settled obligation holds nothing and keeps nobody from anything; its record is there for people to look at. Its
history is in the journal and stays there for ever, whatever becomes of the record. So records older than the retention
are dropped, a bite at a time and the oldest first, and one line of the journal names those of each bite: verification
then tells a record that was forgotten from one that somebody deleted.
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
"""How often somebody looks."""


async def forget_settled(store: ObligationStore, retention_ms: int | None) -> int:
    """Drop what was settled longer ago than this, if it is not kept for ever; how many there were."""
    if retention_ms is None:
        return 0
    before = store.now() - retention_ms

    def forget(keys: Sequence[Key]) -> Any:
        return store.transact(ForgetObligations(keys, before))

    return await Bites("obligations", partial(store.settled, before), forget, _name).run()


def _name(key: Key) -> str:
    return str(key.values[0])
