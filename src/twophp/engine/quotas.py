"""Counting what principals have open, in the very changes that open and end it. The rules are in ``core.quota``.

Whoever knows whose intent it is names the principal's usage beforehand; a sweep does not, so it finds out inside the
transaction, writes nothing, and asks once more with both keys.
"""

from __future__ import annotations

from msgspec.structs import replace

from twophp.core.intent import Intent
from twophp.core.phase import Decision, Register
from twophp.core.quota import EXCEEDED, Quota, Usage, admitted, by_principal, counts, released
from twophp.core.records import Key
from twophp.ports import Change, Put, Records


class NotNamed(Exception):
    """The transaction must also name this key; nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class Meter:
    """Adds the count to a change. Without a quota nothing new is counted, and what was counted before still ends."""

    def __init__(self, quota: Quota | None) -> None:
        self._quota = quota

    def counted(self, command: Register, payload: bytes) -> Register:
        """The registration, with what it will count for.

        Plain requests do not: a service that records them must not refuse them for it (A-37).
        """
        if self._quota is None or command.is_plain:
            return command
        return replace(command, counted_bytes=len(payload))

    def metered(self, wanted: Change, before: Intent | None, after: Intent, records: Records) -> Change:
        """The change with the count in it. Raises NotNamed if the transaction did not name the count."""
        if counts(before) == counts(after):
            return wanted
        key = by_principal(after.principal)
        try:
            usage: Usage | None = records.get(key)
        except KeyError as error:
            raise NotNamed(key) from error
        if counts(before):
            return _released(wanted, usage, after)
        # One that follows a redirect is as new as any other (T2 row 7): it has a server id of its own.
        is_new = before is None or before.server_correlation_id != after.server_correlation_id
        return _admitted(wanted, usage, after, self._quota if is_new else None)


def _admitted(wanted: Change, usage: Usage | None, intent: Intent, quota: Quota | None) -> Change:
    more = admitted(usage, intent, quota)
    if more is None:
        return Change(answer=Decision(EXCEEDED, None))
    return replace(wanted, puts=(*wanted.puts, Put(record=more)))


def names(key: Key, about: Register | Intent | None) -> tuple[Key, ...]:
    """The keys of a change of the intent under ``key``; ``about`` tells whose it is, if that is known."""
    return (key,) if about is None or about.counted_bytes is None else (key, by_principal(about.principal))


def _released(wanted: Change, usage: Usage | None, intent: Intent) -> Change:
    if usage is None:  # Somebody has deleted the count. That is no reason for an intent not to end.
        return wanted
    less = released(usage, intent)
    if less is None:
        return replace(wanted, drops=(*wanted.drops, *usage.keys()))
    return replace(wanted, puts=(*wanted.puts, Put(record=less)))
