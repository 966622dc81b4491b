"""How long a ledger keeps the rows that the central one has (A-59).

A row goes when the central ledger has had its newest version for the retention, and its record is forgotten as well:
whoever can still be answered from a record has its row beside it. What was never sent is never purged (A-57), so a
ledger that nobody gathers keeps everything. Each row leaves a line in the journal, which itself stays: `twophp ledger
verify` tells a row that was purged from one that was taken away.
"""

from __future__ import annotations

from typing import Final

from twophp.core.entry import purged_line
from twophp.core.policy import DAY_MS
from twophp.engine.reopening import transacted
from twophp.ports import Change, Purge, Records, Store

RETENTION_MS: Final = 30 * DAY_MS
BITE: Final = 500
"""How many rows go at a time."""


async def purge(store: Store, retention_ms: int) -> int:
    """Forget a bounded number of rows that were kept long enough; how many there were."""
    rows = await store.outlived(store.now() - retention_ms, BITE)
    if not rows:
        return 0

    def forget(records: Records) -> Change:
        return Change(answer=None, purges=tuple(Purge(row, purged_line(row, records.now)) for row in rows))

    await transacted(store, (), forget)
    return len(rows)
