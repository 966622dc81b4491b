"""The life of obligations against a store: reserve, commit, roll back, and what time asks for.

Every flow has the same shape: name the keys, decide inside the transaction, and write everything that follows from the
decision as one change: the record, its audit line, its sealed payload, what it owes to others, its place in a budget.
The rules are all in ``core.obligation``; nothing is decided here.

``reserving`` and ``settling`` are the changes themselves. Whoever has more to make durable in the same transaction (a
fencing token, the intent that a handler executes) wraps them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.budget import BudgetExhausted, by_flow, spent_after
from twophp.core.errors import CommitUnknown, StorePoisoned
from twophp.core.identity import seal_context
from twophp.core.machine import Goto
from twophp.core.obligation import (
    ALREADY_COMMITTED,
    OBLIGATION,
    Commit,
    Decision,
    Obligation,
    Reserve,
    Rollback,
    Scan,
    State,
    by_flow_and_key,
    by_id,
    canonical_key,
    decide,
    scan_completed,
)
from twophp.core.records import Instant, JournalEvent, Key, Sealed
from twophp.engine.effects import decode_payload, encode_payload, letter_for
from twophp.engine.obligation_rules import Rules
from twophp.engine.outbox import Outbox
from twophp.ports import Change, Decide, MintId, Part, Put, Records, Statement, Store, Vault

log: Final = logging.getLogger("twophp.obligations")

SCAN_PAGE: Final = 256
"""How many obligations one transaction of a scan looks at."""
NEEDS: Final = 8
"""How often a change may find out, inside its transaction, that it needs to know more."""

_COMMITTED, _ROLLED_BACK, _RESERVED = State.COMMITTED, State.ROLLED_BACK, State.RESERVED
_NO_SEALS: Final[Mapping[Part, Sealed | None]] = {}
_DESTROYED: Final[Mapping[Part, Sealed | None]] = {"payload": None}

Told: TypeAlias = Callable[[Decision], None]
"""Hears of every decision once it is durable; must be quick and must not raise."""


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """What a leak scan did. ``scanned``: Reserved when it began (A-77)."""

    scanned: int
    leaked: tuple[Obligation, ...] = ()


class _NeedsKey(Exception):
    """The transaction must also name this key; nothing was written."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class _NeedsPayload(Exception):
    """What is released must be read first; nothing was written."""

    def __init__(self, obligation_id: str) -> None:
        super().__init__(obligation_id)
        self.obligation_id = obligation_id


_MAY_BE_TRIED_AGAIN: Final = (_NeedsKey, _NeedsPayload, BudgetExhausted, CommitUnknown, StorePoisoned)


class Wanted:
    """A change that is to be made: its keys, its decision, and what it has found out on the way."""

    __slots__ = ("commits", "decide", "keys", "payloads", "reads")

    def __init__(
        self, keys: tuple[Key, ...], decide_: Decide, reads: tuple[str, ...] = (), *, commits: bool = False
    ) -> None:
        self.commits = commits
        self.keys = keys
        self.decide = decide_
        self.reads = reads  # The obligations whose payload it may have to hand on.
        self.payloads: dict[str, bytes] = {}


class Obligations:
    """The obligations of one service. Every method returns the decision, refusals included, once it is durable."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        service: str,
        *,
        mint: MintId,
        rules: Rules,
        outbox: Outbox | None = None,
        told: Told | None = None,
    ) -> None:
        """An outbox is needed only where the rules name effects or releases; without it nothing is owed."""
        self._store = store
        self._vault = vault
        self._service = service
        self._mint = mint
        self.rules = rules
        self._outbox = outbox
        self._told = told
        self._budget_keys = tuple(by_flow(flow) for flow in rules.budgets)
        # Where nothing is owed and nothing is counted, a change is the record and its line, and nothing else.
        self._is_plain = outbox is None and not rules.budgets

    # What callers ask for.

    def reserve(
        self,
        flow: str,
        payload: Any,
        trace_id: str,
        *,
        key: str | None = None,
        timeout_ms: int | None = None,
        intent: str = "",
    ) -> Coroutine[Any, Any, Decision]:
        """Record a tentative effect. Nothing of it is visible outside (OBL-RSV-4)."""
        return self.make(self.reserving(flow, payload, trace_id, key=key, timeout_ms=timeout_ms, intent=intent))

    def commit(
        self, obligation_id: str, trace_id: str, *, apply: Sequence[Statement] = ()
    ) -> Coroutine[Any, Any, Decision]:
        """Make the effect permanent, with everything it owes; ``apply`` runs in the same transaction (A-72)."""
        return self.make(self.settling(obligation_id, Commit(trace_id=trace_id), apply))

    def rollback(self, obligation_id: str, command: Rollback) -> Coroutine[Any, Any, Decision]:
        """Release everything tentative."""
        return self.make(self.settling(obligation_id, command))

    async def scan(self, trace_id: str = "") -> Scanned:
        """The leak oracle: roll back whatever is at or over its timeout, and say so (OBL-LEAK-3 to -7)."""
        scanned = await self._store.reserved()
        leaked: list[Obligation] = []
        while found := await self._leak_page(trace_id):
            leaked += found
        done = scan_completed(scanned=scanned, leaked=len(leaked), now=self._store.now(), trace_id=trace_id)
        await self._store.transact((), lambda _records: Change(answer=None, journal=(done,)))
        return Scanned(scanned=scanned, leaked=tuple(leaked))

    async def look(self, obligation_id: str) -> Obligation | None:
        """The obligation as it is, without changing anything."""
        key = by_id(obligation_id)
        found: Obligation | None = await self._store.transact((key,), lambda records: Change(answer=records.get(key)))
        return found

    async def payload(self, obligation_id: str) -> Any:
        """What was reserved. None once it was rolled back, or if there was nothing."""
        return decode_payload(await self._stored_payload(obligation_id))

    # The changes.

    def reserving(
        self,
        flow: str,
        payload: Any,
        trace_id: str,
        *,
        key: str | None = None,
        timeout_ms: int | None = None,
        intent: str = "",
    ) -> Wanted:
        """The change that reserves, under a fresh id."""
        name = canonical_key(payload, key)
        obligation_id = self._mint()
        budgeted = flow in self.rules.budgets
        command = Reserve(
            obligation_id=obligation_id,
            flow=flow,
            trace_id=trace_id,
            key=name,
            intent=intent,
            timeout_ms=self.rules.leak_timeout_ms if timeout_ms is None else timeout_ms,
            counted=budgeted,
        )
        seals = self._seals(obligation_id, encode_payload(payload))
        identity = by_id(obligation_id)
        held = by_flow_and_key(flow, name) if name else None
        keys = (identity,) if held is None else (identity, held)
        flows = self.rules.flows

        def change(records: Records) -> Change:
            holder = records.get(identity)
            if holder is None and held is not None:
                holder = records.get(held)
            return self._change(wanted, records, decide(holder, command, records.now, flows), seals)

        wanted = Wanted((*keys, by_flow(flow)) if budgeted else keys, change)
        return wanted

    def settling(self, obligation_id: str, command: Commit | Rollback, apply: Sequence[Statement] = ()) -> Wanted:
        """The change that commits or rolls back."""
        key = by_id(obligation_id)

        def change(records: Records) -> Change:
            decision = decide(records.get(key), command, records.now)
            made = self._change(wanted, records, decision, _NO_SEALS)
            if apply and decision.code is None:  # A refusal applies nothing, whatever else it changed.
                return msgspec.structs.replace(made, statements=tuple(apply))
            return made

        wanted = Wanted((key, *self._budget_keys), change, (obligation_id,), commits=type(command) is Commit)
        return wanted

    async def make(self, wanted: Wanted) -> Decision:
        """Make a change, whatever it finds out that it needs, and tell what became of it."""
        if wanted.reads and self._outbox is not None:
            await self._read_payloads(wanted)
        decision: Decision
        try:
            decision = await self._store.transact(wanted.keys, wanted.decide)
        except _MAY_BE_TRIED_AGAIN as error:
            decision = await self._made_again(wanted, error)
        if self._outbox is not None and decision.changed:
            self._outbox.wake()
        if self._told is not None:
            self._told(decision)
        return decision

    async def _made_again(self, wanted: Wanted, error: Exception) -> Any:
        unknown = False
        for _try in range(NEEDS):
            unknown = unknown or isinstance(error, CommitUnknown | StorePoisoned)
            await self._remedy(wanted, error)
            try:
                found = await self._store.transact(wanted.keys, wanted.decide)
            except _MAY_BE_TRIED_AGAIN as another:
                error = another
            else:
                return _as_made(found) if unknown and wanted.commits else found
        raise error

    async def _remedy(self, wanted: Wanted, error: Exception) -> None:
        """What the next try needs, or the error itself."""
        match error:
            case _NeedsKey():
                wanted.keys = (*wanted.keys, error.key)
            case _NeedsPayload():
                wanted.reads = (error.obligation_id,)
                await self._read_payloads(wanted)
            case BudgetExhausted():
                if not await self._leak_page(""):  # Whoever is overdue keeps nobody from a budget.
                    raise error
            case _:  # Nobody could tell whether it was written. With the store open again, deciding tells.
                await self._store.reopen()

    async def _read_payloads(self, wanted: Wanted) -> None:
        """Have at hand what may have to be released or delivered. A payload never changes, so there is no race."""
        for obligation_id in wanted.reads:
            wanted.payloads[obligation_id] = await self._stored_payload(obligation_id) or b""

    async def _leak_page(self, trace_id: str) -> list[Obligation]:
        keys = tuple(await self._store.due(OBLIGATION, self._store.now() + 1, SCAN_PAGE))
        if not keys:
            return []
        command = Scan(trace_id=trace_id)

        def change(records: Records) -> Change:
            decisions = [decide(records.get(key), command, records.now) for key in keys]
            return self._changes(wanted, records, [one for one in decisions if one.changed])

        wanted = Wanted((*keys, *self._budget_keys), change, tuple(key.values[0] for key in keys))
        if self._outbox is not None:
            await self._read_payloads(wanted)
        decisions: list[Decision]
        try:
            decisions = await self._store.transact(wanted.keys, wanted.decide)
        except _MAY_BE_TRIED_AGAIN as error:
            decisions = await self._made_again(wanted, error)
        if self._told is not None:
            for decision in decisions:
                self._told(decision)
        return [one.obligation for one in decisions if one.obligation is not None]

    # What follows from a decision.

    def _change(
        self, wanted: Wanted, records: Records, decision: Decision, seals: Mapping[Part, Sealed | None]
    ) -> Change:
        if not decision.changed:
            return Change(answer=decision)
        obligation = decision.obligation
        assert obligation is not None
        if self._is_plain and decision.leaked is None and not obligation.counted:
            if obligation.state is _ROLLED_BACK:
                seals = _DESTROYED
            return Change(answer=decision, puts=(Put(record=obligation, journal=decision.steps, seals=seals),))
        made = self._changes(wanted, records, [decision], seals)
        return msgspec.structs.replace(made, answer=decision)

    def _changes(
        self,
        wanted: Wanted,
        records: Records,
        decisions: Sequence[Decision],
        seals: Mapping[Part, Sealed | None] = _NO_SEALS,
    ) -> Change:
        """Everything that these decisions make durable: records and lines, then what is owed, then the budgets."""
        changed = [(record, decision.steps) for decision in decisions for record in decision.records]
        puts = [_put(record, steps, seals) for record, steps in changed]
        puts += [put for record, _steps in changed for put in self._owed(wanted, record, records.now)]
        counts, gone = self._counts(wanted, records, [record for record, _steps in changed])
        return Change(answer=decisions, puts=(*puts, *counts), drops=gone)

    def _owed(self, wanted: Wanted, settled: Obligation, now: Instant) -> Iterable[Put]:
        acts = {_COMMITTED: self.rules.effects, _ROLLED_BACK: self.rules.releases}.get(settled.state, {})
        if self._outbox is None or settled.flow not in acts:
            return ()
        payload = wanted.payloads.get(settled.obligation_id)
        if payload is None:
            raise _NeedsPayload(settled.obligation_id)
        return (self._outbox.put_for(letter_for(settled, payload), now),)

    def _counts(
        self, wanted: Wanted, records: Records, changed: Sequence[Obligation]
    ) -> tuple[list[Put], tuple[Key, ...]]:
        """One more for what was reserved under a budget, one less for what was and is settled now."""
        puts: list[Put] = []
        drops: list[Key] = []
        for flow, more in _differences(changed).items():
            key = by_flow(flow)
            if key not in wanted.keys:
                raise _NeedsKey(key)
            spent = records.get(key)
            after = spent_after(spent, flow, more, self.rules.budgets.get(flow))
            if after is not None:
                puts.append(Put(record=after))
            elif spent is not None:
                drops.append(key)
        return puts, tuple(drops)

    def _seals(self, obligation_id: str, payload: bytes) -> Mapping[Part, Sealed | None]:
        if not payload:
            return _NO_SEALS
        return {"payload": self._vault.seal(payload, context=self._context(obligation_id))}

    async def _stored_payload(self, obligation_id: str) -> bytes | None:
        sealed = await self._store.unseal(by_id(obligation_id), "payload")
        return None if sealed is None else self._vault.open(sealed, context=self._context(obligation_id))

    def _context(self, obligation_id: str) -> bytes:
        return seal_context(self._service, obligation_id, "payload")


def _as_made(found: Decision) -> Decision:
    """A refusal to commit again what this very commit may have committed is no refusal: it is Committed."""
    if found.code == ALREADY_COMMITTED:
        return Decision(Goto((_COMMITTED,)), found.obligation, changed=True)
    return found


def _put(record: Obligation, steps: tuple[JournalEvent, ...], seals: Mapping[Part, Sealed | None]) -> Put:
    """The record with its own line. What was rolled back keeps nothing of its payload (A-62)."""
    about = tuple(step for step in steps if step.subject == record.obligation_id)
    kept = seals if record.state is _RESERVED else _DESTROYED if record.state is _ROLLED_BACK else _NO_SEALS
    return Put(record=record, journal=about, seals=kept)


def _differences(changed: Sequence[Obligation]) -> dict[str, int]:
    """By how much each flow's count changes."""
    found: Counter[str] = Counter()
    for after in changed:
        if after.counted:
            found[after.flow] += 1 if after.state is _RESERVED else -1
    return {flow: more for flow, more in found.items() if more}
