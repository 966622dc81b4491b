"""How long a ledger keeps the rows that the central one has (A-59).

A row goes when the central ledger has had its newest version for the retention, and its record is forgotten as well: as
long as a record can answer a request, its row is beside it. What was never sent is never purged (A-57), so a ledger
that no central ledger gathers keeps everything. Each row leaves a line in the journal, which itself stays: by it,
`twophp ledger verify` can tell a row that was purged from one that was taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from twophp.core.entry import LedgerEntry
from twophp.core.policy import DAY_MS
from twophp.kernel.retention import PurgeRows
from twophp.ports import LedgerStore
from twophp.storing.bites import Bites
from twophp.storing.reopening import transacted

RETENTION_MS: Final = 30 * DAY_MS


async def purge(store: LedgerStore, retention_ms: int) -> int:
    """Forget the rows that were kept long enough; return how many."""
    before = store.now() - retention_ms

    def forget(rows: Sequence[LedgerEntry]) -> Any:
        return transacted(store, PurgeRows(rows))

    return await Bites("ledger rows", partial(store.purgeable, before), forget, _name).run()


def _name(row: LedgerEntry) -> str:
    return f"{row.client_correlation_id} {row.server_correlation_id} {row.actor}"
