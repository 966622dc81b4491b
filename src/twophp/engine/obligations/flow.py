"""The life of obligations against a store: reserve, commit, roll back, and what becomes due with time.

Every flow has the same shape: name the keys, decide inside the transaction, and write everything that follows from the
decision as one change (``engine.obligations.changes``). The rules are all in ``core.obligation``; nothing is decided
here.

``reserving`` and ``settling`` return the changes themselves. A caller that has more to make durable in the same
transaction (a fencing token, the intent that a handler executes) adds to a change before it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.budget import BudgetExhausted, by_flow
from twophp.core.errors import CommitUnknown, StorePoisoned, StoreUnavailable, VaultError, words_of
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
    scan_completed,
)
from twophp.core.records import Key, Sealed
from twophp.delivery.outbox import Outbox
from twophp.engine.obligations.changes import (
    NO_SEALS,
    Consequences,
    Held,
    Leaking,
    NeedsKey,
    NeedsPayload,
    ObligationCommand,
    Reserving,
    Settling,
    SettlingAll,
)
from twophp.engine.obligations.effects import decode_payload, encode_payload
from twophp.engine.obligations.rules import Rules, forget_settled
from twophp.kernel.commands import AdHocCommand, MakeChange, ReadRecords
from twophp.ports import MOST_ROWS, Admission, Change, MintId, ObligationStore, Statement, Vault
from twophp.ports import Obligations as Question
from twophp.storing.reopening import found, transacted

log: Final = logging.getLogger("twophp.obligations")

SCAN_PAGE: Final = 64
"""How many obligations one transaction of a scan looks at."""
MOST_LEFT: Final = 10_000
"""How many obligations that cannot be released a scan skips; behind more of them, others wait."""
TRIES: Final = 8
"""How often a change may be made again because it needed more, or because its outcome was unknown."""

MAY_BE_MADE_AGAIN: Final = (NeedsKey, NeedsPayload, BudgetExhausted, CommitUnknown, StorePoisoned)
"""Errors that are no answer: the change was not made, or its outcome is unknown, and making it again gets further."""

DecisionListener: TypeAlias = Callable[[Decision], None]
"""Called with every decision once it is durable; must be quick and must not raise."""


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """What a leak scan did. ``scanned``: how many were Reserved when it began (A-77)."""

    scanned: int
    leaked: tuple[Obligation, ...] = ()


class Obligations:
    """The obligations of one service. Every method returns the decision, refusals included, once it is durable."""

    def __init__(
        self,
        store: ObligationStore,
        vault: Vault | None,
        service: str,
        *,
        mint: MintId,
        rules: Rules,
        outbox: Outbox | None = None,
        told: DecisionListener | None = None,
    ) -> None:
        """An outbox is needed only where the rules name effects or releases.

        Without a vault payloads are kept in plain: only in memory, where a key would lie beside them.
        """
        self._store = store
        self._vault = vault
        self._service = service
        self._mint = mint
        self._rules = rules
        self._outbox = outbox
        self._told = told
        self._follows = Consequences(rules, outbox)
        self._budgets, self._timeout_ms = rules.budgets, rules.leak_timeout_ms

    # What callers ask for.

    async def scan(self, trace_id: str = "") -> Scanned:
        """The leak oracle: roll back what is at or over its timeout, and return it (OBL-LEAK-3 to -7)."""
        scanned = await self._store.reserved()
        leaked: list[Obligation] = []
        left: dict[str, None] = {}
        while page := await self._leak_page(trace_id, left, "background"):
            leaked += page
        if left:
            message = "overdue obligations cannot be released without the keys to their payloads: %d, the first is %s"
            log.error(message, len(left), next(iter(left)))
        done = scan_completed(scanned=scanned, leaked=len(leaked), now=self._store.now(), trace_id=trace_id)
        await self._store.transact(MakeChange(Change(answer=None, journal=(done,)), "background"))
        return Scanned(scanned=scanned, leaked=tuple(leaked))

    def forget(self) -> Coroutine[Any, Any, int]:
        """Delete what was settled longer ago than the rules keep it, and return how many. Their history stays."""
        return forget_settled(self._store, self._rules.retention_ms)

    async def look(self, obligation_id: str) -> Obligation | None:
        """The obligation as it is, without changing anything."""
        obligation: Obligation | None
        (obligation,) = await found(self._store, (by_id(obligation_id),))
        return obligation

    async def is_there(self, obligation_id: str) -> bool:
        """Whether it was reserved by a call before this one. Takes its turn behind changes that still wait."""
        (obligation,) = await transacted(self._store, ReadRecords((by_id(obligation_id),)))
        return obligation is not None

    async def payload(self, obligation_id: str) -> Any:
        """What was reserved. None once it was rolled back, or if there was no payload."""
        return decode_payload(await self._stored_payload(obligation_id))

    # The changes.

    def reserving(
        self,
        flow: str,
        payload: Any,
        trace_id: str,
        key: str | None = None,
        timeout_ms: int | None = None,
        intent: str = "",
    ) -> ObligationCommand:
        """The change that reserves, under a fresh id. Nothing of it is visible outside (OBL-RSV-4)."""
        return self.reserving_with(*self.command(flow, payload, trace_id, key, timeout_ms, intent))

    def reserving_with(self, command: Reserve, sealed: Sealed | None) -> ObligationCommand:
        """The same, from the result of ``command``."""
        keys: tuple[Key, ...] = (by_id(command.obligation_id),)
        if command.key:
            keys = (*keys, by_flow_and_key(command.flow, command.key))
        if command.counted:
            keys = (*keys, by_flow(command.flow))
        return Reserving(self._follows, keys, command, NO_SEALS if sealed is None else {"payload": sealed})

    def command(
        self, flow: str, payload: Any, trace_id: str, key: str | None, timeout_ms: int | None, intent: str = ""
    ) -> tuple[Reserve, Any]:
        """What a reserve asks for, under a fresh id, and its payload as it is kept."""
        name = canonical_key(payload, key)
        obligation_id = self._mint()
        if timeout_ms is None:
            timeout_ms = self._timeout_ms
        command = Reserve(obligation_id, flow, trace_id, name, intent, timeout_ms, flow in self._budgets)
        if payload is None:
            return command, None
        if self._vault is None:
            return command, encode_payload(payload)
        return command, self._vault.seal(encode_payload(payload), context=self._context(obligation_id))

    def settling(
        self, obligation_id: str, command: Commit | Rollback, apply: tuple[Statement, ...] = ()
    ) -> ObligationCommand:
        """The change that commits or rolls back. With a commit ``apply`` runs in the same transaction (A-72)."""
        return Settling(self._follows, (by_id(obligation_id), *self._follows.budget_keys), command, apply)

    # What an intent holds.

    async def held_by(self, intent: str) -> Held:
        """What the handler of this intent has Reserved, for the owner that recovers the intent after a crash (A-34)."""
        found = await self._store.obligations(Question(state=State.RESERVED.value, intent=intent, limit=MOST_ROWS))
        return tuple((one.obligation_id, one.flow) for one in found)

    async def has_leaked(self, intent: str) -> bool:
        """Whether a scan rolled one back before the recovery. No index helps: this is asked once after a crash."""
        found = await self._store.obligations(Question(state=State.ROLLED_BACK.value, intent=intent, limit=MOST_ROWS))
        return any(one.resolution == "leak_scan" for one in found)

    async def together(self, held: Held, trace_id: str, *, succeeded: bool) -> SettlingAll:
        """The change that settles all of these, to be made within that of their intent."""
        command = Commit(trace_id=trace_id) if succeeded else Rollback(trace_id=trace_id)
        wanted = SettlingAll(self._follows, held, command)
        if self._outbox is not None:
            await self._read_payloads(wanted)
        return wanted

    async def release(self, held: Held, trace_id: str) -> None:
        """Roll all of these back, in a change without their intent."""
        wanted = await self.together(held, trace_id, succeeded=False)
        await self._made(wanted)
        self.tell(wanted.decisions)

    def tell(self, decisions: Sequence[Decision]) -> None:
        """Wake the outbox and call the listener: these decisions are durable."""
        if self._outbox is not None:
            self._outbox.wake()
        if self._told is not None:
            for decision in decisions:
                self._told(decision)

    async def make(self, wanted: ObligationCommand) -> Decision:
        """Make a change with all that it needs, and tell the listener the decision."""
        decision: Decision = await self._made(wanted)
        self.tell((decision,))
        return decision

    @property
    def is_plain(self) -> bool:
        """Whether a command changes only a record and its line, with nothing to read or count, to wake or to tell."""
        return self._outbox is None and self._told is None and not self._rules.budgets

    async def _made(self, wanted: ObligationCommand, admission: Admission = "accepted") -> Any:
        if self._outbox is not None:  # A payload that cannot be opened matters only if it is needed (``_remedy``).
            await self._read_payloads(wanted, errors=VaultError)
        try:
            return await self._store.transact(AdHocCommand(wanted.keys, wanted, admission))
        except MAY_BE_MADE_AGAIN as error:
            return await self._made_again(wanted, error, admission)

    async def _made_again(self, wanted: ObligationCommand, error: Exception, admission: Admission) -> Any:
        unknown = False
        for _try in range(TRIES):
            unknown = unknown or isinstance(error, CommitUnknown)
            try:
                await self._remedy(wanted, error)
                found = await self._store.transact(AdHocCommand(wanted.keys, wanted, admission))
            except MAY_BE_MADE_AGAIN as another:
                if another is error:  # There is no remedy.
                    raise
                error = another
            except StoreUnavailable as still:
                if unknown:  # What may have been written is not said to be nothing.
                    raise CommitUnknown(words_of(error)) from still
                raise
            else:
                return _as_made_by(wanted, found) if unknown else found
        raise CommitUnknown(words_of(error)) if unknown else error

    async def _remedy(self, wanted: ObligationCommand, error: Exception) -> None:
        """What the next try needs, or the error itself."""
        match error:
            case NeedsKey():
                wanted.keys = (*wanted.keys, error.key)
            case NeedsPayload():
                wanted.reads = (*wanted.reads, error.obligation_id)
                await self._read_payloads(wanted)
            case BudgetExhausted():
                if not await self._leak_page("", {}):  # An overdue obligation must not use up a budget.
                    raise error
            case _:  # It is unknown whether it was written. Deciding again, in the reopened store, finds out.
                await self._store.reopen()

    async def _read_payloads(self, wanted: ObligationCommand, *, errors: type[Exception] | tuple[()] = ()) -> None:
        """Read the payloads that may have to be released or delivered. A payload never changes, so there is no race.

        Those that fail with one of ``errors`` are left out.
        """
        found: dict[str, bytes] = {}
        for id_ in wanted.reads:
            try:
                found[id_] = await self._stored_payload(id_) or b""
            except errors:
                continue
        wanted.payloads = found

    async def _leak_page(
        self, trace_id: str, left: dict[str, None], admission: Admission = "accepted"
    ) -> list[Obligation]:
        """Roll back some that are overdue; none if only those of ``left`` remain, which are skipped."""
        while keys := await self._overdue(left):
            wanted = Leaking(self._follows, keys, self._follows.budget_keys, Scan(trace_id=trace_id))
            decisions: Sequence[Decision] = await self._made(wanted, admission)
            left.update(dict.fromkeys(wanted.left))
            self.tell(decisions)
            if decisions or not wanted.left:
                return [one.obligation for one in decisions if one.obligation is not None]
        return []

    async def _overdue(self, left: Mapping[str, None]) -> tuple[Key, ...]:
        if len(left) >= MOST_LEFT:
            return ()
        keys = await self._store.due(OBLIGATION, self._store.now() + 1, SCAN_PAGE + len(left))
        return tuple(key for key in keys if key.values[0] not in left)[:SCAN_PAGE]

    # Payloads.

    async def _stored_payload(self, obligation_id: str) -> bytes | None:
        sealed = await self._store.unseal(by_id(obligation_id), "payload")
        if sealed is None or self._vault is None:
            return sealed
        return self._vault.open(sealed, context=self._context(obligation_id))

    def _context(self, obligation_id: str) -> bytes:
        return seal_context(self._service, obligation_id, "payload")


def _as_made_by(wanted: ObligationCommand, found: Any) -> Any:
    """A refusal to commit again what this very commit may have committed is no refusal: it is Committed."""
    if not isinstance(wanted, Settling) or type(wanted.command) is not Commit or found.code != ALREADY_COMMITTED:
        return found
    return Decision(Goto((State.COMMITTED,)), found.obligation, changed=True)
