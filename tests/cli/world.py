"""Participants with ledgers of their own: real stores, real machines, a clock that the test sets, and no network.

What travels over the wire in life is handed over here: a server registers, its client notes what it was told, and so
on. Rows are the engine's and the call machine's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from twophp.core.call import by_client_id
from twophp.core.call_commands import Opening, ServerReply
from twophp.core.call_machine import decide
from twophp.core.entry import Writer, client_entry
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.intent_commands import Confirm, Register, Settle
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Records
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

T0 = 1_767_225_600_000
POLICY = Policy.standard()

# Caller, callee, number of the call, number of the call that the caller was serving (draft §10.3).
CHAIN = (
    ("client", "serviceA", 1, 1),
    ("serviceA", "serviceB1", 2, 1),
    ("serviceB1", "serviceC1", 5, 2),
    ("serviceA", "serviceB2", 3, 1),
    ("serviceB2", "serviceD1", 6, 3),
    ("serviceA", "serviceB3", 4, 1),
    ("serviceB3", "serviceE1", 7, 4),
)
NAMES = tuple(dict.fromkeys(name for caller, callee, *_ in CHAIN for name in (caller, callee)))


class Clock:
    """Moves by a millisecond whenever it is read, so that no two things happen at once."""

    def __init__(self, now: int = T0) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Participant:
    """A service, a client, or both, with its ledger open."""

    def __init__(self, name: str, store: SQLiteStore, intents: Intents, writer: Writer, clock: Clock) -> None:
        self.name = name
        self.store = store
        self.intents = intents
        self.writer = writer
        self.clock = clock
        self._running: dict[str, Intent] = {}

    # As a server.

    async def registers(self, number: object, **facts: Any) -> Intent:
        known: dict[str, Any] = {
            "client_correlation_id": f"client-corr-id{number}",
            "server_correlation_id": f"server-corr-id{number}",
            "principal": "alice",
            "replay_key": f"meant-{number}",
            "mode": Mode.STANDARD,
            "service_endpoint": f"{self.name}/orders",
            "path": "/orders",
            "arrived_at": self.clock(),
            "owner": "worker",
        }
        decision = await self.intents.register(Register(**(known | facts)), b"payload", POLICY)
        assert decision.intent is not None
        return decision.intent

    async def confirms(self, number: object) -> Intent:
        command = Confirm(
            client_correlation_id=f"client-corr-id{number}",
            server_correlation_id=f"server-corr-id{number}",
            principal="alice",
            path="/orders",
            arrived_at=self.clock(),
            owner="worker",
        )
        decision = await self.intents.confirm(command, POLICY)
        assert decision.intent is not None
        return decision.intent

    async def settles(self, intent: Intent, *, succeeded: bool = True) -> None:
        command = Settle(fence=intent.fence, succeeded=succeeded, status=201 if succeeded else 500, resource_id="7")
        await self.intents.settle(intent, command, b"answer", POLICY)

    async def sweeps(self) -> None:
        await self.intents.sweep(lambda _intent: POLICY, "sweeper", before=self.clock() + 1)

    # As a client.

    async def is_told(self, number: object, phase: Phase, *, callee: str = "", parent: object = "") -> None:
        """What a server said of a call; the first time with whom it calls and for which call."""
        opening = None
        if callee:
            opening = Opening(
                client_correlation_id=f"client-corr-id{number}",
                parent_reference_id=f"client-corr-id{parent or number}",
                method="POST",
                url=f"https://{callee}.internal/orders",
                meant=f"meant-{number}",
                target=callee,
                service_endpoint=f"{callee}/orders",
                mode=Mode.STANDARD,
                sent_at=self.clock(),
                owner="driver",
            )
        told = ServerReply(
            phase=phase,
            by="phase_1" if opening else "phase_2",
            at=self.clock(),
            opening=opening,
            server_correlation_id=f"server-corr-id{number}",
            ttl_ms=POLICY.ttl_ms,
            status=None if phase is Phase.WAITING_CONFIRM else 200,
        )
        key = by_client_id(f"client-corr-id{number}")

        def note(records: Records) -> Change:
            decision = decide(records.get(key), told, records.now)
            assert decision.call is not None
            assert decision.changed, decision
            entry = client_entry(decision.call, self.writer)
            return Change(answer=None, puts=(Put(record=decision.call, entry=entry, journal=decision.steps),))

        await self.store.transact(AdHocCommand((key,), note))


@asynccontextmanager
async def participants(
    folder: Path, *names: str, clock: Clock | None = None
) -> AsyncIterator[Mapping[str, Participant]]:
    """Each with the file ``<name>.db`` in the folder."""
    clock = clock or Clock()
    async with AsyncExitStack() as stack:
        found = {}
        for name in names:
            path = folder / f"{name}.db"
            store = await stack.enter_async_context(SQLiteStore(str(path), clock=clock))
            writer = await open_ledger(store, name, lambda name=name: f"ledger-of-{name}")  # type: ignore[misc]
            vault = open_vault(f"sqlite:///{path}", clock=clock)
            found[name] = Participant(name, store, Intents(store, vault, writer), writer, clock)
        yield found


async def call(client: Participant, server: Participant, number: object, parent: object = "") -> None:
    """A whole call, from Phase 1 to the client's knowledge of its end."""
    intent = await begin(client, server, number, parent)
    await end(client, server, number, intent)


async def begin(client: Participant, server: Participant, number: object, parent: object = "") -> Intent:
    """Registered by both, confirmed, and running."""
    await server.registers(number)
    await client.is_told(number, Phase.WAITING_CONFIRM, callee=server.name, parent=parent)
    return await server.confirms(number)


async def end(client: Participant, server: Participant, number: object, intent: Intent) -> None:
    """Settled, and the client has the answer."""
    await server.settles(intent)
    await client.is_told(number, Phase.COMMITTED)


async def fan_out(folder: Path) -> None:
    """The draft's chain (§10.3): seven calls between eight participants, fourteen rows in eight ledgers."""
    async with participants(folder, *NAMES) as who:
        running = [
            (who[caller], who[callee], number, await begin(who[caller], who[callee], number, parent))
            for caller, callee, number, parent in CHAIN
        ]
        for client, server, number, intent in reversed(running):
            await end(client, server, number, intent)


def ledgers(folder: Path, *without: str) -> Iterator[str]:
    """The files of a folder, in an order that helps no reader."""
    return (str(path) for path in sorted(folder.glob("*.db"), reverse=True) if path.stem not in without)
