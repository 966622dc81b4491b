"""A small service for the tests that look at what a database holds: it takes orders and settles them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from twophp.core.intent import Intent, Mode, Phase, by_pair
from twophp.core.intent_commands import Confirm, Register, Settle
from twophp.core.phase import IntentDecision
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Vault
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

T0 = 1_767_225_600_000
POLICY = Policy.standard()
LEDGER_ID = "11111111-1111-4111-8111-111111111111"
CANARY = b"canary-7f3a-payload"


class HandClock:
    """A clock that moves when a test says so."""

    def __init__(self, now: int = T0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Orders:
    """The service, with a store open."""

    def __init__(self, store: SQLiteStore, vault: Vault, intents: Intents, clock: HandClock) -> None:
        self.store = store
        self.vault = vault
        self.intents = intents
        self.clock = clock

    async def register(self, n: int, payload: bytes | None = None) -> Intent:
        command = Register(
            client_correlation_id=f"c{n}",
            server_correlation_id=f"s{n}",
            principal="alice",
            replay_key=f"meant-{n}",
            mode=Mode.STANDARD,
            service_endpoint="orders/orders",
            path="/orders",
            arrived_at=self.clock(),
        )
        return _intent(await self.intents.register(command, payload or payload_of(n), POLICY))

    async def confirm(self, n: int) -> Intent:
        command = Confirm(
            client_correlation_id=f"c{n}",
            server_correlation_id=f"s{n}",
            principal="alice",
            path="/orders",
            arrived_at=self.clock(),
            owner="worker",
        )
        return _intent(await self.intents.confirm(command, POLICY))

    async def settle(self, n: int) -> Intent:
        intent = await self.confirm(n)
        command = Settle(fence=intent.fence, succeeded=True, status=201)
        return _intent(await self.intents.settle(intent, command, response_of(n), POLICY))

    async def take(self, n: int) -> Intent:
        """A whole handshake."""
        await self.register(n)
        return await self.settle(n)

    async def find(self, n: int) -> Intent:
        return await find(self.store, n)

    async def sweep(self) -> list[IntentDecision]:
        return await self.intents.sweep(lambda _intent: POLICY, "sweeper", before=self.clock() + 1)


def payload_of(n: int) -> bytes:
    return CANARY + b"-request-%d" % n


def response_of(n: int) -> bytes:
    return CANARY + b"-response-%d" % n


async def find(store: SQLiteStore, n: int) -> Intent:
    """Read one order as it is."""
    key = by_pair(f"c{n}", f"s{n}")
    intent = await store.transact(AdHocCommand((key,), lambda records: Change(answer=records.get(key))))
    assert isinstance(intent, Intent)
    return intent


@asynccontextmanager
async def orders(path: Path, *, vault: Vault | None = None, clock: HandClock | None = None) -> AsyncIterator[Orders]:
    """The service over ``path``, its ring beside it unless a vault is given."""
    clock = clock or HandClock()
    async with SQLiteStore(str(path), clock=clock) as store:
        vault = vault or open_vault(f"sqlite:///{path}", clock=clock)
        yield Orders(store, vault, Intents(store, vault, await open_ledger(store, "orders", lambda: LEDGER_ID)), clock)


async def everything_opens(path: Path, numbers: range) -> bool:
    """Whether each settled order still has its payload and its response, word for word."""
    async with orders(path) as service:
        for n in numbers:
            intent = await service.find(n)
            assert intent.phase is Phase.COMMITTED
            assert await service.intents.payload(intent) == payload_of(n)
            assert await service.intents.response(intent) == response_of(n)
    return True


def raw(path: Path, sql: str, *bindings: object) -> list[tuple[object, ...]]:
    """Edit the file as an intruder with write access does. Triggers are off, constraints too."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        return list(connection.execute(sql, bindings))
    finally:
        connection.close()


def raw_bytes(folder: Path) -> bytes:
    """Every byte of every file in a folder: database, log, shared memory, ring."""
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file())


def _intent(decision: IntentDecision) -> Intent:
    assert decision.intent is not None
    assert decision.code is None, decision
    return decision.intent
