"""The life of an intent against a store: register, confirm, settle, and what time asks for.

Every flow has the same shape: name the keys, decide inside the transaction, write the record, its ledger row, its
history and its sealed parts as one change. The rules are all in ``core.phase``; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from twophp.core.entry import Writer, server_entry
from twophp.core.errors import (
    CommitUnknown,
    Refused,
    StoreError,
    StorePoisoned,
    StoreUnavailable,
    Tampered,
    TwoPHPError,
)
from twophp.core.identity import Bound, intent_seal_context, seal_context
from twophp.core.intent import INTENT, SETTLED, Intent, Phase, by_logical_key, by_pair, by_server_id
from twophp.core.machine import Goto, Refuse, Replay
from twophp.core.phase import Attend, Command, Confirm, Decision, Register, Renew, Settle, decide
from twophp.core.policy import Policy
from twophp.core.quota import Quota
from twophp.core.records import Key, Sealed
from twophp.engine.observe import SILENT, Observer
from twophp.engine.quotas import Meter, NotNamed, names
from twophp.engine.reopening import found, transacted
from twophp.kernel.commands import Asked
from twophp.ports import Admission, Change, Part, Put, Records, Statement, Store, Vault

log: Final = logging.getLogger("twophp.engine")

PolicyOf: TypeAlias = Callable[[Intent], Policy]
Follow: TypeAlias = Callable[[Decision], tuple[Put, ...]]
"""What else becomes durable with a decision, such as a job of the outbox. Pure, as the decision is."""


class Also(Protocol):
    """What else is decided in the change that settles an intent; raising keeps all of it from happening."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """What it looks at."""
        ...

    def __call__(self, records: Records) -> Change:
        """What it makes durable. Its answer is nobody's."""
        ...


Deciding: TypeAlias = Coroutine[Any, Any, Decision]
Seals: TypeAlias = Mapping[Part, Sealed | None]

_NO_SEALS: Final[Seals] = {}
_DESTROY_PAYLOAD: Final[Seals] = {"payload": None}
FIRST_FENCE: Final = 1  # Nobody held the intent before.
_ANY_POLICY: Final = Policy.standard()  # For what is not there, every policy says the same.


class _Wish(msgspec.Struct, frozen=True, gc=False):
    """One command, as the store is asked to decide it.

    A value and no closure: as many wait as there are callers, and the collector would look at the cells of each.
    """

    intents: Intents
    key: Key
    command: Command
    policy: Policy | PolicyOf
    seals: Seals = _NO_SEALS
    follow: Follow | None = None
    statements: tuple[Statement, ...] = ()
    also: Also | None = None
    refusal: TwoPHPError | None = None  # Raised if there is no intent yet: what is known is told its outcome (T2).
    admission: Admission = "accepted"

    def __call__(self, records: Records) -> Change:
        """Look, decide, and say what becomes durable with it."""
        before: Intent | None = records.get(self.key)
        if before is None and self.refusal is not None:
            raise self.refusal
        policy = self.policy
        rules = policy if isinstance(policy, Policy) else _ANY_POLICY if before is None else policy(before)
        decision = decide(before, self.command, records.now, rules)
        after = decision.intent
        if not decision.changed or after is None:
            return Change(answer=decision)
        change = self.intents.change(before, after, decision, self)
        if self.also is not None and after.phase in SETTLED:
            change = _joined(change, self.also(records))
        return change if after.counted_bytes is None else self.intents.meter.metered(change, before, after, records)


class Intents:
    """The intents of one service."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        writer: Writer,
        *,
        follow: Follow | None = None,
        observer: Observer = SILENT,
        quota: Quota | None = None,
        resolves: bool = True,
    ) -> None:
        """With ``resolves``, a commit of unknown outcome is found out here; without, the caller hears of it."""
        self._store = store
        self._vault = vault
        self._writer = writer
        self._follow = follow
        self._observer = observer
        self.meter = Meter(quota)
        self._resolves = resolves

    # The four changes of a handshake hand on the coroutine of ``_decide``: a frame less each, on the hottest path.

    def register(
        self,
        command: Register,
        payload: bytes,
        policy: Policy,
        *,
        follow: Follow | None = None,
        refusal: TwoPHPError | None = None,
        again: bool = False,
    ) -> Deciding:
        """Phase 1: payload, record, ledger row and history become durable together, or none does (draft §9.5).

        With a ``refusal`` nothing new is registered, and a repeat is answered all the same. ``again``: this very
        command was made before, by somebody who was cut off before its decision.
        """
        key = by_logical_key(command.principal, command.client_correlation_id)
        sealed = self._vault.seal(payload, context=self._context(command, "payload"))
        command = self.meter.counted(command, payload)
        # Only new work is refused when too much waits; what was registered is carried to its end.
        admission: Admission = "accepted" if again else "new"
        wish = _Wish(self, key, command, policy, {"payload": sealed}, follow, refusal=refusal, admission=admission)
        return (self._decide_again if again else self._decide)(wish, names(key, command))

    def confirm(self, command: Confirm, policy: Policy | PolicyOf, *, again: bool = False) -> Deciding:
        """Phase 2: of all confirms one crosses the point of no return. ``again`` is as in ``register``."""
        key = by_pair(command.client_correlation_id, command.server_correlation_id)
        return (self._decide_again if again else self._decide)(_Wish(self, key, command, policy), (key,))

    def settle(
        self,
        intent: Intent,
        command: Settle,
        response: bytes,
        policy: Policy | PolicyOf,
        *,
        statements: tuple[Statement, ...] = (),
        also: Also | None = None,
    ) -> Deciding:
        """The outcome and the answer that every replay will get, guarded by the fence.

        ``statements`` go with it, and so does what ``also`` decides, such as the obligations that the handler reserved.
        """
        sealed = self._vault.seal(response, context=self._context(intent, "response"))
        key = key_of(intent)
        keys = names(key, intent) if also is None else (*names(key, intent), *also.keys)
        return self._decide(_Wish(self, key, command, policy, {"response": sealed}, None, statements, also), keys)

    def renew(self, intent: Intent, policy: Policy | PolicyOf) -> Deciding:
        """The heartbeat of whoever executes the intent."""
        key = key_of(intent)
        return self._decide(_Wish(self, key, Renew(fence=intent.fence), policy), (key,))

    async def try_out(self, intent: Intent, statements: tuple[Statement, ...]) -> None:
        """Run the statements as the settlement would, and undo them. Raises what would refuse them.

        Raises Refused if the intent is not, or no longer, executed under this fence.
        """
        key = key_of(intent)

        def decide(records: Records) -> Change:
            found: Intent | None = records.get(key)
            if found is None or found.phase is not Phase.PROCESSING or found.fence != intent.fence:
                message = "the intent is not, or no longer, executed here; no business row can be written with it"
                raise Refused(message, code="intent_not_running")
            return Change(answer=None, trial=statements)

        await transacted(self._store, Asked((key,), decide))

    async def look(self, client_correlation_id: str, server_correlation_id: str) -> Intent | None:
        """The intent as it is, without changing anything."""
        key = by_pair(client_correlation_id, server_correlation_id)
        intent: Intent | None
        (intent,) = await found(self._store, (key,))
        return intent

    async def look_by_server_id(self, server_correlation_id: str) -> Intent | None:
        """The asynchronous intent with this id, as it is."""
        key = by_server_id(server_correlation_id)
        intent: Intent | None
        (intent,) = await found(self._store, (key,))
        return intent

    async def payload(self, intent: Intent) -> bytes | None:
        """What was registered. Raises Tampered rather than return anything else."""
        return await self._open(intent, "payload")

    async def response(self, intent: Intent) -> bytes | None:
        """What was answered."""
        return await self._open(intent, "response")

    async def sweep(
        self,
        policy_of: PolicyOf,
        owner: str,
        *,
        before: int,
        limit: int = 256,
        left: set[Key] | None = None,
        running: Callable[[], Sequence[Intent]] = list,
    ) -> list[Decision]:
        """Do what time has made due for up to ``limit`` intents, together, and say what was done.

        What dead owners have left comes first and alone, whenever it is due: somebody waits for it, and it waits for
        nothing else. ``running`` is what is executed here: a process never takes over from itself. Those in ``left``
        are passed over. What the store refuses, and what has to stay as it is, is added to it: it keeps nobody else
        from their turn.
        """
        left = set() if left is None else left
        room = limit + len(left)
        wanted = [key for key in await self._orphans(room) if key not in left]
        if not wanted:
            wanted = [key for key in await self._store.due(INTENT, before, room) if key not in left]
        # Whoever has crossed the point of no return before these are read here has heard of it by then, and runs.
        intents = await self._read(wanted[:limit])
        here = {intent.server_correlation_id: intent.fence for intent in running()}
        keys = [key_of(intent) for intent in intents]
        each = [self._attend(intent, owner, here, policy_of) for intent in intents]
        ended = await asyncio.gather(*each, return_exceptions=True)
        failed = [(key, error) for key, error in zip(keys, ended, strict=True) if isinstance(error, BaseException)]
        if failed and len(failed) == len(ended) and isinstance(failed[0][1], StoreUnavailable | CommitUnknown):
            raise failed[0][1]
        if failed:  # What was recovered beside them must still be acted on.
            left.update(key for key, _error in failed)
            message = "%d intents could not be attended to, the first is %s: %s"
            log.warning(message, len(failed), " ".join(failed[0][0].values), failed[0][1])
        made = [(key, decision) for key, decision in zip(keys, ended, strict=True) if isinstance(decision, Decision)]
        left.update(key for key, decision in made if not decision.changed)
        return [decision for _key, decision in made]

    async def _read(self, keys: list[Key]) -> list[Intent]:
        read = await found(self._store, keys) if keys else ()
        return [intent for intent in read if intent is not None]

    async def _orphans(self, limit: int) -> list[Key]:
        """What dead owners have left."""
        owners, state = await self._store.owners_of(INTENT), self._store.owners.state
        dead = [owner for owner in owners if state(owner) == "dead"]
        return [key for owner in dead for key in await self._store.owned(INTENT, owner, limit)][:limit]

    def _attend(self, intent: Intent, owner: str, running: Mapping[str, int], policy_of: PolicyOf) -> Deciding:
        key, attend = key_of(intent), Attend(owner=owner)
        admission: Admission = "background"
        if intent.phase is Phase.PROCESSING and intent.owner is not None:
            admission = "accepted"  # Somebody waits for its outcome.
            if running.get(intent.server_correlation_id) == intent.fence:
                attend = Attend(owner=owner, live_owner=intent.owner)
            elif intent.owner != owner:
                state = self._store.owners.state(intent.owner)
                dead, alive = (intent.owner if state == known else None for known in ("dead", "alive"))
                attend = Attend(owner=owner, dead_owner=dead, live_owner=alive)
        return self._decide(_Wish(self, key, attend, policy_of, admission=admission), (key,))

    async def _decide(self, wish: _Wish, keys: tuple[Key, ...]) -> Decision:
        try:
            decision: Decision = await self._store.transact(Asked(keys, wish, wish.admission))
        except NotNamed as missing:  # An intent's principal never changes, so this is the last time.
            return await self._decide(wish, (*keys, missing.key))
        except (CommitUnknown, StorePoisoned) as error:
            if not self._resolves:
                raise
            decision = await self._resolved(wish, keys, error)
        self._observer.decided(decision)
        return decision

    async def _decide_again(self, wish: _Wish, keys: tuple[Key, ...]) -> Decision:
        return _as_made_by(wish.command, await self._decide(wish, keys))

    async def _resolved(self, wish: _Wish, keys: tuple[Key, ...], error: StoreError) -> Decision:
        """Nobody could tell whether it was written. With the store open again, deciding once more finds out (A-42)."""
        try:
            await self._store.reopen()
            try:
                decision = await self._store.transact(Asked(keys, wish))
            except NotNamed as missing:
                decision = await self._store.transact(Asked((*keys, missing.key), wish))
        except StoreUnavailable as still:
            if isinstance(error, CommitUnknown):  # What may have been written is not said to be nothing.
                raise error from still
            raise
        return _as_made_by(wish.command, decision)

    def change(self, before: Intent | None, intent: Intent, decision: Decision, wish: _Wish) -> Change:
        """Everything a decision makes durable. A refusal keeps no payload, though it may age the intent."""
        more, seals = () if self._follow is None else self._follow(decision), wish.seals
        if wish.follow is not None:
            more += wish.follow(decision)
        if intent.phase is Phase.ABSENT:
            return Change(answer=decision, puts=more, drops=(key_of(intent),), journal=decision.steps)
        if type(decision.verdict) is Refuse:
            seals = _NO_SEALS
        if before is not None and before.has_payload and not intent.has_payload:
            seals = _DESTROY_PAYLOAD
        entry = server_entry(intent, self._writer) if decision.steps else None
        if before is not None and before.server_correlation_id != intent.server_correlation_id:
            # T2 row 7: a new intent in place of the one it follows. The first line ends that one.
            key, (ending, *begun) = by_logical_key(before.principal, before.client_correlation_id), decision.steps
            put = Put(record=intent, entry=entry, journal=tuple(begun), seals=seals, replaces=key)
            return Change(answer=decision, puts=(put, *more), journal=(ending,))
        put = Put(record=intent, entry=entry, journal=decision.steps, seals=seals)
        return Change(answer=decision, puts=(put, *more), statements=wish.statements)

    def write_as(self, writer: Writer) -> None:
        """Rows are this writer's from now on: the central ledger has issued another GUID (A-59)."""
        self._writer = writer

    async def _open(self, intent: Intent, part: Part) -> bytes | None:
        sealed = await self._store.unseal(key_of(intent), part)
        if sealed is None:
            return None
        try:
            return self._vault.open(sealed, context=self._context(intent, part))
        except Tampered:
            # Sealed by a version that bound less. What is sealed today never opens under the shorter context.
            context = seal_context(self._writer.source, intent.server_correlation_id, part)
            return self._vault.open(sealed, context=context)

    def _context(self, intent: Bound, part: Part) -> bytes:
        return intent_seal_context(self._writer.source, intent, part)


def _joined(settling: Change, also: Change) -> Change:
    return replace(settling, puts=(*settling.puts, *also.puts), drops=(*settling.drops, *also.drops))


def _as_made_by(command: Command, decision: Decision) -> Decision:
    """A replay of what this very command had done is no replay: its maker has still to act on it.

    Unless it took so long that somebody has recovered the intent: then it is theirs.
    """
    intent = decision.intent
    if type(decision.verdict) is not Replay or intent is None or intent.phase in SETTLED or intent.fence > FIRST_FENCE:
        return decision
    match command:
        case Register(server_correlation_id=fresh):
            ours = intent.server_correlation_id == fresh
        case Confirm(provisional_resource_id=fresh):
            ours = intent.phase is Phase.PROCESSING and fresh is not None and intent.resource_id == fresh
        case _:
            return decision
    return Decision(Goto((intent.phase,)), intent, changed=True) if ours else decision


def key_of(intent: Intent) -> Key:
    """The key an intent is found by, whoever looks."""
    return by_pair(intent.client_correlation_id, intent.server_correlation_id)
