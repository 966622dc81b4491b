"""The life of an intent against a store: register, confirm, settle, and what time asks for.

Every flow has the same shape: name the keys, decide inside the transaction, write the record, its ledger row, its
history and its sealed parts as one change. The rules are all in ``core.phase``; nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from twophp.core.entry import Writer, server_entry
from twophp.core.identity import seal_context
from twophp.core.intent import INTENT, Intent, Phase, by_logical_key, by_pair
from twophp.core.phase import Attend, Command, Confirm, Decision, Register, Renew, Settle, decide
from twophp.core.policy import Policy
from twophp.core.records import Key, Sealed
from twophp.ports import Change, Part, Put, Records, Store, Vault

PolicyOf: TypeAlias = Callable[[Intent], Policy]


class Intents:
    """The intents of one service."""

    def __init__(self, store: Store, vault: Vault, writer: Writer) -> None:
        self._store = store
        self._vault = vault
        self._writer = writer

    async def register(self, command: Register, payload: bytes, policy: Policy) -> Decision:
        """Phase 1: payload, record, ledger row and history become durable together, or none does (draft §9.5)."""
        key = by_logical_key(command.principal, command.client_correlation_id)
        context = self._context(command.server_correlation_id, "payload")
        return await self._decide(key, command, policy, {"payload": self._vault.seal(payload, context=context)})

    async def confirm(self, command: Confirm, policy: Policy) -> Decision:
        """Phase 2: of all confirms one crosses the point of no return."""
        return await self._decide(
            by_pair(command.client_correlation_id, command.server_correlation_id), command, policy
        )

    async def settle(self, intent: Intent, command: Settle, response: bytes, policy: Policy) -> Decision:
        """The outcome and the answer that every replay will get, guarded by the fence."""
        sealed = self._vault.seal(response, context=self._context(intent.server_correlation_id, "response"))
        return await self._decide(_key(intent), command, policy, {"response": sealed})

    async def renew(self, intent: Intent, policy: Policy) -> Decision:
        """The heartbeat of whoever executes the intent."""
        return await self._decide(_key(intent), Renew(fence=intent.fence), policy)

    async def payload(self, intent: Intent) -> bytes | None:
        """What was registered. Raises Tampered rather than return anything else."""
        return await self._open(intent, "payload")

    async def response(self, intent: Intent) -> bytes | None:
        """What was answered."""
        return await self._open(intent, "response")

    async def sweep(self, policy_of: PolicyOf, owner: str, *, before: int, limit: int = 256) -> list[Decision]:
        """Do what time has made due for up to ``limit`` intents, together, and say what was done."""
        keys = await self._store.due(INTENT, before, limit)
        return await asyncio.gather(*(self._attend(key, policy_of, owner) for key in keys))

    async def _attend(self, key: Key, policy_of: PolicyOf, owner: str) -> Decision:
        command = Attend(owner=owner)

        def attend(records: Records) -> Change:
            intent: Intent | None = records.get(key)
            policy = policy_of(intent) if intent is not None else Policy.standard()
            return self._change(intent, decide(intent, command, records.now, policy), {})

        decision: Decision = await self._store.transact((key,), attend)
        return decision

    async def _decide(
        self, key: Key, command: Command, policy: Policy, seals: Mapping[Part, Sealed] | None = None
    ) -> Decision:
        def change(records: Records) -> Change:
            intent: Intent | None = records.get(key)
            return self._change(intent, decide(intent, command, records.now, policy), seals or {})

        decision: Decision = await self._store.transact((key,), change)
        return decision

    def _change(self, before: Intent | None, decision: Decision, seals: Mapping[Part, Sealed | None]) -> Change:
        """Everything a decision makes durable. A refusal keeps no payload, though it may age the intent."""
        intent = decision.intent
        if not decision.changed or intent is None:
            return Change(answer=decision)
        if intent.phase is Phase.ABSENT:
            return Change(answer=decision, drops=(_key(intent),), journal=decision.steps)
        if decision.code is not None:
            seals = {}
        if before is not None and before.has_payload and not intent.has_payload:
            seals = {"payload": None}
        entry = server_entry(intent, self._writer) if decision.steps else None
        return Change(answer=decision, puts=(Put(record=intent, entry=entry, journal=decision.steps, seals=seals),))

    async def _open(self, intent: Intent, part: Part) -> bytes | None:
        sealed = await self._store.unseal(_key(intent), part)
        if sealed is None:
            return None
        return self._vault.open(sealed, context=self._context(intent.server_correlation_id, part))

    def _context(self, server_correlation_id: str, part: Part) -> bytes:
        return seal_context(self._writer.source, server_correlation_id, part)


def _key(intent: Intent) -> Key:
    return by_pair(intent.client_correlation_id, intent.server_correlation_id)
