"""Intents under a quota, and the two numbers that must never differ: what is counted and what is open."""

from __future__ import annotations

from typing import Any

import apsw

from tests.faults.handshake import POLICY, VAULT, WRITER
from twophp.core.intent import Intent, Mode
from twophp.core.intent_commands import Confirm, Register, Settle
from twophp.core.phase import IntentDecision
from twophp.core.quota import Quota
from twophp.engine.intents import Intents
from twophp.ports import Store

T0 = 1_700_000_000_000
OPEN = (
    "SELECT principal, count(*), sum(counted_bytes) FROM intent WHERE counted_bytes IS NOT NULL"
    " AND phase IN ('WAITING_CONFIRM', 'PROCESSING') GROUP BY principal ORDER BY principal"
)
COUNTED = "SELECT principal, open_intents, open_bytes FROM quota ORDER BY principal"


class Service:
    """The engine's flows, in few words."""

    def __init__(self, store: Store, quota: Quota | None) -> None:
        self.intents = Intents(store, VAULT, WRITER, quota=quota)

    async def register(self, name: str, at: int = T0, principal: str = "alice", **facts: object) -> IntentDecision:
        known: dict[str, object] = {
            "client_correlation_id": f"client-{name}",
            "server_correlation_id": f"server-{name}" + ("" if principal == "alice" else f"-{principal}"),
            "principal": principal,
            "replay_key": "what was meant",
            "mode": Mode.STANDARD,
            "service_endpoint": "orders/orders",
            "path": "/orders",
            "arrived_at": at,
            "owner": "worker",
        }
        return await self.intents.register(Register(**(known | facts)), b"ten bytes.", POLICY)  # type: ignore[arg-type]

    async def confirm(self, intent: Intent, at: int = T0) -> IntentDecision:
        command = Confirm(
            client_correlation_id=intent.client_correlation_id,
            server_correlation_id=intent.server_correlation_id,
            principal=intent.principal,
            path=intent.path,
            arrived_at=at,
            owner="worker",
        )
        return await self.intents.confirm(command, POLICY)

    async def settle(self, intent: Intent, *, succeeded: bool = True) -> IntentDecision:
        settle = Settle(fence=intent.fence, succeeded=succeeded, status=201 if succeeded else 500, resource_id="7")
        return await self.intents.settle(intent, settle, b"answer", POLICY)

    async def sweep(self, now: int) -> list[IntentDecision]:
        return await self.intents.sweep(lambda _intent: POLICY, "sweeper", before=now + 1)


def counted_and_open(path: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What the counts say, and what there is, at one moment."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.execute("BEGIN")
        return connection.execute(COUNTED).fetchall(), connection.execute(OPEN).fetchall()
    finally:
        connection.close()
