"""What this process has just seen, bounded: payloads on their way to a confirm, answers that may be asked for again.

Only the store holds the truth. A payload that is not here is read from the store; an answer is here only because it
is settled and durable, and what is settled does not change.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The newest few by their server correlation id, up to a number and up to a size."""

    def __init__(self, *, entries: int, size: int) -> None:
        self._entries = entries
        self._room = size
        # Values and sizes apart: a pair for each would be thousands for the garbage collector to walk.
        self._found: OrderedDict[str, T] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def keep(self, server_correlation_id: str, value: T, size: int) -> None:
        """Remember, and forget the oldest if there is no room. What is too large to fit is not remembered."""
        found = self._found
        if server_correlation_id in found:
            self.take(server_correlation_id)
        found[server_correlation_id] = value
        self._sizes[server_correlation_id] = size
        self._room -= size
        if self._room < 0 or len(found) > self._entries:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        while self._found and (self._room < 0 or len(self._found) > self._entries):
            oldest, _value = self._found.popitem(last=False)
            self._room += self._sizes.pop(oldest)

    def get(self, server_correlation_id: str) -> T | None:
        """What is remembered, if it is."""
        return self._found.get(server_correlation_id)

    def take(self, server_correlation_id: str) -> T | None:
        """What is remembered, for the last time."""
        value = self._found.pop(server_correlation_id, None)
        if value is not None:
            self._room += self._sizes.pop(server_correlation_id)
        return value
