"""Fencing tokens: the holder of a resource has a number, and every later holder has a higher one.

A lock alone protects nothing: its holder may be paused for as long as the lock lasts, wake up and write. So each holder
gets a token, and the protected resource asks whether it is still the current one (``is_current``). Holding is an
obligation of the flow ``fencing`` whose key is the resource: acquiring reserves it, which keeps others out; releasing
commits it or rolls it back; and a holder that does neither in time leaks it and no longer holds the resource. The token
rises in the same change that reserves, and its record is never dropped, so it rises over restarts and processes alike.
"""

from __future__ import annotations

from typing import Final

import msgspec

from twophp.core.errors import Refused
from twophp.core.obligation import Obligation, State
from twophp.core.records import Instant, Key

FENCING: Final = "fencing"
BY_RESOURCE: Final = "fence.resource"


class StaleToken(Refused):
    """The token is not, or no longer, the one that holds the resource."""

    default_code = "stale_token"


class Fence(msgspec.Struct, frozen=True, gc=False):
    """The newest token of one resource, and the obligation that it was given to."""

    resource: str
    token: int
    obligation_id: str
    version: int

    @property
    def due_at(self) -> Instant | None:
        """Never: the obligation falls due instead."""
        return None

    def keys(self) -> tuple[Key, ...]:
        """There is one for each resource."""
        return (by_resource(self.resource),)


def by_resource(resource: str) -> Key:
    """The key of a resource's newest token."""
    return Key(BY_RESOURCE, (resource,))


def raised(fence: Fence | None, resource: str, obligation_id: str) -> Fence:
    """The next token, for this obligation."""
    token, version = (0, 0) if fence is None else (fence.token, fence.version)
    return Fence(resource, token + 1, obligation_id, version + 1)


def is_current(fence: Fence | None, token: int, holder: Obligation | None, now: Instant) -> bool:
    """Whether ``token`` holds the resource at ``now``: the newest, and its obligation Reserved and in time."""
    if fence is None or fence.token != token or holder is None or holder.obligation_id != fence.obligation_id:
        return False
    return holder.effective_state(now) is State.RESERVED
