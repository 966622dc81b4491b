"""What a command about obligations makes durable, all of it in one change.

An ``ObligationCommand`` is such a change before it is made: the keys that it names and, called inside the
transaction, the decision with everything that follows from it: records and audit lines, the sealed payload, what is
owed to others, the place in a budget. If it needs more, it raises ``NeedsKey`` or ``NeedsPayload``; its maker reads
that and calls it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.budget import by_flow, spent_after
from twophp.core.obligation import (
    Commit,
    Decision,
    Obligation,
    Reserve,
    Rollback,
    Scan,
    State,
    admitted,
    by_id,
    decide,
)
from twophp.core.records import Instant, JournalEvent, Key, Sealed
from twophp.delivery.outbox import Outbox
from twophp.engine.obligations.effects import letter_for
from twophp.engine.obligations.rules import Rules
from twophp.ports import Change, Part, Put, Records, Statement

_COMMITTED, _ROLLED_BACK, _RESERVED = State.COMMITTED, State.ROLLED_BACK, State.RESERVED

Seals: TypeAlias = Mapping[Part, Sealed | None]
NO_SEALS: Final[Seals] = {}
_DESTROYED: Final[Seals] = {"payload": None}
_NO_PAYLOADS: Final[Mapping[str, bytes]] = {}

Held: TypeAlias = tuple[tuple[str, str], ...]
"""Ids of obligations, each with its flow."""

Then: TypeAlias = Callable[[Records, Change], Change]
"""What else becomes durable with a change, such as a fencing token. Pure, as the decision is."""


class NeedsKey(Exception):
    """The transaction must also name this key; nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class NeedsPayload(Exception):
    """The payload of what is owed must be read first; nothing was written."""

    def __init__(self, obligation_id: str) -> None:
        super().__init__(obligation_id)
        self.obligation_id = obligation_id


class ObligationCommand:
    """A change that is to be made, and what was read for it. A ``Decide``; no closure, so it leaves no cycle."""

    __slots__ = ("_follows", "keys", "payloads", "reads", "then")

    _follows: Consequences
    keys: tuple[Key, ...]
    reads: tuple[str, ...]  # The obligations whose payload it may have to hand on ...
    payloads: Mapping[str, bytes]  # ... and what was read of them.
    then: Then | None

    def __call__(self, records: Records) -> Change:
        """Decide, and say everything that follows."""
        raise NotImplementedError


class Reserving(ObligationCommand):
    """Records a tentative effect. The first key is the new obligation's, the second that of a possible holder."""

    __slots__ = ("_command", "_seals")

    def __init__(self, follows: Consequences, keys: tuple[Key, ...], command: Reserve, seals: Seals) -> None:
        self._follows, self.keys, self.reads, self.payloads, self.then = follows, keys, (), _NO_PAYLOADS, None
        self._command = command
        self._seals = seals

    def __call__(self, records: Records) -> Change:
        """See ``ObligationCommand``."""
        command, follows = self._command, self._follows
        holder = records.get(self.keys[0])
        if holder is None and command.key:
            holder = records.get(self.keys[1])
        decision = decide(holder, command, records.now, follows.rules.flows)
        made = follows.of(self, records, decision, self._seals)
        return made if self.then is None else self.then(records, made)


class Settling(ObligationCommand):
    """Commits or rolls back the obligation under the first key."""

    __slots__ = ("_apply", "command")

    def __init__(
        self,
        follows: Consequences,
        keys: tuple[Key, ...],
        command: Commit | Rollback,
        apply: tuple[Statement, ...] = (),
    ) -> None:
        self._follows, self.keys, self.payloads, self.then = follows, keys, _NO_PAYLOADS, None
        self.reads = keys[0].values
        self.command = command
        self._apply = apply

    def __call__(self, records: Records) -> Change:
        """See ``ObligationCommand``."""
        decision = decide(records.get(self.keys[0]), self.command, records.now)
        made = self._follows.of(self, records, decision, NO_SEALS)
        if self._apply and decision.code is None:  # A refusal applies nothing, even where it changed the record.
            made = msgspec.structs.replace(made, statements=self._apply)
        return made if self.then is None else self.then(records, made)


class Leaking(ObligationCommand):
    """Rolls back those of ``visited`` that are at or over their timeout. Its answer is a list of decisions.

    An obligation whose release is owed and whose payload cannot be opened stays as it is, named in ``left``: rolled
    back, it would keep nothing to release by. The others are rolled back all the same.
    """

    __slots__ = ("_command", "_visited", "left")

    def __init__(self, follows: Consequences, visited: tuple[Key, ...], more: tuple[Key, ...], command: Scan) -> None:
        self._follows, self.keys, self.payloads, self.then = follows, (*visited, *more), _NO_PAYLOADS, None
        self.reads = tuple(key.values[0] for key in visited)
        self._visited = visited
        self._command = command
        self.left: tuple[str, ...] = ()

    def __call__(self, records: Records) -> Change:
        """See ``ObligationCommand``."""
        decisions = [decide(records.get(key), self._command, records.now) for key in self._visited]
        changed = [(one, one.obligation) for one in decisions if one.changed and one.obligation is not None]
        self.left = tuple(leaked.obligation_id for _one, leaked in changed if self._follows.lacks(self, leaked))
        return self._follows.of_all(self, records, [one for one, it in changed if it.obligation_id not in self.left])


class SettlingAll(ObligationCommand):
    """Commits or rolls back all of these, together with what else the same change holds.

    If one of them refuses the commit, that is raised, and nothing of the change happens. The answer is a list of
    decisions, kept in ``decisions`` too for the caller, which tells the listener once they are durable.
    """

    __slots__ = ("_command", "_ids", "decisions")

    def __init__(self, follows: Consequences, held: Held, command: Commit | Rollback) -> None:
        self._follows, self.payloads, self.then = follows, _NO_PAYLOADS, None
        self.reads = tuple(obligation_id for obligation_id, _flow in held)
        self._ids = tuple(by_id(obligation_id) for obligation_id in self.reads)
        self.keys = (*self._ids, *dict.fromkeys(by_flow(flow) for _id, flow in held))
        self._command = command
        self.decisions: Sequence[Decision] = ()

    def __call__(self, records: Records) -> Change:
        """See ``ObligationCommand``."""
        decisions = [decide(records.get(key), self._command, records.now) for key in self._ids]
        if type(self._command) is Commit:
            for key, decision in zip(self._ids, decisions, strict=True):
                admitted(decision, f"obligation {key.values[0]}")
        self.decisions = [one for one in decisions if one.changed]
        return self._follows.of_all(self, records, self.decisions)


class Consequences:
    """What follows from decisions, by a service's rules. Without an outbox nothing is owed."""

    def __init__(self, rules: Rules, outbox: Outbox | None) -> None:
        self.rules = rules
        self.outbox = outbox
        self.budget_keys = tuple(by_flow(flow) for flow in rules.budgets)
        # Where nothing is owed and nothing is counted, a change is the record and its line, and nothing else.
        self._is_plain = outbox is None and not rules.budgets

    def of(self, wanted: ObligationCommand, records: Records, decision: Decision, seals: Seals) -> Change:
        """Everything that one decision makes durable."""
        if not decision.changed:
            return Change(answer=decision)
        obligation = decision.obligation
        assert obligation is not None
        if self._is_plain and decision.leaked is None and not obligation.counted:
            kept = _DESTROYED if obligation.state is _ROLLED_BACK else seals
            return Change(answer=decision, puts=(Put(record=obligation, journal=decision.steps, seals=kept),))
        return msgspec.structs.replace(self.of_all(wanted, records, [decision], seals), answer=decision)

    def of_all(
        self, wanted: ObligationCommand, records: Records, decisions: Sequence[Decision], seals: Seals = NO_SEALS
    ) -> Change:
        """Everything that these decisions make durable: records and lines, then what is owed, then the budgets."""
        changed = [(record, decision.steps) for decision in decisions for record in decision.records]
        puts = [_put(record, steps, seals) for record, steps in changed]
        puts += [put for record, _steps in changed for put in self._owed(wanted, record, records.now)]
        counts, gone = self._counts(wanted, records, [record for record, _steps in changed])
        return Change(answer=decisions, puts=(*puts, *counts), drops=gone)

    def lacks(self, wanted: ObligationCommand, settled: Obligation) -> bool:
        """Whether something is owed whose payload was not read."""
        return self._owes(settled) and settled.obligation_id not in wanted.payloads

    def _owes(self, settled: Obligation) -> bool:
        acts: Mapping[str, Any] = {_COMMITTED: self.rules.effects, _ROLLED_BACK: self.rules.releases}.get(
            settled.state, {}
        )
        return self.outbox is not None and settled.flow in acts

    def _owed(self, wanted: ObligationCommand, settled: Obligation, now: Instant) -> Iterable[Put]:
        if self.outbox is None or not self._owes(settled):
            return ()
        if self.lacks(wanted, settled):
            raise NeedsPayload(settled.obligation_id)
        return (self.outbox.put_for(letter_for(settled, wanted.payloads[settled.obligation_id]), now),)

    def _counts(
        self, wanted: ObligationCommand, records: Records, changed: Sequence[Obligation]
    ) -> tuple[list[Put], tuple[Key, ...]]:
        """One more for what was reserved under a budget, one less for what was and is settled now."""
        puts: list[Put] = []
        drops: list[Key] = []
        for flow, more in _differences(changed).items():
            key = by_flow(flow)
            if key not in wanted.keys:
                raise NeedsKey(key)
            spent = records.get(key)
            after = spent_after(spent, flow, more, self.rules.budgets.get(flow))
            if after is not None:
                puts.append(Put(record=after))
            elif spent is not None:
                drops.append(key)
        return puts, tuple(drops)


def _put(record: Obligation, steps: tuple[JournalEvent, ...], seals: Seals) -> Put:
    """The record with its own line. What was rolled back keeps nothing of its payload (A-62)."""
    about = tuple(step for step in steps if step.subject == record.obligation_id)
    kept = seals if record.state is _RESERVED else _DESTROYED if record.state is _ROLLED_BACK else NO_SEALS
    return Put(record=record, journal=about, seals=kept)


def _differences(changed: Sequence[Obligation]) -> dict[str, int]:
    """By how much each flow's count changes."""
    found: Counter[str] = Counter()
    for after in changed:
        if after.counted:
            found[after.flow] += 1 if after.state is _RESERVED else -1
    return {flow: more for flow, more in found.items() if more}
