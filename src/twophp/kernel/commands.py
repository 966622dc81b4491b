"""Commands that belong to no machine of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from twophp.core.records import Key
from twophp.ports import Admission, Change, Records


class AdHocCommand(msgspec.Struct, frozen=True, gc=False):
    """A command that is spelled out by its caller: for tests, and for looking into a store by hand."""

    keys: Sequence[Key]
    decide: Callable[[Records], Change]
    admission: Admission = "accepted"


class ReadRecords(msgspec.Struct, frozen=True, gc=False):
    """A look that takes its turn among the changes. It answers the records under ``keys``, in their order."""

    keys: Sequence[Key]
    admission: Admission = "accepted"

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``."""
        return Change(answer=[records.get(key) for key in self.keys])


class MakeChange(msgspec.Struct, frozen=True, gc=False):
    """A change that depends on nothing."""

    change: Change
    admission: Admission = "accepted"

    @property
    def keys(self) -> Sequence[Key]:
        """It reads nothing."""
        return ()

    def decide(self, _records: Records) -> Change:
        """See ``Command.decide``."""
        return self.change
