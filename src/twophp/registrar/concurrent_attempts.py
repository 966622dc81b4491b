"""Attempts that are under way for the same logical key in this process (S4).

An attempt has raced when the key was free as it began and is consumed as it decides. It begins when its caller calls,
which may be long before it gets its turn. So all attempts that are under way at the same time share one look at the
key, made for the first of them: the *crowd*. The crowd ends when its winner is answered, or the first member that lost
to an attempt outside of it, or its last member. A later caller looks again, and finds what was decided.
"""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary


class ConcurrentAttempts:
    """The attempts of one key, and whether the first of them saw it free."""

    __slots__ = ("__weakref__", "has_won", "members", "was_free")

    def __init__(self) -> None:
        self.members = 0
        self.was_free: bool | None = None  # None: no member has looked yet.
        self.has_won = False  # The key was consumed by one of them.


class Crowds:
    """The crowds of one registrar. Any thread may join; there are as many as attempts are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weak: an attempt that was cancelled before it began never leaves, so the crowd ends with its last reference.
        self._by_key: WeakValueDictionary[str, ConcurrentAttempts] = WeakValueDictionary()

    def join(self, key: str) -> ConcurrentAttempts:
        """The crowd of ``key``, with one more member."""
        with self._lock:
            crowd = self._by_key.setdefault(key, ConcurrentAttempts())
            crowd.members += 1
            return crowd

    def leave(self, key: str, crowd: ConcurrentAttempts, *, over: bool) -> None:
        """One member is done. ``over``: so is the race, and a later attempt begins a crowd of its own."""
        with self._lock:
            crowd.members -= 1
            if (over or not crowd.members) and self._by_key.get(key) is crowd:
                del self._by_key[key]
