"""How much one principal may have open at a time.

An intent counts while it waits and while it runs. It begins to count and ceases in the very changes that register,
expire or end it, so the count is exact after any crash and with any number of processes. ``Usage`` is the count; a
principal without open intents has none.

It ceases at its deadline, and not at the end of the grace: a client that waits for room must not learn how long the
grace is (draft §5.4). A late confirm that is let in all the same counts again, and the quota does not refuse it.

What an intent counts for is written into the intent (``counted_bytes``). So a quota may be switched on, off or changed
at any time: what was not counted when it began is not subtracted when it ends.

Only a *new* registration can be refused. A known id is answered from what is stored, quota or not (T2).
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.intent import Intent, Phase
from twophp.core.machine import Refuse
from twophp.core.records import Instant, Key
from twophp.core.settings import SettingsStruct

BY_PRINCIPAL: Final = "quota.principal"
EXCEEDED: Final = Refuse("quota_exceeded")
OPEN: Final = frozenset({Phase.WAITING_CONFIRM, Phase.PROCESSING})


class Quota(SettingsStruct, frozen=True, kw_only=True):
    """The most that one principal may have open: intents, and bytes of their stored requests."""

    bad_code: ClassVar[str] = "bad_quota"

    open_intents: int = 10_000
    open_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            given = getattr(self, name)
            if type(given) is not int:  # Not True either, though Python counts it among the numbers.
                raise ConfigError(f"a quota's {name} must be a whole number, not {given!r}", code="bad_quota")
        if self.open_intents < 1 or self.open_bytes < 1:
            raise ConfigError("a quota that admits nothing is no quota", code="bad_quota")


DEFAULT_QUOTA: Final = Quota()
"""The quota where the service sets none: no caller fills the disk alone."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The open intents and bytes of one principal: a record, kept in the same changes as the intents it counts."""

    principal: str
    open_intents: int
    open_bytes: int
    version: int

    @property
    def due_at(self) -> Instant | None:
        """Never: a count is not swept."""
        return None

    def keys(self) -> tuple[Key, ...]:
        """There is one for each principal."""
        return (by_principal(self.principal),)


def by_principal(principal: str) -> Key:
    """The key of a principal's usage."""
    return Key(BY_PRINCIPAL, (principal,))


def counts(intent: Intent | None) -> bool:
    """Whether an intent is part of its principal's usage right now."""
    return intent is not None and intent.counted_bytes is not None and intent.phase in OPEN


def admitted(usage: Usage | None, intent: Intent, quota: Quota | None) -> Usage | None:
    """The usage with one more intent, or None if that is above the quota; without a quota it never is."""
    open_intents, open_bytes, version = (0, 0, 0) if usage is None else _amounts(usage)
    open_intents, open_bytes = open_intents + 1, open_bytes + (intent.counted_bytes or 0)
    if quota is not None and (open_intents > quota.open_intents or open_bytes > quota.open_bytes):
        return None
    return Usage(intent.principal, open_intents, open_bytes, version + 1)


def released(usage: Usage, intent: Intent) -> Usage | None:
    """The usage with one intent less, or None if none is left."""
    open_intents, open_bytes, version = _amounts(usage)
    if open_intents <= 1:
        return None
    left_bytes = max(0, open_bytes - (intent.counted_bytes or 0))
    return Usage(usage.principal, open_intents - 1, left_bytes, version + 1)


def _amounts(usage: Usage) -> tuple[int, int, int]:
    return usage.open_intents, usage.open_bytes, usage.version
