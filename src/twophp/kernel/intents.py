"""The change of a command about an intent, as one value: decided by ``core.phase``, made durable by a store.

The record, its ledger row, its history and its sealed parts are one change. So is everything that follows from the
decision: the jobs that the service owes to others, the usage of its principal, the statements and obligations of a
settlement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

import msgspec

from twophp.core.entry import Writer, server_entry
from twophp.core.errors import Refused, TwoPHPError
from twophp.core.intent import SETTLED, Intent, Phase, by_logical_key, by_pair
from twophp.core.intent_commands import Command
from twophp.core.machine import Refuse
from twophp.core.phase import IntentDecision, decide
from twophp.core.policy import Policy
from twophp.core.quota import EXCEEDED, OPEN, Quota, Usage, admitted, by_principal, released
from twophp.core.records import Key, Sealed
from twophp.ports import Admission, Change, Part, Put, Records, Statement

PolicyOf: TypeAlias = Callable[[Intent], Policy]
SideEffects: TypeAlias = Callable[[IntentDecision], tuple[Put, ...]]
"""Further records that become durable with a decision, such as a job of the outbox. Pure, as the decision is."""
Seals: TypeAlias = Mapping[Part, Sealed | None]

_More: TypeAlias = tuple[tuple[Put, ...], tuple[Key, ...]]
"""Puts and drops beside the intent's own."""

NO_SEALS: Final[Seals] = {}
_NOTHING: Final[_More] = ((), ())
_DESTROY_PAYLOAD: Final[Seals] = {"payload": None}
_ANY_POLICY: Final = Policy.standard()  # For an intent that does not exist, every policy decides the same.
_ABSENT, _PROCESSING = Phase.ABSENT, Phase.PROCESSING


class SettleParticipant(Protocol):
    """A further decision in the change that settles an intent. If it raises, nothing of the change is written."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The records that it reads."""
        ...

    def __call__(self, records: Records) -> Change:
        """The puts and drops that it makes durable. Its answer is not used."""
        ...


class NotNamed(Exception):
    """The command must also name this key; nothing was written. A caller that knows the principal names it at once."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class DecideIntent(msgspec.Struct, frozen=True, gc=False):
    """One command of ``core.phase``, as the store is asked to decide it. Its answer is the decision."""

    keys: tuple[Key, ...]  # The intent's first; then its principal's usage, if it is counted, and what ``also`` reads.
    command: Command
    policy: Policy | PolicyOf
    writer: Writer
    seals: Seals = NO_SEALS
    quota: Quota | None = None
    follow: tuple[SideEffects, ...] = ()
    statements: tuple[Statement, ...] = ()
    also: SettleParticipant | None = None
    refusal: TwoPHPError | None = None  # Raised only if there is no intent yet: a known one gets its outcome (T2).
    admission: Admission = "accepted"

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``."""
        before: Intent | None = records.get(self.keys[0])
        if before is None and self.refusal is not None:
            raise self.refusal
        policy = self.policy
        rules = policy if isinstance(policy, Policy) else _ANY_POLICY if before is None else policy(before)
        decision = decide(before, self.command, records.now, rules)
        after = decision.intent
        if not decision.changed or after is None:
            return Change(answer=decision)
        more, drops = _NOTHING
        for follow in self.follow:
            more += follow(decision)
        if self.also is not None and after.phase in SETTLED:
            also = self.also(records)
            more, drops = more + also.puts, also.drops
        if after.counted_bytes is not None:
            opened = before is not None and before.counted_bytes is not None and before.phase in OPEN
            if opened is not (after.phase in OPEN):
                counted = self._counted(records, before, after, opened=opened)
                if counted is None:
                    return Change(answer=IntentDecision(EXCEEDED, None))
                more, drops = more + counted[0], drops + counted[1]
        return self._change(before, after, decision, more, drops)

    def _change(
        self,
        before: Intent | None,
        after: Intent,
        decision: IntentDecision,
        more: tuple[Put, ...],
        drops: tuple[Key, ...],
    ) -> Change:
        """The intent's own put beside what follows. A refusal keeps no payload, though it may age the intent."""
        steps, seals = decision.steps, self.seals
        if after.phase is _ABSENT:
            return Change(answer=decision, puts=more, drops=(key_of(after), *drops), journal=steps)
        if type(decision.verdict) is Refuse:
            seals = NO_SEALS
        if before is not None and before.has_payload and not after.has_payload:
            seals = _DESTROY_PAYLOAD
        entry = server_entry(after, self.writer) if steps else None
        if before is not None and before.server_correlation_id != after.server_correlation_id:
            # T2 row 7: a new intent in place of the one it follows. The first line ends that one.
            key, (ending, *begun) = by_logical_key(before.principal, before.client_correlation_id), steps
            put = Put(record=after, entry=entry, journal=tuple(begun), seals=seals, replaces=key)
            return Change(answer=decision, puts=(put, *more), drops=drops, journal=(ending,))
        held = None if before is None else self.keys[0]  # The fields that make its keys never change.
        put = Put(record=after, entry=entry, journal=steps, seals=seals, held=held)
        return Change(answer=decision, puts=(put, *more), drops=drops, statements=self.statements)

    def _counted(self, records: Records, before: Intent | None, after: Intent, *, opened: bool) -> _More | None:
        """Count the principal's open intents in the very change that opens or ends this one. None: above the quota."""
        key = by_principal(after.principal)
        if key not in self.keys:  # A sweep does not know the intent's principal.
            raise NotNamed(key)
        usage: Usage | None = records.get(key)
        if not opened:
            # An intent that follows a redirect is as new as any other (T2 row 7): it has a server id of its own.
            is_new = before is None or before.server_correlation_id != after.server_correlation_id
            raised = admitted(usage, after, self.quota if is_new else None)
            return None if raised is None else ((Put(record=raised, held=None if usage is None else key),), ())
        if usage is None:  # A direct edit has deleted the count. The intent must end all the same.
            return _NOTHING
        less = released(usage, after)
        return ((), (key,)) if less is None else ((Put(record=less, held=key),), ())


class TryStatements(msgspec.Struct, frozen=True, gc=False):
    """Run the statements as the settlement of this intent would, and undo them. Raises what would refuse them."""

    intent: Intent
    statements: tuple[Statement, ...]
    admission: Admission = "accepted"

    @property
    def keys(self) -> tuple[Key, ...]:
        """The intent's key."""
        return (key_of(self.intent),)

    def decide(self, records: Records) -> Change:
        """See ``Command.decide``. Raises Refused unless the intent is executed under this fence."""
        found: Intent | None = records.get(self.keys[0])
        if found is None or found.phase is not _PROCESSING or found.fence != self.intent.fence:
            message = "the intent is not, or no longer, executed here; no business row can be written with it"
            raise Refused(message, code="intent_not_running")
        return Change(answer=None, trial=self.statements)


def key_of(intent: Intent) -> Key:
    """The key of an intent for commands that know both ids."""
    return by_pair(intent.client_correlation_id, intent.server_correlation_id)
