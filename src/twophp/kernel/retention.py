"""Deleting records and ledger rows that were kept long enough, a few at a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from twophp.core.entry import LedgerEntry, purged_line
from twophp.core.obligation import Obligation, forgotten
from twophp.core.records import Instant, Key
from twophp.ports import Admission, Change, Purge, Records


class PurgeRows(msgspec.Struct, frozen=True, gc=False):
    """Purge these ledger rows, each with its line."""

    rows: Sequence[LedgerEntry]
    admission: Admission = "background"

    @property
    def keys(self) -> Sequence[Key]:
        """None: the store itself keeps a row that has changed, or whose record still exists."""
        return ()

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``."""
        return Change(answer=None, purges=tuple(Purge(row, purged_line(row, records.now)) for row in self.rows))


class ForgetObligations(msgspec.Struct, frozen=True, gc=False):
    """Drop those obligations that were settled before this instant. Its answer is their number."""

    keys: Sequence[Key]
    before: Instant
    admission: Admission = "background"

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``. Another process may have dropped some of them already."""
        found: list[Obligation | None] = [records.get(key) for key in self.keys]
        gone = [one for one in found if one is not None and one.settled_at is not None and one.settled_at < self.before]
        if not gone:
            return Change(answer=0)
        line = forgotten([one.obligation_id for one in gone], records.now)
        return Change(answer=len(gone), drops=tuple(one.keys()[0] for one in gone), journal=(line,))
