"""How many obligations of one flow may be Reserved at a time (A-78). Off unless a flow is given a budget.

An obligation that was reserved under a budget says so itself (``Obligation.counted``); it begins to count in the very
change that reserves it and ceases in the one that settles it. So the count is exact after any crash and with any number
of processes, and a budget may be switched on, off or changed at any time: an obligation that was not counted when it
began is not subtracted when it ends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from twophp.core.errors import Refused
from twophp.core.records import Instant, Key

BY_FLOW: Final = "budget.flow"


class BudgetExhausted(Refused):
    """So many obligations of the flow are Reserved that there is no room for another; nothing was reserved."""

    default_code = "flow_budget_exhausted"


class Spent(msgspec.Struct, frozen=True, gc=False):
    """How much of a flow's budget is used: a record, kept in the same changes as the obligations it counts."""

    flow: str
    reserved: int
    version: int

    @property
    def due_at(self) -> Instant | None:
        """Never: a count is not swept."""
        return None

    def keys(self) -> tuple[Key, ...]:
        """There is one for each flow."""
        return (by_flow(self.flow),)


def by_flow(flow: str) -> Key:
    """The key of a flow's count."""
    return Key(BY_FLOW, (flow,))


def spent_after(spent: Spent | None, flow: str, more: int, budget: int | None) -> Spent | None:
    """The count changed by ``more``, or None if it is then zero. Refuses only growth, and only above ``budget``."""
    was, version = (0, 0) if spent is None else (spent.reserved, spent.version)
    reserved = was + more
    if more > 0 and budget is not None and reserved > budget:
        raise BudgetExhausted(f"flow {flow!r} has {was} obligations Reserved, and a budget of {budget}")
    return Spent(flow, reserved, version + 1) if reserved > 0 else None
