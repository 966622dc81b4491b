"""Tier 2 as obligations: rows leave under a shipment that is Reserved, and are marked by the change that commits it.

    reserve     durable before the first row leaves; a ledger has one open shipment, shared by its workers
    commit      in the transaction that marks the rows as arrived: both, or neither
    roll back   the central ledger refuses every row of it for good
    neither     there was no answer, or the sender died. The next attempt goes on under the same shipment; past its
                timeout it leaks, as any obligation does: OBL-004, and the verdict of ``twophp obligations report``

The unsynced row stays the debt (A-57), so nothing is lost with a shipment: the rows of one that leaked are simply sent
under another. That is why a late acknowledgement is refused without harm.
"""

from __future__ import annotations

import logging
from typing import Final

from msgspec.structs import replace

from twophp.core.obligation import (
    LEAK_EVENT,
    Commit,
    Decision,
    Obligation,
    Reserve,
    Rollback,
    Scan,
    by_flow_and_key,
    by_id,
)
from twophp.engine.obligations.changes import NO_SEALS, Consequences, Leaking, ObligationCommand, Reserving, Settling
from twophp.engine.obligations.flow import DecisionListener
from twophp.engine.obligations.rules import Rules
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, MintId, Records, Store, Synced

log: Final = logging.getLogger("twophp.ship")

SHIPMENT: Final = "tier2_shipment"
"""The flow. An application is unlikely to declare this word for an effect of its own."""


class Shipments:
    """The shipments of one ledger, as one of its workers sees them."""

    def __init__(
        self,
        store: Store,
        ledger_id: str,
        *,
        mint: MintId,
        timeout_ms: int,
        attempt_ms: int,
        told: DecisionListener | None = None,
    ) -> None:
        """An attempt takes ``attempt_ms`` at most. For that time another worker's shipment is left alone."""
        self._store = store
        self._ledger_id = ledger_id
        self._mint = mint
        self._timeout_ms = timeout_ms
        self._attempt_ms = attempt_ms
        self._told = told
        self._follows = Consequences(Rules(flows=frozenset({SHIPMENT}), leak_timeout_ms=timeout_ms), None)
        self._ours = ""

    async def open(self) -> Obligation | None:
        """The shipment to send rows under: the open one, or else a new one. None: another worker is sending."""
        command = Reserve(
            obligation_id=self._mint(),
            flow=SHIPMENT,
            trace_id=self._ledger_id,
            key=self._ledger_id,
            timeout_ms=self._timeout_ms,
        )
        keys = by_id(command.obligation_id), by_flow_and_key(SHIPMENT, self._ledger_id)
        decision = await self._make(Reserving(self._follows, keys, command, NO_SEALS))
        found = decision.obligation
        assert found is not None  # The new one, or the one that holds the key.
        is_of_another = decision.code is not None and found.obligation_id != self._ours
        if is_of_another and self._store.now() < found.reserved_at + self._attempt_ms:
            return None
        self._ours = found.obligation_id
        return found

    async def commit(self, shipment: Obligation, arrived: tuple[Synced, ...]) -> bool:
        """Mark these rows, and settle the shipment with them. False: it was settled before, and nothing is marked."""

        def and_mark(_records: Records, made: Change) -> Change:
            return replace(made, synced=arrived) if made.answer.code is None else made

        wanted = Settling(self._follows, (by_id(shipment.obligation_id),), Commit(trace_id=self._ledger_id))
        wanted.then = and_mark
        return (await self._make(wanted)).code is None

    async def roll_back(self, shipment: Obligation) -> None:
        """Give the shipment up: the central ledger takes no row of it."""
        command = Rollback(trace_id=self._ledger_id)
        await self._make(Settling(self._follows, (by_id(shipment.obligation_id),), command))

    async def scan(self) -> None:
        """The leak scan of the one shipment that may be open, for a ledger without another scan: a client's."""
        keys = (by_flow_and_key(SHIPMENT, self._ledger_id),)
        for leaked in await self._store.transact(AdHocCommand(keys, Leaking(self._follows, keys, (), Scan()))):
            self._tell(leaked)

    async def _make(self, wanted: ObligationCommand) -> Decision:
        decision: Decision = await self._store.transact(AdHocCommand(wanted.keys, wanted))
        self._tell(decision)
        return decision

    def _tell(self, decision: Decision) -> None:
        if LEAK_EVENT in (step.event for step in decision.steps):
            log.warning("a shipment to the central ledger leaked: it was not acknowledged in time")
        if self._told is not None and decision.changed:
            self._told(decision)
