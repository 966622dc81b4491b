"""Retention and sweeps skip what cannot be deleted, however much of it comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from twophp.core.intent import Phase
from twophp.core.policy import DAY_MS
from twophp.core.records import Key
from twophp.engine.intents import Intents
from twophp.engine.obligations.rules import forget_settled
from twophp.ports import Find, Obligations, Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing.scene import (
    POLICY,
    WRITER,
    HandClock,
    confirm,
    finish,
    register,
    reserve,
    settle,
)
from twophp.stores.vault import AesGcmVault, KeyRing
from twophp.storing.bites import purge

pytestmark = pytest.mark.anyio

STUCK = 300
"""More than any page that retention or a sweep looks at."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def store(tmp_path: Path, clock: HandClock) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(str(tmp_path / "ledger.db"), clock=clock) as store:
        yield store


def keep(store: SQLiteStore, table: str, up_to: int, change: str = "DELETE") -> None:
    """As a constraint of the application's would: these rows cannot be changed so."""
    connection = apsw.Connection(store.path)
    connection.execute(
        f"CREATE TRIGGER kept BEFORE {change} ON {table} WHEN old.id <= {up_to}"
        " BEGIN SELECT RAISE(ABORT, 'it is referred to'); END"
    )
    connection.close()


@pytest.mark.req("A-59")
async def test_obligations_are_forgotten_behind_many_that_are_still_reserved(
    store: SQLiteStore, clock: HandClock
) -> None:
    await asyncio.gather(*(reserve(store, f"reserved-{number}", f"k{number}") for number in range(STUCK)))
    await reserve(store, "settled", "last")
    await finish(store, "settled")
    clock.now += 31 * DAY_MS
    assert await forget_settled(store, 30 * DAY_MS) == 1
    assert len(await store.obligations(Obligations(limit=1_000))) == STUCK


@pytest.mark.req("A-59")
async def test_obligations_are_forgotten_behind_many_that_cannot_be(store: SQLiteStore, clock: HandClock) -> None:
    await asyncio.gather(*(reserve(store, f"o{number}", f"k{number}") for number in range(STUCK + 2)))
    await asyncio.gather(*(finish(store, f"o{number}") for number in range(STUCK + 2)))
    keep(store, "obligation", STUCK)
    clock.now += 31 * DAY_MS
    assert await forget_settled(store, 30 * DAY_MS) == 2
    assert len(await store.obligations(Obligations(limit=1_000))) == STUCK


async def forgotten(store: SQLiteStore, clock: HandClock, count: int) -> Intents:
    """So many intents that are due to be forgotten, by their records and then by their rows."""
    registered = await asyncio.gather(*(register(store, str(number)) for number in range(count)))
    confirmed = await asyncio.gather(*(confirm(store, intent) for intent in registered))
    await asyncio.gather(*(settle(store, intent) for intent in confirmed))
    intents = Intents(store, AesGcmVault(KeyRing.generate()), WRITER)
    clock.now += 2 * DAY_MS
    while any(one.changed for one in await intents.sweep(lambda _intent: POLICY, "me", before=clock.now + 1)):
        pass  # The payloads go first.
    await store.synced(await store.changes(1_000), clock.now)
    clock.now += 8 * DAY_MS
    return intents


@pytest.mark.req("A-59")
async def test_a_sweep_goes_past_many_that_the_store_refuses(store: SQLiteStore, clock: HandClock) -> None:
    intents = await forgotten(store, clock, STUCK + 2)
    keep(store, "intent", STUCK, "UPDATE OF forgotten")
    left: set[Key] = set()
    gone = 0
    for _round in range(4):
        decisions = await intents.sweep(lambda _intent: POLICY, "me", before=clock.now + 1, left=left)
        gone += sum(one.intent is not None and one.intent.phase is Phase.ABSENT for one in decisions)
    assert (gone, len(left)) == (2, STUCK)


@pytest.mark.req("A-59", "A-57")
async def test_rows_are_purged_behind_many_that_cannot_be(store: SQLiteStore, clock: HandClock) -> None:
    intents = await forgotten(store, clock, STUCK + 2)
    while await intents.sweep(lambda _intent: POLICY, "me", before=clock.now + 1):
        pass
    keep(store, "intent", STUCK)
    clock.now += 31 * DAY_MS
    assert await purge(store, 30 * DAY_MS) == 2
    assert len(await store.entries(Tail(limit=1_000))) == STUCK
    assert not await store.entries(Find(f"client-{STUCK}"))
