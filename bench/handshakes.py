"""Durable handshakes per second through the SQLite store, and what they are to be compared with.

    ours      register, confirm and settle through ``Intents``: three durable changes, payload and response sealed
    one_each  the same code with ``batch_limit=1``, one transaction per change: by so many callers, and by one alone,
              who never waits for others; the quicker of the two counts (a)
    ceiling   a thread that does nothing but the statements `ours` wrote, in the batches `ours` made (b)

All of them run in turn, several rounds, on fresh files in one directory; a ratio compares two figures of one round. The
first two run on uvloop, as a service under uvicorn does. What is written is seen through SQLite's own trace, so nothing
here depends on the tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

import apsw
import msgspec
import uvloop

from twophp.core.entry import Writer
from twophp.core.identity import intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import Mode, Phase
from twophp.core.intent_commands import Confirm, Register, Settle
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.connection import open_connection
from twophp.stores.vault import AesGcmVault, KeyRing

PAYLOAD = b'{"sku": "A-1", "quantity": 3, "note": "%s"}' % (b"x" * 260)
POLICY = Policy.standard()
PRINCIPAL = principal_digest("bearer", "https://issuer.example", "checkout")
DIGEST = payload_digest("application/json", PAYLOAD)

Result = TypeVar("Result")

CHECKPOINT_PAGES = 4_096  # As the store's writer does: 16 MiB of log.
CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")

Statements: TypeAlias = list[tuple[str, list[Any]]]


class Figure(msgspec.Struct, frozen=True):
    """One run: how many per second, and the slow end of how long one took."""

    per_second: float
    p99_ms: float


class Round(msgspec.Struct, frozen=True):
    """The contenders, one after the other."""

    ours: Figure
    one_each: Figure
    alone: Figure
    ceiling: Figure
    batch: float

    @property
    def quickest_each(self) -> float:
        """Handshakes a second with one transaction for each change, however many callers that takes."""
        return max(self.one_each.per_second, self.alone.per_second)


class Commands(msgspec.Struct, frozen=True):
    """What one handshake asks for, made beforehand: ids and fingerprints are their caller's work, not the store's."""

    register: Register
    confirm: Confirm


SETTLE = Settle(fence=1, succeeded=True, status=201, resource_id="42")


def new_commands() -> Commands:
    """Commands with ids that the store does not know yet."""
    client_id, server_id, now = mint_uuid(), mint_uuid(), system_clock()
    register = Register(
        client_correlation_id=client_id,
        server_correlation_id=server_id,
        principal=PRINCIPAL,
        replay_key=intent_replay_key(
            principal=PRINCIPAL, client_correlation_id=client_id, method="POST", target="/orders", payload=DIGEST
        ),
        mode=Mode.STANDARD,
        service_endpoint="orders/orders",
        path="/orders",
        arrived_at=now,
    )
    confirm = Confirm(
        client_correlation_id=client_id,
        server_correlation_id=server_id,
        principal=PRINCIPAL,
        path="/orders",
        arrived_at=now,
        owner="bench",
    )
    return Commands(register, confirm)


async def handshake(intents: Intents, commands: Commands) -> None:
    """Three durable changes."""
    await intents.register(commands.register, PAYLOAD, POLICY)
    intent = (await intents.confirm(commands.confirm, POLICY)).intent
    assert intent is not None
    settled = (await intents.settle(intent, SETTLE, PAYLOAD, POLICY)).intent
    assert settled is not None
    assert settled.phase is Phase.COMMITTED


async def _drive(store: SQLiteStore, callers: int, handshakes: int) -> Figure:
    intents = Intents(store, AesGcmVault(KeyRing.generate()), Writer(source="orders", service_ledger_id=mint_uuid()))
    asked = [[new_commands() for _ in range(handshakes // callers)] for _ in range(callers)]
    took: list[float] = []

    async def caller(mine: list[Commands]) -> None:
        for commands in mine:
            began = time.perf_counter()
            await handshake(intents, commands)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller(mine) for mine in asked))
    elapsed = time.perf_counter() - began
    return Figure(len(took) / elapsed, sorted(took)[int(len(took) * 0.99)] * 1e3)


async def _through_the_store(path: Path, callers: int, handshakes: int, **settings: Any) -> Figure:
    async with SQLiteStore(str(path), **settings) as store:
        await _drive(store, callers, callers)  # Warm up: files, caches, statements.
        return await _drive(store, callers, handshakes)


class Recorder:
    """What is written over one connection, batch by batch, once it is committed."""

    def __init__(self) -> None:
        self.batches: list[Statements] = []
        self._open: Statements = []

    def __call__(self, cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        """What apsw calls before each statement, and for each row of ``executemany``."""
        word = statement.lstrip()[:9].upper()
        if word.startswith(("BEGIN", "ROLLBACK")):
            self._open = []
        elif word.startswith("COMMIT"):
            self.batches.append(self._open)
            self._open = []
        elif not cursor.is_readonly and not word.startswith(CONTROL):
            if not self._open or self._open[-1][0] != statement:
                self._open.append((statement, []))
            self._open[-1][1].append(bindings or ())
        return True


@contextmanager
def _recording() -> Iterator[list[Recorder]]:
    """Watch every connection that is opened in the block."""
    recorders: list[Recorder] = []

    def watch(connection: apsw.Connection) -> None:
        recorders.append(Recorder())
        connection.exec_trace = recorders[-1]

    apsw.connection_hooks.append(watch)
    try:
        yield recorders
    finally:
        apsw.connection_hooks.remove(watch)


async def _recorded(path: Path, callers: int, handshakes: int) -> list[Statements]:
    """The batches of a run, from the first handshake on."""
    with _recording() as recorders:
        async with SQLiteStore(str(path)) as store:
            for recorder in recorders:
                recorder.batches.clear()  # To open the file is no part of a handshake.
            await _drive(store, callers, handshakes)
            return max((recorder.batches for recorder in recorders), key=len)


async def _open_and_close(path: Path) -> None:
    async with SQLiteStore(str(path)):
        pass


def _replay(path: Path, batches: list[Statements], handshakes: int) -> Figure:
    connection = open_connection(str(path))
    connection.wal_autocheckpoint(CHECKPOINT_PAGES)
    took = []
    began = time.perf_counter()
    for statements in batches:
        at = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        for statement, rows in statements:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
        took.append(time.perf_counter() - at)
    elapsed = time.perf_counter() - began
    connection.close()
    return Figure(handshakes / elapsed, sorted(took)[int(len(took) * 0.99)] * 3e3)  # Three commits to a handshake.


def _run(drive: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(drive)


def measure(folder: Path, callers: int, handshakes: int, rounds: int) -> list[Round]:
    """Run the contenders in turn, ``rounds`` times."""
    found = []
    few = max(callers, handshakes // 16)
    for number in range(rounds):
        here = folder / f"{callers}-{number}"
        here.mkdir()
        ours = _run(_through_the_store(here / "ours.db", callers, handshakes))
        each = _run(_through_the_store(here / "each.db", callers, few, batch_limit=1))
        alone = _run(_through_the_store(here / "alone.db", 1, few, batch_limit=1))
        batches = _run(_recorded(here / "note.db", callers, handshakes))
        _run(_open_and_close(here / "ceiling.db"))
        with ThreadPoolExecutor(1) as thread:
            ceiling = thread.submit(_replay, here / "ceiling.db", batches, handshakes).result()
        found.append(Round(ours, each, alone, ceiling, 3 * handshakes / len(batches)))
    return found


def summary(callers: int, rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds; a ratio is taken inside its round first."""
    return {
        "callers": callers,
        "handshakes_per_second": median(r.ours.per_second for r in rounds),
        "p99_ms": median(r.ours.p99_ms for r in rounds),
        "changes_per_commit": median(r.batch for r in rounds),
        "one_transaction_each_per_second": median(r.quickest_each for r in rounds),
        "one_transaction_each_p99_ms": median(r.one_each.p99_ms for r in rounds),
        "ratio_to_one_transaction_each": median(r.ours.per_second / r.quickest_each for r in rounds),
        "ratio_to_one_each_by_so_many": median(r.ours.per_second / r.one_each.per_second for r in rounds),
        "ceiling_per_second": median(r.ceiling.per_second for r in rounds),
        "ratio_to_ceiling": median(r.ours.per_second / r.ceiling.per_second for r in rounds),
    }
