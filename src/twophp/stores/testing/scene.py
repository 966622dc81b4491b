"""The fixtures of every part of the contract: a clock that the test sets, and short ways to drive the machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgspec
import pytest

from twophp.core import obligation as obligations
from twophp.core.entry import LedgerEntry, Writer, server_entry
from twophp.core.intent import Intent, Mode, Phase, by_logical_key, by_pair
from twophp.core.intent_commands import Command, Confirm, Register, Settle, Tick
from twophp.core.obligation import Obligation, by_flow_and_key, by_id
from twophp.core.phase import IntentDecision, decide
from twophp.core.policy import Policy
from twophp.core.records import Instant, Key, Record, Sealed
from twophp.kernel.commands import AdHocCommand
from twophp.kernel.journal import GENESIS, Link, decode_lines, is_intact
from twophp.ports import Change, Clock, Decide, JournalLine, Part, Put, Records, WholeStore
from twophp.stores.testing.capability import Capability

T0: Final[Instant] = 1_700_000_000_000
POLICY: Final = Policy.standard()
WRITER: Final = Writer(source="orders", service_ledger_id="00000000-0000-4000-8000-000000000001")
EVERYTHING: Final = 1_000_000
NO_SEALS: Final[Mapping[Part, Sealed | None]] = {}


class AuditableStore(WholeStore, Protocol):
    """A store whose whole journal can be read, and that remembers small settings of its own."""

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """The lines after ``after``, oldest first."""
        ...

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the journal after this line, oldest first."""
        ...

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        ...

    async def set_meta(self, name: str, value: str) -> None:
        """The setting under ``name`` is ``value`` from now on."""
        ...


OpenStore: TypeAlias = Callable[[Clock], AbstractAsyncContextManager[AuditableStore]]


class HandClock:
    """A clock that moves only when the test sets it, in either direction."""

    def __init__(self) -> None:
        self.now: Instant = T0

    def __call__(self) -> Instant:
        """The time that was set last."""
        return self.now


class Stage:
    """What every part of the contract derives from."""

    pytestmark = pytest.mark.anyio
    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Stores are written for asyncio."""
        return "asyncio"

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return the function that opens the store under test; see the package's text."""
        raise NotImplementedError("define the fixture open_store in the class that derives from StoreContract")

    @pytest.fixture(autouse=True)
    def only_what_is_declared(self, request: pytest.FixtureRequest) -> None:
        """Skip by declared capability, never by the name of a store."""
        test = request.function
        missing: frozenset[Capability] = getattr(test, "__capabilities__", frozenset()) - self.capabilities
        if missing:
            pytest.skip(f"not declared: {', '.join(sorted(missing))}")
        if (declared := getattr(test, "__without__", None)) in self.capabilities:
            pytest.skip(f"for stores without {declared}")

    @pytest.fixture
    def clock(self) -> HandClock:
        """The clock that the test sets."""
        return HandClock()

    @pytest.fixture
    async def store(self, open_store: OpenStore, clock: HandClock) -> AsyncIterator[AuditableStore]:
        """An open store with nothing in it."""
        async with open_store(clock) as store:
            yield store


# Intents, by the rules of core.phase.


def registration(name: str = "1", **facts: Any) -> Register:
    """A Phase 1 whose ids are made from ``name``."""
    known: dict[str, Any] = {
        "client_correlation_id": f"client-{name}",
        "server_correlation_id": f"server-{name}",
        "principal": "alice",
        "replay_key": "what was meant",
        "mode": Mode.STANDARD,
        "service_endpoint": "orders/orders",
        "path": "/orders",
        "arrived_at": T0,
        "owner": "worker",
    }
    return Register(**(known | facts))


def confirmation(intent: Intent, at: Instant = T0) -> Confirm:
    """Its Phase 2, from the same principal."""
    return Confirm(
        client_correlation_id=intent.client_correlation_id,
        server_correlation_id=intent.server_correlation_id,
        principal=intent.principal,
        path=intent.path,
        arrived_at=at,
        owner="worker",
    )


def pair_of(intent: Intent) -> Key:
    """The identity of an intent."""
    return by_pair(intent.client_correlation_id, intent.server_correlation_id)


def intent_put(decision: IntentDecision, **facts: Any) -> Put:
    """What a decision makes durable, with the server's ledger row; ``facts`` replace parts of it."""
    intent = decision.intent
    assert intent is not None
    entry = server_entry(intent, WRITER) if decision.steps else None  # A heartbeat is no news to the ledger.
    known: dict[str, Any] = {"record": intent, "entry": entry, "journal": decision.steps}
    return Put(**(known | facts))


def taking(key: Key, command: Command, seals: Mapping[Part, Sealed | None] = NO_SEALS) -> Decide:
    """The decide function that takes ``command`` to the intent under ``key``."""

    def take(records: Records) -> Change:
        decision = decide(records.get(key), command, records.now, POLICY)
        if not decision.changed:
            return Change(answer=decision)
        assert decision.intent is not None
        if decision.intent.phase is Phase.ABSENT:
            return Change(answer=decision, drops=(key,), journal=decision.steps)
        return Change(answer=decision, puts=(intent_put(decision, seals=seals),))

    return take


async def act(
    store: WholeStore, key: Key, command: Command, seals: Mapping[Part, Sealed | None] = NO_SEALS
) -> IntentDecision:
    """Take ``command`` to the intent under ``key``."""
    decision: IntentDecision = await store.transact(AdHocCommand((key,), taking(key, command, seals)))
    return decision


async def register(
    store: WholeStore, name: str = "1", seals: Mapping[Part, Sealed | None] = NO_SEALS, **facts: Any
) -> Intent:
    """Register an intent and return it."""
    command = registration(name, **facts)
    decision = await act(store, by_logical_key(command.principal, command.client_correlation_id), command, seals)
    return found(decision)


async def confirm(store: WholeStore, intent: Intent) -> Intent:
    """Confirm it and return it as it is then."""
    return found(await act(store, pair_of(intent), confirmation(intent)))


async def settle(store: WholeStore, intent: Intent, seals: Mapping[Part, Sealed | None] = NO_SEALS) -> Intent:
    """Settle it as done and return it as it is then."""
    command = Settle(fence=intent.fence, succeeded=True, status=200, resource_id="order-1")
    return found(await act(store, pair_of(intent), command, seals))


async def attend(store: WholeStore, intent: Intent, seals: Mapping[Part, Sealed | None] = NO_SEALS) -> IntentDecision:
    """Do what time has made due for it."""
    return await act(store, pair_of(intent), Tick(owner="sweeper"), seals)


def found(decision: IntentDecision) -> Intent:
    """The intent that a decision was about."""
    assert decision.intent is not None
    return decision.intent


# Obligations, by the rules of core.obligation. They hold a second key for a while, and have no ledger row of their own.


async def reserve(store: WholeStore, name: str, key: str = "", **facts: Any) -> obligations.Decision:
    """Reserve ``key`` for the obligation called ``name``."""
    command = obligations.Reserve(obligation_id=name, flow="publish", key=key, trace_id="t", **facts)
    keys = (by_id(name), by_flow_and_key("publish", key))

    def take(records: Records) -> Change:
        holder = records.get(keys[0]) or records.get(keys[1])
        return obligation_change(obligations.decide(holder, command, records.now))

    decision: obligations.Decision = await store.transact(AdHocCommand(keys, take))
    return decision


async def finish(store: WholeStore, name: str) -> obligations.Decision:
    """Commit it."""

    def take(records: Records) -> Change:
        return obligation_change(
            obligations.decide(records.get(by_id(name)), obligations.Commit(trace_id="t"), records.now)
        )

    decision: obligations.Decision = await store.transact(AdHocCommand((by_id(name),), take))
    return decision


def obligation_change(decision: obligations.Decision) -> Change:
    """Everything that a decision makes durable."""
    puts = tuple(Put(record=record, journal=_about(record, decision)) for record in decision.records)
    return Change(answer=decision, puts=puts)


def _about(record: Obligation, decision: obligations.Decision) -> tuple[Any, ...]:
    return tuple(step for step in decision.steps if step.subject == record.obligation_id)


def fresh_obligation(name: str, key: str = "") -> obligations.Decision:
    """A reserve that looked at nothing, as a careless caller would make it."""
    command = obligations.Reserve(obligation_id=name, flow="publish", key=key, trace_id="t")
    return obligations.decide(None, command, T0)


def client_row(**facts: Any) -> LedgerEntry:
    """A client's ledger row: what a service notes of a call that it made."""
    known: dict[str, Any] = {
        "client_correlation_id": "client-9",
        "server_correlation_id": "server-9",
        "service_ledger_id": WRITER.service_ledger_id,
        "service_endpoint": "stock/items",
        "actor": "client",
        "source": WRITER.source,
        "target": "stock",
        "parent_reference_id": "client-1",
        "phase": Phase.WAITING_CONFIRM,
        "phase_1_timestamp": T0,
        "phase_2_timestamp": None,
        "ttl_ms": 30_000,
        "outcome": None,
        "payload_ref": None,
        "sync_timestamp": None,
        "transaction_reference": None,
        "version": 1,
        "mode": Mode.STANDARD,
        "client_id_is_proxy": False,
    }
    return LedgerEntry(**(known | facts))


def carrier(name: str, entry: LedgerEntry) -> Put:
    """Any record may carry any ledger row; an obligation that collides with nothing does."""
    return msgspec.structs.replace(obligation_change(fresh_obligation(name)).puts[0], entry=entry)


async def note(store: WholeStore, entry: LedgerEntry) -> None:
    """Write a ledger row by itself."""
    await write(store, carrier(f"{entry.actor} {entry.client_correlation_id} {entry.server_correlation_id}", entry))


# Looking.


async def read(store: WholeStore, key: Key) -> Any:
    """The record under ``key``."""
    (record,) = await store.read((key,))
    return record


async def write(store: WholeStore, *puts: Put, keys: Sequence[Key] = ()) -> None:
    """Put records as they are, without a decision of a machine."""
    await store.transact(AdHocCommand(keys, lambda _records: Change(answer=None, puts=puts)))


async def verified_journal(store: AuditableStore) -> list[JournalLine]:
    """The whole journal, after its chain was followed from the first line to the last."""
    lines = list(await store.journal(0, EVERYTHING))
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1)), "the journal has no gaps"
    previous, told = GENESIS, []
    for link in await store.links(0, EVERYTHING):
        assert link.hash == link.expected(previous), "each link is chained to the one before"
        previous = link.hash
        for line in decode_lines(link.lines):
            assert is_intact(line), "each line fits its checksum"
            told.append((line[0], line[3:-1], link.hash))
    assert told == [(line.seq, list(msgspec.structs.astuple(line.event)), line.digest) for line in lines]
    return lines


def sealed(data: bytes) -> Sealed:
    """Bytes that a store must keep as they are."""
    return Sealed(data)


def keys_of(record: Record) -> tuple[Key, ...]:
    """Every key that a record holds, its identity first."""
    return record.keys()
