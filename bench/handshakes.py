"""Durable handshakes per second through the SQLite store, and what they are to be compared with.

    ours       register, confirm and settle through ``Intents``: three durable changes, payload and response sealed
    one_each   the same code, one transaction per change, each COMMIT on the loop as ours is (a)
    in_thread  the same again, each COMMIT in a thread, as an asynchronous driver does it
    ceiling    a thread that does nothing but the statements `ours` wrote, in the batches `ours` made (b)

All of them run in turn, several rounds, on fresh files in one directory; a ratio compares two figures of one round. The
first three run on uvloop, as a service under uvicorn does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import apsw
import msgspec
import uvloop

from twophp.core.entry import Writer
from twophp.core.identity import intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import Mode, Phase
from twophp.core.phase import Confirm, Register, Settle
from twophp.core.policy import Policy
from twophp.engine.intents import Intents
from twophp.kernel.apply import Operations
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.batch import Batch
from twophp.stores.sqlite.commit_place import CommitPlace
from twophp.stores.sqlite.connection import migrate, open_connection
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.writer import BATCH_LIMIT, CHECKPOINT_PAGES
from twophp.stores.vault import AesGcmVault, KeyRing

PAYLOAD = b'{"sku": "A-1", "quantity": 3, "note": "%s"}' % (b"x" * 260)
POLICY = Policy.standard()
PRINCIPAL = principal_digest("bearer", "https://issuer.example", "checkout")
DIGEST = payload_digest("application/json", PAYLOAD)

Statements: TypeAlias = list[tuple[str, list[tuple[Any, ...]]]]


class Figure(msgspec.Struct, frozen=True):
    """One run: how many per second, and the slow end of how long one took."""

    per_second: float
    p99_ms: float


class Round(msgspec.Struct, frozen=True):
    """The contenders, one after the other."""

    ours: Figure
    one_each: Figure
    in_thread: Figure
    ceiling: Figure
    batch: float


class Commands(msgspec.Struct, frozen=True):
    """What one handshake asks for, made beforehand: ids and fingerprints are their caller's work, not the store's."""

    register: Register
    confirm: Confirm


SETTLE = Settle(fence=1, succeeded=True, status=201, resource_id="42")


def _commands() -> Commands:
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
    asked = [[_commands() for _ in range(handshakes // callers)] for _ in range(callers)]
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


async def _through_the_store(path: Path, callers: int, handshakes: int, batch_limit: int) -> Figure:
    async with SQLiteStore(str(path), batch_limit=batch_limit) as store:
        await _drive(store, callers, callers)  # Warm up: files, caches, statements.
        return await _drive(store, callers, handshakes)


@contextmanager
def _commits(*, on_the_loop: bool) -> Iterator[None]:
    """Every COMMIT on the loop, or every one in the thread, whatever the disk is like."""
    decide = CommitPlace.is_on_loop
    CommitPlace.is_on_loop = lambda _place, _now_s: on_the_loop  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        CommitPlace.is_on_loop = decide  # type: ignore[method-assign]


@contextmanager
def _recording() -> Iterator[list[Statements]]:
    """Note every statement of every batch, as it was executed."""
    batches: list[Statements] = []
    write = Batch._write  # noqa: SLF001 - the ceiling must execute exactly this.

    def write_and_note(batch: Batch, operations: Operations) -> None:
        statements: Statements = []
        execute = batch._executemany  # noqa: SLF001

        def note(statement: str, rows: list[tuple[Any, ...]]) -> Any:
            statements.append((statement, rows))
            return execute(statement, rows)

        batch._executemany = note  # type: ignore[assignment] # noqa: SLF001
        write(batch, operations)
        batches.append(statements)

    Batch._write = write_and_note  # type: ignore[method-assign,assignment] # noqa: SLF001
    try:
        yield batches
    finally:
        Batch._write = write  # type: ignore[method-assign] # noqa: SLF001


def _replay(path: Path, batches: list[Statements]) -> Figure:
    connection = open_connection(str(path))
    migrate(connection, str(path))
    pages = 0

    def count(_connection: apsw.Connection, _name: str, log_pages: int) -> int:
        nonlocal pages
        pages = log_pages
        return apsw.SQLITE_OK

    connection.set_wal_hook(count)
    took = []
    began = time.perf_counter()
    for statements in batches:
        at = time.perf_counter()
        connection.execute(sql("begin"))
        for statement, rows in statements:
            connection.executemany(statement, rows)
        connection.execute(sql("commit"))
        took.append(time.perf_counter() - at)
        if pages >= CHECKPOINT_PAGES:
            connection.wal_checkpoint()
    elapsed = time.perf_counter() - began
    connection.close()
    handshakes = sum(len(rows) for batch in batches for statement, rows in batch if statement == sql("insert_intent"))
    return Figure(handshakes / elapsed, sorted(took)[int(len(took) * 0.99)] * 3e3)  # Three commits to a handshake.


def _run(drive: Coroutine[Any, Any, Figure]) -> Figure:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(drive)


def measure(folder: Path, callers: int, handshakes: int, rounds: int) -> list[Round]:
    """Run the contenders in turn, ``rounds`` times."""
    found = []
    for number in range(rounds):
        here = folder / f"{callers}-{number}"
        here.mkdir()
        ours = _run(_through_the_store(here / "ours.db", callers, handshakes, BATCH_LIMIT))
        few = max(callers, handshakes // 16)
        with _commits(on_the_loop=False):
            in_thread = _run(_through_the_store(here / "thread.db", callers, few, 1))
        with _commits(on_the_loop=True):
            each = _run(_through_the_store(here / "each.db", callers, few, 1))
        with _recording() as batches:
            _run(_through_the_store(here / "note.db", callers, handshakes, BATCH_LIMIT))
        with ThreadPoolExecutor(1) as thread:
            ceiling = thread.submit(_replay, here / "ceiling.db", batches).result()
        journal = sum(len(rows) for batch in batches for text, rows in batch if text == sql("append_journal"))
        found.append(Round(ours, each, in_thread, ceiling, journal / len(batches)))
    return found


def summary(callers: int, rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds; a ratio is taken inside its round first."""
    return {
        "callers": callers,
        "handshakes_per_second": median(r.ours.per_second for r in rounds),
        "p99_ms": median(r.ours.p99_ms for r in rounds),
        "changes_per_commit": median(r.batch for r in rounds),
        "one_transaction_each_per_second": median(r.one_each.per_second for r in rounds),
        "one_transaction_each_p99_ms": median(r.one_each.p99_ms for r in rounds),
        "ratio_to_one_transaction_each": median(r.ours.per_second / r.one_each.per_second for r in rounds),
        "ratio_to_one_each_in_a_thread": median(r.ours.per_second / r.in_thread.per_second for r in rounds),
        "ceiling_per_second": median(r.ceiling.per_second for r in rounds),
        "ratio_to_ceiling": median(r.ours.per_second / r.ceiling.per_second for r in rounds),
    }
