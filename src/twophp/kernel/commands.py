"""Commands that belong to no machine of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from twophp.core.records import Key
from twophp.ports import Admission, Change, Records


class AdHocCommand(msgspec.Struct, frozen=True, gc=False):
    """A command that its caller spells out: for tests, and for inspecting a store interactively."""

    keys: Sequence[Key]
    decide: Callable[[Records], Change]
    admission: Admission = "accepted"


class ReadRecords(msgspec.Struct, frozen=True, gc=False):
    """A read that takes its turn among the changes. Its answer is the records under ``keys``, in their order."""

    keys: Sequence[Key]
    admission: Admission = "accepted"

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``."""
        return Change(answer=[records.get(key) for key in self.keys])


class MakeChange(msgspec.Struct, frozen=True, gc=False):
    """A change that depends on no record."""

    change: Change
    admission: Admission = "accepted"

    @property
    def keys(self) -> Sequence[Key]:
        """None: it reads no record."""
        return ()

    def decide(self, _records: Records) -> Change:
        """See ``Command.decide``."""
        return self.change
