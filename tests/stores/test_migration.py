"""A file of schema 12 becomes one of today: no interruption loses a row, and its journal still holds."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.cli.running import run
from tests.stores.older import OLD_SCHEMA, older
from tests.stores.orders import POLICY, T0, HandClock, orders, payload_of, raw
from tests.stores.verifying import filled, forgotten, found
from twophp.core.errors import SchemaMismatch, StoreUnavailable, TwoPHPError
from twophp.core.intent import Phase
from twophp.ports import Tail
from twophp.stores.sqlite import hashes, widening
from twophp.stores.sqlite.connection import migrate, open_connection
from twophp.stores.sqlite.new_file import make_tables
from twophp.stores.sqlite.reader import ledger_reader
from twophp.stores.sqlite.reading import holds_seals
from twophp.stores.sqlite.sql import migrations
from twophp.stores.sqlite.verify import ProvenHead, verify
from twophp.stores.urls import open_vault

LATER = HandClock(T0 + 10 * (POLICY.ttl_ms + POLICY.delta_ms))


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four settled orders, one that waits, one that was abandoned, an obligation; and a payload that is large."""
    monkeypatch.setattr(widening, "STEP", 2)
    path = filled(tmp_path / "orders.db")

    async def more() -> None:
        async with orders(path, clock=HandClock(LATER.now)) as service:
            await service.register(7, b"x" * 5_000)

    asyncio.run(more())
    return older(path)


def told(path: Path) -> list[Any]:
    """What the ledger says of every call, with its evidence."""
    with ledger_reader(str(path)) as reader:
        rows = reader.entries(Tail(100))
        return [
            (row, reader.evidence(row.client_correlation_id, row.server_correlation_id).intent,
             [line.event for line in reader.evidence(row.client_correlation_id, row.server_correlation_id).lines])
            for row in rows
        ]  # fmt: skip


def upgrade(path: Path) -> None:
    connection = open_connection(str(path))
    migrate(connection, str(path))
    connection.close()


def old_head(path: Path) -> ProvenHead:
    [(seq, digest)] = raw(path, "SELECT seq, hash FROM head")
    return ProvenHead(seq, digest)  # type: ignore[arg-type]


@pytest.mark.req("P-9.1-a", "A-52")
def test_everything_is_there_afterwards_and_the_journal_holds(old: Path) -> None:
    noted, before = old_head(old), told(old.with_name("orders.db"))
    upgrade(old)
    assert told(old) == before
    assert found(old) == found(old, noted) == [], "a head that was noted before the upgrade is still proven"
    assert verify(str(old), vault=open_vault(f"sqlite:///{old}")).holds, "every sealed part opens"
    upgrade(old)
    assert told(old) == before, "once is enough"


def everything(connection: apsw.Connection) -> dict[str, list[Any]]:
    """Each object of a schema as it was made, and each row in it."""
    objects = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    tables = [name for kind, name, _made_by in objects if kind == "table"]
    rows: dict[str, list[Any]] = {str(name): connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}  # noqa: S608
    return {"objects": sorted(objects, key=str), **rows}


@pytest.mark.parametrize("package", ["twophp.stores.sqlite", "twophp.central.stores.sqlite"])
def test_a_new_file_is_what_all_migrations_make_one_after_the_other(package: str) -> None:
    new, stepwise = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for connection in (new, stepwise):
        hashes.teach(connection)
    make_tables(new, migrations(package))
    for _number, script in migrations(package):
        stepwise.execute(script)
    assert everything(new) == everything(stepwise)


def test_life_goes_on_with_what_was_migrated(old: Path) -> None:
    async def go_on() -> None:
        async with orders(old, clock=HandClock(LATER.now)) as service:
            assert (await service.register(0)).phase is Phase.COMMITTED, "a repeat is answered"
            assert (await service.settle(7)).phase is Phase.COMMITTED
            settled = await service.find(7)
            assert await service.intents.payload(settled) == b"x" * 5_000
            assert await service.intents.payload(await service.find(1)) == payload_of(1)
            after = [line.event.after for line in await service.store.history(settled.keys()[0])]
            assert after == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"], "one history over both journals"

    noted = old_head(old)
    asyncio.run(go_on())
    assert found(old, noted) == []
    asyncio.run(forgotten(old))
    assert found(old, noted) == []


@pytest.mark.parametrize("tampering", [
    ("UPDATE old_journal SET detail = 'x' WHERE seq = 5", "edited_line"),
    ("DELETE FROM old_journal WHERE seq = 5", "missing_lines"),
    ("DELETE FROM old_journal WHERE seq > 10", "truncated"),
    ("UPDATE head SET hash = x'00'", "rewritten_head"),
])  # fmt: skip
def test_a_change_of_the_old_journal_is_found(old: Path, tampering: tuple[str, str]) -> None:
    upgrade(old)
    statement, what = tampering
    with pytest.raises(apsw.ConstraintError) if "old_journal" in statement else _nothing():
        apsw.Connection(str(old)).execute(statement)
    raw(old, statement)
    assert what in [finding[0] for finding in found(old)]


def test_the_old_tables_are_refused_to_readers_until_it_is_done(old: Path) -> None:
    for schema in (OLD_SCHEMA, 13):
        if schema != OLD_SCHEMA:
            stop_after(old, lambda number: number == 2)
            assert raw(old, "PRAGMA user_version") == [(schema,)]
        with pytest.raises(SchemaMismatch, match="start its service once, which migrates it") as refused:
            verify(str(old))
        assert refused.value.code == "schema_too_old"
        assert holds_seals(str(old)), "no process makes another ring until it is migrated"


def stop_after(path: Path, is_end: Callable[[int], bool]) -> None:
    """Stop between two steps."""
    steps = 0

    def progress(_done: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        if is_end(steps):
            raise StoreUnavailable("stopped")

    connection = open_connection(str(path))
    with pytest.raises(StoreUnavailable):
        migrate(connection, str(path), progress=progress)


@pytest.mark.req("A-52")
@pytest.mark.parametrize("turn", range(6))
def test_killed_at_any_statement_it_goes_on_where_it_was(old: Path, turn: int) -> None:
    before, noted = told(old.with_name("orders.db")), old_head(old)
    for at in range(6 + 9 * turn, 6 + 9 * turn + 9, 4):  # Several kills on the way, each a little further.
        killed(old, at)
    upgrade(old)
    assert told(old) == before
    assert found(old, noted) == []


def killed(path: Path, statements: int) -> None:
    """A process of its own begins to migrate and is killed before this statement; or ends, if it is done by then."""
    child = os.fork()
    if not child:  # pragma: no cover - it never comes back.
        left = statements
        connection = open_connection(str(path))

        def count(_cursor: Any, _statement: str, _bindings: Any) -> bool:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        connection.exec_trace = count
        migrate(connection, str(path))
        os._exit(0)
    os.waitpid(child, 0)


def test_a_full_disk_loses_nothing(old: Path) -> None:
    before = told(old.with_name("orders.db"))
    connection = open_connection(str(old))
    pages = connection.execute("PRAGMA page_count").get
    connection.execute(f"PRAGMA max_page_count = {pages + 12}")
    with pytest.raises(TwoPHPError) as refused:
        migrate(connection, str(old))
    assert refused.value.code == "disk_full"
    upgrade(old)
    assert told(old) == before
    assert found(old) == []


def test_two_may_migrate_at_once(old: Path) -> None:
    before = told(old.with_name("orders.db"))
    one = open_connection(str(old))
    turns = 0

    def other_goes_first(_done: int, _total: int) -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            upgrade(old)

    migrate(one, str(old), progress=other_goes_first)
    one.close()
    assert told(old) == before


def test_a_checkpoint_of_another_process_does_not_stop_the_migration(old: Path) -> None:
    before = told(old.with_name("orders.db"))
    other = open_connection(str(old))  # Whose log and shared memory are there from here on.
    other.execute("SELECT count(*) FROM sqlite_schema")
    child, ours = held_by_another_process(old.with_name(old.name + "-shm"))
    try:
        with pytest.raises(apsw.BusyError):
            other.wal_checkpoint()
        upgrade(old)
    finally:
        os.close(ours)
        os.waitpid(child, 0)
    other.close()
    assert told(old) == before
    assert found(old) == []


def held_by_another_process(shared_memory: Path) -> tuple[int, int]:
    """The lock of a checkpoint: byte 121 of the shared memory. Held until the descriptor is closed."""
    is_held, held = os.pipe()
    wait, ours = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover - it never comes back.
        os.close(ours)
        file = os.open(shared_memory, os.O_RDWR)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 121)
        os.write(held, b"1")
        os.read(wait, 1)
        os._exit(0)
    os.close(held)
    os.close(wait)
    assert os.read(is_held, 1) == b"1"
    os.close(is_held)
    return child, ours


def test_keys_with_the_same_hashes_are_parted(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = told(old.with_name("orders.db"))
    monkeypatch.setattr(hashes, "client_hash", lambda _text: 7)
    monkeypatch.setattr(hashes, "who_hash", lambda _text: 3)
    upgrade(old)
    assert sorted(raw(old, "SELECT who FROM live_intent")) == [(place,) for place in range(3, 3 + len(before))]
    assert told(old) == before
    assert found(old) == []


def test_the_command_line_migrates_and_says_so(old: Path) -> None:
    migrated = run("ledger", "migrate", old, "--json")
    assert migrated.exit_code == 0, migrated.stderr
    assert f'"schema_before": {OLD_SCHEMA}' in migrated.stdout
    assert found(old) == []
    assert "is of this version's format" in run("ledger", "migrate", old).stdout
    assert run("ledger", "migrate", old.with_name("none.db")).exit_code == 2
    assert not old.with_name("none.db").exists()


class _nothing:  # noqa: N801
    def __enter__(self) -> None: ...
    def __exit__(self, *_about: object) -> None: ...
