"""The life of an intent against a store: register, confirm, settle, and what becomes due with time.

Every flow has the same shape: name the keys, decide inside the transaction, write the record, its ledger row, its
history and its sealed parts as one change. The rules are all in ``core.phase``; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from twophp.core.entry import Writer
from twophp.core.errors import (
    CommitUnknown,
    StoreError,
    StorePoisoned,
    StoreUnavailable,
    Tampered,
    TwoPHPError,
)
from twophp.core.identity import intent_seal_context, seal_context
from twophp.core.intent import INTENT, SETTLED, Intent, Phase, by_logical_key, by_pair, by_server_id
from twophp.core.intent_commands import Command, Confirm, Register, Renew, Settle, Tick
from twophp.core.machine import Goto, Replay
from twophp.core.phase import IntentDecision
from twophp.core.policy import Policy
from twophp.core.quota import Quota, by_principal
from twophp.core.records import Key
from twophp.kernel.commands import ReadRecords
from twophp.kernel.intents import (
    DecideIntent,
    NotNamed,
    PolicyOf,
    Seals,
    SettleParticipant,
    SideEffects,
    TryStatements,
    key_of,
)
from twophp.observability.observe import SILENT, Observer
from twophp.ports import Admission, Heralds, OwnTransaction, Part, Statement, Store, Then, Vault
from twophp.storing.reopening import found, transacted

log: Final = logging.getLogger("twophp.engine")

Answered: TypeAlias = Coroutine[Any, Any, IntentDecision]

FIRST_FENCE: Final = 1  # The fence of the intent's first owner.


class Intents:
    """The intents of one service."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        writer: Writer,
        *,
        follow: SideEffects | None = None,
        observer: Observer = SILENT,
        quota: Quota | None = None,
        resolves: bool = True,
    ) -> None:
        """With ``resolves``, this object finds out a commit of unknown outcome; without, the caller gets the error."""
        self._store = store
        self._vault = vault
        self._writer = writer
        self._follow = () if follow is None else (follow,)
        self._observer = observer
        self._quota = quota
        self._resolves = resolves

    # The four changes of a handshake return the coroutine of ``_decide`` itself: one frame less on the hottest path.

    def register(
        self,
        command: Register,
        payload: bytes,
        policy: Policy,
        *,
        follow: SideEffects | None = None,
        refusal: TwoPHPError | None = None,
        again: bool = False,
    ) -> Answered:
        """Phase 1: payload, record, ledger row and history become durable together, or none does (draft §9.5).

        With a ``refusal`` nothing new is registered, but a repeat is still answered. ``again``: this very command was
        made before, and its maker was cut off before the decision.
        """
        keys: tuple[Key, ...] = (by_logical_key(command.principal, command.client_correlation_id),)
        sealed = self._vault.seal(payload, context=intent_seal_context(self._writer.source, command, "payload"))
        # Plain requests do not count: a service that records them must not refuse them for it.
        if self._quota is not None and not command.is_plain:
            command = replace(command, counted_bytes=len(payload))
            keys = (*keys, by_principal(command.principal))
        asked = DecideIntent(
            keys,
            command,
            policy,
            self._writer,
            {"payload": sealed},
            self._quota,
            self._follow if follow is None else (*self._follow, follow),
            refusal=refusal,
            # Only new work is refused when too much waits; what was registered is carried to its end.
            admission="accepted" if again else "new",
        )
        return self._decide_again(asked) if again else self._decide(asked)

    def confirm(self, command: Confirm, policy: Policy | PolicyOf, *, again: bool = False) -> Answered:
        """Phase 2: of all confirms one crosses the point of no return. ``again`` is as in ``register``."""
        key = by_pair(command.client_correlation_id, command.server_correlation_id)
        asked = DecideIntent((key,), command, policy, self._writer, follow=self._follow)
        return self._decide_again(asked) if again else self._decide(asked)

    def settle(
        self,
        intent: Intent,
        command: Settle,
        response: bytes,
        policy: Policy | PolicyOf,
        *,
        statements: tuple[Statement, ...] = (),
        also: SettleParticipant | None = None,
        own: OwnTransaction | None = None,
    ) -> Answered:
        """Write the outcome and the answer that every replay will get, guarded by the fence.

        ``statements`` go with it, and so does what ``also`` decides, such as the obligations that the handler reserved.
        With ``own`` it becomes durable in that transaction.
        """
        sealed = self._vault.seal(response, context=intent_seal_context(self._writer.source, intent, "response"))
        keys: tuple[Key, ...] = (key_of(intent),)
        if intent.counted_bytes is not None:
            keys = (*keys, by_principal(intent.principal))
        if also is not None:
            keys = (*keys, *also.keys)
        seals: Seals = {"response": sealed}
        asked = DecideIntent(keys, command, policy, self._writer, seals, None, self._follow, statements, also)
        return self._decide(asked) if own is None else self._decide_in(own, asked)

    async def _decide_in(self, own: OwnTransaction, asked: DecideIntent) -> IntentDecision:
        decision: IntentDecision = await own.settle(asked)
        self.observed(decision)
        return decision

    def confirm_then(self, command: Confirm, policy: Policy | PolicyOf, then: Then) -> None:
        """As ``confirm``; the flush calls ``then`` (``Store.submit``). After an error the caller may ask ``again``."""
        key = by_pair(command.client_correlation_id, command.server_correlation_id)
        self._store.submit(DecideIntent((key,), command, policy, self._writer, follow=self._follow), then)

    def settle_then(
        self, intent: Intent, command: Settle, response: bytes, policy: Policy | PolicyOf, then: Then
    ) -> None:
        """As ``settle``, of an intent that nothing else is settled with. After an error the caller may ``settle``."""
        sealed = self._vault.seal(response, context=intent_seal_context(self._writer.source, intent, "response"))
        keys: tuple[Key, ...] = (key_of(intent),)
        if intent.counted_bytes is not None:
            keys = (*keys, by_principal(intent.principal))
        self._store.submit(
            DecideIntent(keys, command, policy, self._writer, {"response": sealed}, None, self._follow), then
        )

    def renew(self, intent: Intent, policy: Policy | PolicyOf) -> Answered:
        """The heartbeat of the owner that executes the intent."""
        return self._decide(DecideIntent((key_of(intent),), Renew(fence=intent.fence), policy, self._writer))

    def observed(self, decision: IntentDecision) -> None:
        """Report a durable decision to the observer. Called where the request or the execution runs.

        Observers are foreign code. One that raises must not keep a confirmed handler from its start.
        """
        try:
            self._observer.decided(decision)
        except Exception:
            log.exception("an observer failed at a decision")

    async def try_out(self, intent: Intent, statements: tuple[Statement, ...]) -> None:
        """See ``TryStatements``."""
        await transacted(self._store, TryStatements(intent, statements))

    async def look(self, client_correlation_id: str, server_correlation_id: str) -> Intent | None:
        """The intent as it is, without changing anything."""
        key = by_pair(client_correlation_id, server_correlation_id)
        intent: Intent | None
        (intent,) = await found(self._store, (key,))
        return intent

    async def news(self, intent: Intent, longest_s: float) -> None:
        """Wait until another process may have ended it, or so long: not every store hears of that."""
        if isinstance(self._store, Heralds):
            await self._store.news_of(intent.server_correlation_id, longest_s)
        else:
            await asyncio.sleep(longest_s)

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
    ) -> list[IntentDecision]:
        """Do what has become due for up to ``limit`` intents, together, and return the decisions.

        What dead owners have left comes first and alone, also before its time: a client waits for it, and nothing else
        has to end before it. ``running`` is what is executed here: a process never takes over from itself. Intents in
        ``left`` are passed over. An intent that the store refuses, or that has to stay as it is, is added to ``left``:
        so it does not delay the others.
        """
        left = set() if left is None else left
        room = limit + len(left)
        wanted = [key for key in await self._orphans(room) if key not in left]
        if not wanted:
            wanted = [key for key in await self._store.due(INTENT, before, room) if key not in left]
        intents = await self._read_in_turn(wanted[:limit])
        here = {intent.server_correlation_id: intent.fence for intent in running()}
        keys = [key_of(intent) for intent in intents]
        each = [self._attend(intent, owner, here, policy_of) for intent in intents]
        ended = await asyncio.gather(*each, return_exceptions=True)
        failed = [(key, error) for key, error in zip(keys, ended, strict=True) if isinstance(error, BaseException)]
        if failed and len(failed) == len(ended) and isinstance(failed[0][1], StoreUnavailable | CommitUnknown):
            raise failed[0][1]
        if failed:  # The caller must still act on what was recovered beside them, so nothing is raised.
            left.update(key for key, _error in failed)
            message = "%d intents could not be attended to, the first is %s: %s"
            log.warning(message, len(failed), " ".join(failed[0][0].values), failed[0][1])
        made = [
            (key, decision) for key, decision in zip(keys, ended, strict=True) if isinstance(decision, IntentDecision)
        ]
        left.update(key for key, decision in made if not decision.changed)
        return [decision for _key, decision in made]

    async def _read_in_turn(self, keys: list[Key]) -> list[Intent]:
        """Read in turn, after the changes before it and their callers' answers: what was confirmed here runs by then.

        ``Store.read`` would find a confirm that is durable and whose caller has not been answered yet: an intent with
        no handler here, which this process would take over from itself.
        """
        read = await transacted(self._store, ReadRecords(keys)) if keys else ()
        return [intent for intent in read if intent is not None]

    async def _orphans(self, limit: int) -> list[Key]:
        """What dead owners have left."""
        owners, state = await self._store.owners_of(INTENT), self._store.owners.state
        dead = [owner for owner in owners if state(owner) == "dead"]
        return [key for owner in dead for key in await self._store.owned(INTENT, owner, limit)][:limit]

    def _attend(self, intent: Intent, owner: str, running: Mapping[str, int], policy_of: PolicyOf) -> Answered:
        attend = Tick(owner=owner)
        admission: Admission = "background"
        if intent.phase is Phase.PROCESSING and intent.owner is not None:
            admission = "accepted"  # A client waits for its outcome.
            if running.get(intent.server_correlation_id) == intent.fence:
                attend = Tick(owner=owner, live_owner=intent.owner)
            elif intent.owner != owner:
                state = self._store.owners.state(intent.owner)
                dead, alive = (intent.owner if state == known else None for known in ("dead", "alive"))
                attend = Tick(owner=owner, dead_owner=dead, live_owner=alive)
        keys = (key_of(intent),)
        return self._decide(
            DecideIntent(keys, attend, policy_of, self._writer, follow=self._follow, admission=admission)
        )

    async def _decide(self, asked: DecideIntent) -> IntentDecision:
        try:
            decision: IntentDecision = await self._store.transact(asked)
        except NotNamed as missing:  # An intent's principal never changes, so this happens once at most.
            return await self._decide(replace(asked, keys=(*asked.keys, missing.key)))
        except (CommitUnknown, StorePoisoned) as error:
            if not self._resolves:
                raise
            decision = await self._resolved(asked, error)
        self.observed(decision)
        return decision

    async def _decide_again(self, asked: DecideIntent) -> IntentDecision:
        return _as_made_by(asked.command, await self._decide(asked))

    async def _resolved(self, asked: DecideIntent, error: StoreError) -> IntentDecision:
        """It is unknown whether the change was written. Deciding once more, in the reopened store, finds out (A-42)."""
        asked = replace(asked, admission="accepted")
        try:
            await self._store.reopen()
            try:
                decision = await self._store.transact(asked)
            except NotNamed as missing:
                decision = await self._store.transact(replace(asked, keys=(*asked.keys, missing.key)))
        except StoreUnavailable as still:
            if isinstance(error, CommitUnknown):  # The change may have been written: its outcome stays unknown.
                raise error from still
            raise
        return _as_made_by(asked.command, decision)

    def write_as(self, writer: Writer) -> None:
        """Rows are this writer's from now on: the central ledger has issued another GUID (A-59)."""
        self._writer = writer

    async def _open(self, intent: Intent, part: Part) -> bytes | None:
        sealed = await self._store.unseal(key_of(intent), part)
        if sealed is None:
            return None
        try:
            return self._vault.open(sealed, context=intent_seal_context(self._writer.source, intent, part))
        except Tampered:
            # Sealed by a version that bound less. What is sealed today never opens under the shorter context.
            context = seal_context(self._writer.source, intent.server_correlation_id, part)
            return self._vault.open(sealed, context=context)


def _as_made_by(command: Command, decision: IntentDecision) -> IntentDecision:
    """A replay of what this very command had done is no replay: its maker still has to act on it.

    It stays a replay if another owner has recovered the intent since: then that owner acts on it.
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
    return IntentDecision(Goto((intent.phase,)), intent, changed=True) if ours else decision
