"""Counting what principals have open, in the very changes that open and end it. The rules are in ``core.quota``.

A change about an intent goes through ``Meter.transact``. Whoever knows whose intent it is names the principal's usage
beforehand; a sweep does not, so it finds out inside the transaction, writes nothing, and asks once more with both keys.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from twophp.core.intent import Intent, Mode
from twophp.core.phase import Decision, Register
from twophp.core.quota import EXCEEDED, Quota, Usage, admitted, by_principal, counts, released
from twophp.core.records import Key
from twophp.ports import Change, Decide, Put, Records, Store


class _NotNamed(Exception):
    """The transaction must also name this key; nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class Meter:
    """Stands before a store. Without a quota nothing new is counted, and what was counted before still ends."""

    def __init__(self, store: Store, quota: Quota | None) -> None:
        self._store = store
        self._quota = quota

    def counted(self, command: Register, payload: bytes) -> Register:
        """The registration, with what it will count for.

        Transparent calls do not: a service that records plain requests must not refuse them for it (A-37).
        """
        if self._quota is None or command.mode is Mode.TRANSPARENT:
            return command
        return replace(command, counted_bytes=len(payload))

    async def transact(self, key: Key, decide: Decide, about: Register | Intent | None = None) -> Any:
        """One change of the intent under ``key``; ``about`` tells whose it is, if that is known."""
        keys = (key,) if about is None or about.counted_bytes is None else (key, by_principal(about.principal))
        try:
            return await self._store.transact(keys, self._metered(keys, decide))
        except _NotNamed as missing:
            keys = (key, missing.key)  # An intent's principal never changes, so this is the last time.
        return await self._store.transact(keys, self._metered(keys, decide))

    def _metered(self, keys: tuple[Key, ...], decide: Decide) -> Decide:
        def change(records: Records) -> Change:
            wanted = decide(records)
            after = wanted.puts[0].record if wanted.puts else None
            if not isinstance(after, Intent):
                return wanted
            before: Intent | None = records.get(keys[0])
            if counts(before) == counts(after):
                return wanted
            key = by_principal(after.principal)
            if key not in keys:
                raise _NotNamed(key)
            usage: Usage | None = records.get(key)
            return _released(wanted, usage, after) if counts(before) else self._admitted(wanted, usage, after)

        return change

    def _admitted(self, wanted: Change, usage: Usage | None, intent: Intent) -> Change:
        assert self._quota is not None
        more = admitted(usage, intent, self._quota)
        if more is None:
            return Change(answer=Decision(EXCEEDED, None))
        return replace(wanted, puts=(*wanted.puts, Put(record=more)))


def _released(wanted: Change, usage: Usage | None, intent: Intent) -> Change:
    if usage is None:  # Somebody has deleted the count. That is no reason for an intent not to end.
        return wanted
    less = released(usage, intent)
    if less is None:
        return replace(wanted, drops=(*wanted.drops, *usage.keys()))
    return replace(wanted, puts=(*wanted.puts, Put(record=less)))
