"""What the head and an obligation's two lines bind: a head that was set back and an edited obligation are found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.stores import forging
from tests.stores.orders import T0, HandClock, orders, raw
from tests.stores.verifying import filled, found, messages
from twophp.core import obligation
from twophp.core.obligation import Command, Commit, Reserve, Rollback, Scan
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Records
from twophp.stores.sqlite import SQLiteStore

HOUR_MS = 3_600_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


# The head.


@pytest.mark.parametrize("taken_by", ["journal", "entry", "quota", "budget", "fence", "registrar_nonce"])
def test_a_head_that_would_give_an_id_away_twice_is_found(database: Path, taken_by: str) -> None:
    rows = {
        "entry": "UPDATE intent SET id = 99 WHERE server_correlation_id = 's1'",
        "quota": "INSERT INTO quota VALUES (99, 'alice', 1, 1, 1)",
        "budget": "INSERT INTO budget VALUES (99, 'publish', 1, 1)",
        "fence": "INSERT INTO fence VALUES (99, 'disk', 1, 'o1', 1)",
        "registrar_nonce": "INSERT INTO registrar_nonce VALUES (99, 'n', 'o', 1, 2)",
    }
    if taken_by in rows:
        raw(database, rows[taken_by])
    else:
        raw(database, "UPDATE link SET next_id = (SELECT max(record) FROM journal)")
        raw(database, "UPDATE head SET next_id = 1")
        forging.rechain(database)
    assert found(database)[0] == ("rewritten_head", 17, "")
    assert "was given away" in messages(database)


def test_a_head_whose_time_was_set_back_is_found(database: Path) -> None:
    raw(database, "UPDATE link SET at = at - 1")
    forging.rechain(database)
    assert found(database) == [("rewritten_head", 17, "")]
    assert "before that of line 17" in messages(database)


@pytest.mark.req("A-29")
def test_a_clock_that_was_set_back_after_an_arrival_is_no_finding(tmp_path: Path) -> None:
    """The line says when the request arrived, and the head is never behind its lines."""
    path = tmp_path / "orders.db"

    async def scenario() -> None:
        async with orders(path) as service:
            service.clock = HandClock(T0 + HOUR_MS)  # Only of arrivals: the store has a clock of its own.
            await service.take(1)
            scanned = obligation.scan_completed(scanned=0, leaked=0, now=T0 + HOUR_MS)
            await service.store.transact(AdHocCommand((), lambda _records: Change(answer=None, journal=(scanned,))))

    asyncio.run(scenario())
    assert raw(path, "SELECT max(at) FROM link") == [(T0 + HOUR_MS,)]
    assert raw(path, "SELECT max(observed_at) FROM journal") == [(T0 + HOUR_MS,)]
    assert found(path) == []


# Obligations.


async def take(store: SQLiteStore, command: Command, id_: str) -> None:
    """One step of one obligation, as the tracker writes it."""
    key = obligation.by_id(id_)

    def change(records: Records) -> Change:
        decision = obligation.decide(records.get(key), command, records.now)
        puts = tuple(Put(record=record, journal=decision.steps) for record in decision.records)
        return Change(answer=None, puts=puts)

    await store.transact(AdHocCommand((key,), change))


ENDS: dict[str, Command] = {
    "committed": Commit(trace_id="another"),
    "rolled-back": Rollback(trace_id="another"),
    "guarded": Rollback(trace_id="another", resolution="guard"),
    "leaked": Scan(),
}


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """An obligation of each end, under the name of its end, and one that is open; each settled by another trace."""
    path = tmp_path / "effects.db"

    async def fill() -> None:
        clock = HandClock()
        async with SQLiteStore(str(path), clock=clock) as store:
            for name in (*ENDS, "open"):
                timeout_ms = 2 * HOUR_MS if name == "open" else obligation.LEAK_TIMEOUT_MS
                await take(store, Reserve(name, "publish", "t1", timeout_ms=timeout_ms), name)
            clock.now += 1
            for name, command in ENDS.items():
                if name == "leaked":
                    clock.now += HOUR_MS
                await take(store, command, name)

    asyncio.run(fill())
    return path


@pytest.mark.req("A-74")
def test_however_an_obligation_ended_it_holds(effects: Path) -> None:
    assert raw(effects, "SELECT obligation_id, resolution FROM obligation ORDER BY id") == [
        *(("committed", "caller"), ("rolled-back", "caller"), ("guarded", "guard"), ("leaked", "leak_scan")),
        ("open", ""),
    ]
    assert found(effects) == []


@pytest.mark.parametrize("name", [*ENDS, "open"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("trace_id", "x"), ("flow", "revoke"), ("reserved_at", T0 - 1), ("resolution", "x"), ("settled_at", T0 + 9)],
)
def test_an_edited_obligation_is_found(effects: Path, name: str, column: str, value: object) -> None:
    raw(effects, f"UPDATE obligation SET {column} = ? WHERE obligation_id = ?", value, name)  # noqa: S608
    [(what, seq, subject)] = found(effects)
    assert (what, subject) == ("record_differs", name)
    first, last = lines_about(effects, name)
    assert seq == (last if column in {"resolution", "settled_at"} else first)
    assert f"obligation {name}: {column} is {value}, expected " in messages(effects)


def lines_about(path: Path, name: str) -> tuple[object, ...]:
    [row] = raw(path, "SELECT min(seq), max(seq) FROM journal WHERE subject = ?", name)
    return row


def test_an_obligation_without_the_line_that_reserved_it_is_found(effects: Path) -> None:
    forging.delete(effects, 1, 1)
    assert ("missing_lines", 1, "") in found(effects)
    assert "obligation committed: trace_id is t1, expected None" in messages(effects)
