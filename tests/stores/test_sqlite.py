"""What is special about SQLite: batches, the queue, the lock, schemas, and several processes on one file."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from twophp.core.errors import (
    ConfigError,
    ConstraintViolation,
    RecordTampered,
    SchemaMismatch,
    StoreError,
    StoreOverloaded,
    StoreUnavailable,
)
from twophp.core.intent import Intent
from twophp.core.obligation import by_flow_and_key
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Statement
from twophp.stores.sqlite import SQLiteStore, connection, record_cache, writer
from twophp.stores.sqlite.sql import migrations
from twophp.stores.testing import scene
from twophp.stores.testing.scene import register

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path, clock=scene.HandClock()) as store:
        yield store


def count_commits(store: SQLiteStore) -> Counter[str]:
    """From now on: how many statements of each kind the writer's connection runs."""
    seen: Counter[str] = Counter()
    store._connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.update([event["sql"].split()[0].rstrip(";")]))
    return seen


@pytest.fixture
def other(path: str) -> Iterator[apsw.Connection]:
    """A connection of another program to the same file."""
    found = apsw.Connection(path)
    yield found
    found.close()


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def size(path: str) -> int:
    return Path(path).stat().st_size


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


# Opening.


@pytest.mark.parametrize("weak", [":memory:", ""])
async def test_what_cannot_be_durable_is_refused(weak: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        SQLiteStore(weak)
    assert refusal.value.code == "weak_durability"


async def test_a_weaker_build_is_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(apsw.Connection):
        """Takes the setting and forgets it, as some builds and file systems do."""

        def execute(self, statements: str, *args: Any, **kwargs: Any) -> apsw.Cursor:
            return super().execute(statements.replace("synchronous = FULL", "synchronous = NORMAL"), *args, **kwargs)

    monkeypatch.setattr(apsw, "Connection", Forgetful)
    with pytest.raises(ConfigError, match="synchronous=FULL, got wal and 1"):
        SQLiteStore(path)


async def test_durability_is_what_was_promised(store: SQLiteStore) -> None:
    settings = {
        name: store._connection.execute(f"PRAGMA {name}").get
        for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync", "wal_autocheckpoint")
    }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "wal_autocheckpoint": 0,
    }


@pytest.mark.parametrize("nowhere", ["/proc/ledger.db", "/nowhere/at/all/ledger.db", "/"])
async def test_where_nothing_can_be_written_nothing_is_opened(nowhere: str) -> None:
    with pytest.raises(StoreUnavailable) as refusal:
        SQLiteStore(nowhere)
    assert refusal.value.code == "store_cannot_open"
    assert ("there is no folder /nowhere/at/all" in str(refusal.value)) == nowhere.startswith("/nowhere")


async def test_what_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"not a database " * 1000)
    before = file.read_bytes()
    with pytest.raises(SchemaMismatch) as refusal:
        SQLiteStore(str(file))
    assert refusal.value.code == "not_a_database"
    assert file.read_bytes() == before


async def test_another_programs_database_is_left_alone(path: str, tmp_path: Path) -> None:
    other = apsw.Connection(path)
    other.execute("CREATE TABLE theirs (id); PRAGMA user_version = 7")
    other.close()
    before = content(path)
    with pytest.raises(SchemaMismatch) as refusal:
        SQLiteStore(path)
    assert refusal.value.code == "foreign_database"
    assert content(path) == before
    assert names(tmp_path) == ["ledger.db"]


async def test_a_newer_schema_is_refused_and_left_alone(path: str) -> None:
    async with SQLiteStore(path) as store:
        await register(store)
    newest = migrations()[-1][0]
    other = apsw.Connection(path)
    other.execute(f"PRAGMA user_version = {newest + 1}")
    other.close()
    before = content(path)
    with pytest.raises(SchemaMismatch, match=f"schema {newest + 1} is newer") as refusal:
        SQLiteStore(path)
    assert refusal.value.code == "schema_too_new"
    assert content(path) == before


async def test_an_older_schema_is_migrated(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SQLiteStore(path) as store:
        intent = await register(store)
    newest = migrations()[-1][0]
    later = [*migrations(), (newest + 1, "CREATE TABLE later (id); ALTER TABLE intent RENAME TO x;")]
    later += [(newest + 2, "ALTER TABLE x RENAME TO intent;")]
    monkeypatch.setattr(connection, "migrations", lambda _package: later)
    async with SQLiteStore(path) as store:
        assert await scene.read(store, scene.pair_of(intent)) == intent
        assert store._connection.execute("PRAGMA user_version").get == newest + 2
        assert store._connection.execute("SELECT count(*) FROM later").get == 0


async def test_a_migration_that_fails_changes_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SQLiteStore(path) as store:
        intent = await register(store)
    newest = migrations()[-1][0]
    broken = [*migrations(), (newest + 1, "CREATE TABLE half (id);"), (newest + 2, "CREATE TABLE half (id);")]
    with monkeypatch.context() as patch:
        patch.setattr(connection, "migrations", lambda _package: broken)
        with pytest.raises(StoreError, match="half"):
            SQLiteStore(path)
    async with SQLiteStore(path) as store:
        assert await scene.read(store, scene.pair_of(intent)) == intent
        assert store._connection.execute("PRAGMA user_version").get == newest
        assert store._connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").get == 0


# Batches.


async def test_waiting_callers_share_a_commit(store: SQLiteStore) -> None:
    seen = count_commits(store)
    await asyncio.gather(*(register(store, str(number)) for number in range(200)))
    assert seen["COMMIT"] == 1
    assert len(await scene.verified_journal(store)) == 200


async def test_a_batch_has_a_limit(path: str) -> None:
    async with SQLiteStore(path, batch_limit=50) as store:
        seen = count_commits(store)
        await asyncio.gather(*(register(store, str(number)) for number in range(200)))
        assert seen["COMMIT"] == 4


async def test_a_refusal_costs_no_commit_and_a_look_no_lock(store: SQLiteStore) -> None:
    intent = await register(store)
    seen = count_commits(store)
    await register(store)
    assert (seen["COMMIT"], seen["BEGIN"]) == (0, 1)
    assert await scene.read(store, scene.pair_of(intent)) == intent
    assert (seen["COMMIT"], seen["BEGIN"]) == (0, 1)


async def test_a_read_waits_for_no_writer(store: SQLiteStore) -> None:
    """Another handle holds the write lock for as long as it likes."""
    intent = await register(store)
    other = apsw.Connection(store.path)
    other.execute("BEGIN IMMEDIATE; UPDATE intent SET version = 99")
    assert await scene.read(store, scene.pair_of(intent)) == intent
    other.execute("ROLLBACK")
    other.close()


async def test_a_look_refuses_a_record_that_was_set_back_by_hand(store: SQLiteStore) -> None:
    intent = await scene.confirm(store, await register(store))
    other = apsw.Connection(store.path)
    other.execute("UPDATE intent SET phase = 'WAITING_CONFIRM'")
    other.close()
    with pytest.raises(RecordTampered):
        await scene.read(store, scene.pair_of(intent))


@pytest.mark.parametrize(("is_known", "savepoints"), [(True, 0), (False, 21)])
async def test_a_bad_change_costs_the_others_one_more_round_at_most(
    store: SQLiteStore, is_known: bool, savepoints: int
) -> None:
    """Nothing if the record that it collides with is known; else the database refuses it, and the batch is redone."""
    await scene.reserve(store, "holder", "key")
    if not is_known:
        store._writer._known.forget()
    seen = count_commits(store)
    thief = scene.obligation_change(scene.fresh_obligation("thief", "key")).puts
    outcomes = await asyncio.gather(
        *(register(store, str(number)) for number in range(20)), scene.write(store, *thief), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Intent] * 20 + [ConstraintViolation]
    assert (seen["COMMIT"], seen["SAVEPOINT"]) == (1, savepoints)


async def test_after_a_bad_change_nothing_stale_is_known(store: SQLiteStore) -> None:
    """Reserve, settle and a bad change in one batch: the key that was freed can be taken by the next."""
    thief = scene.obligation_change(scene.fresh_obligation("thief", "other")).puts
    await scene.reserve(store, "holder", "other")
    outcomes = await asyncio.gather(
        scene.reserve(store, "one", "key"),
        scene.finish(store, "one"),
        scene.write(store, *thief),
        return_exceptions=True,
    )
    assert isinstance(outcomes[2], StoreError)
    assert await scene.read(store, by_flow_and_key("publish", "key")) is None
    assert (await scene.reserve(store, "two", "key")).changed


@pytest.mark.parametrize("name", ["\ud800", "x" * 2_000_000], ids=["not text", "too big"])
async def test_what_the_database_cannot_hold_is_refused_alone(store: SQLiteStore, name: str) -> None:
    store._connection.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000_000)
    outcomes = await asyncio.gather(
        register(store, "1"), register(store, name), register(store, "2"), return_exceptions=True
    )
    assert [isinstance(outcome, Intent) for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1], StoreError)


async def test_statements_are_part_of_the_change(store: SQLiteStore) -> None:
    store._connection.execute("CREATE TABLE mine (x CHECK (x < 10))")
    put = scene.carrier("statements", scene.client_row())

    def change(*values: int) -> Change:
        statement = Statement(sql="INSERT INTO mine VALUES (?)", rows=[(value,) for value in values])
        return Change(answer=None, puts=(put,), statements=(statement,))

    with pytest.raises(StoreError):
        await store.transact(AdHocCommand((), lambda _records: change(1, 99)))
    assert await store.entries(Find("server-9")) == []
    await store.transact(AdHocCommand((), lambda _records: change(1, 2)))
    assert len(await store.entries(Find("server-9"))) == 1
    assert store._connection.execute("SELECT sum(x) FROM mine").get == 3


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("INSERT INTO mine VALUES (?) RETURNING x", [(1,), (2,), (3,)]),
        ("SELECT 1; INSERT INTO mine VALUES (1), (2), (3)", [()]),
    ],
)
async def test_statements_that_return_rows_are_run_to_their_end(
    store: SQLiteStore, sql: str, rows: list[tuple[int, ...]]
) -> None:
    store._connection.execute("CREATE TABLE mine (x)")
    change = Change(answer=None, statements=(Statement(sql=sql, rows=rows),))
    await store.transact(AdHocCommand((), lambda _records: change))
    assert store._connection.execute("SELECT sum(x) FROM mine").get == 6


async def test_a_statement_that_is_no_sql_affects_no_other_change(store: SQLiteStore) -> None:
    nonsense = Change(answer=None, statements=(Statement(sql="nonsense", rows=[()]),))
    outcomes = await asyncio.gather(
        register(store), store.transact(AdHocCommand((), lambda _records: nonsense)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Intent, StoreError]


# The queue and the lock.


async def test_a_full_queue_refuses_at_once_and_queues_nothing(path: str) -> None:
    async with SQLiteStore(path, capacity=3) as store:
        calls = [asyncio.ensure_future(register(store, str(number))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(StoreOverloaded):
            await register(store, "one too many")
        await asyncio.gather(*calls)
        assert len(await store.changes(10)) == 3
        await register(store, "later")


async def test_a_held_lock_does_not_hold_the_loop(store: SQLiteStore, other: apsw.Connection) -> None:
    """While another process holds the lock the loop serves on, and the change is made when the lock is free."""
    other.execute("BEGIN IMMEDIATE")
    call = asyncio.ensure_future(register(store))
    for _tick in range(1_000):
        await asyncio.sleep(0)
    assert not call.done()  # A BEGIN on the loop would have waited the whole timeout by now, and failed.
    assert await store.entries(Find("server-1")) == []
    other.execute("ROLLBACK")
    assert (await call).version == 1


async def test_a_lock_that_never_comes_free_is_an_error(
    store: SQLiteStore, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_MS", 1)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable) as refusal:
        await register(store)
    assert refusal.value.code == "store_busy"
    other.execute("ROLLBACK")
    assert (await register(store)).version == 1


async def test_another_connections_commit_is_noticed(store: SQLiteStore, other: apsw.Connection) -> None:
    """The records that this handle has cached count only until another connection writes."""
    intent = await register(store)
    other.execute("UPDATE intent SET version = 7")
    assert (await scene.read(store, scene.pair_of(intent))).version == 7


# Bounds.


async def test_the_log_is_folded_back_when_it_is_long(store: SQLiteStore, path: str) -> None:
    for number in range(20):
        await register(store, str(number), seals={"payload": scene.sealed(bytes(1024 * 1024))})
    assert size(f"{path}-wal") < 2 * writer.CHECKPOINT_PAGES * 4096
    assert size(path) > writer.CHECKPOINT_PAGES * 4096


async def test_memory_does_not_grow_with_what_is_stored(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cache, "GENERATION", 256)

    async def handshakes(start: int) -> None:
        await asyncio.gather(*(handshake(str(name)) for name in range(start, start + 1_000)))

    async def handshake(name: str) -> None:
        await scene.settle(store, await scene.confirm(store, await register(store, name)))

    def held() -> int:
        gc.collect()
        return len(gc.get_objects())

    await handshakes(0)
    after_one, cache = held(), apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)[0]
    await handshakes(1_000)
    await handshakes(2_000)
    assert held() - after_one < 200
    assert apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)[0] - cache < 3 * connection.CACHE_KIB * 1024
    assert store.load().waiting == 0


# Several processes.

PROCESSES, ROUNDS = 4, 100


@pytest.mark.req("A-52", "A-33")
async def test_processes_share_a_file_without_losing_anything(store: SQLiteStore, path: str) -> None:
    """Each makes changes of its own and changes to one common record, as fast as it can, all at the same time."""
    common = await scene.confirm(store, await register(store, "common"))
    program = [sys.executable, "-m", "tests.stores.sharing", path, str(ROUNDS)]
    processes = [
        await asyncio.create_subprocess_exec(*program, str(number), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for number in range(PROCESSES)
    ]
    for process in processes:  # No process starts before all are ready.
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * PROCESSES
    versions = sorted(int(line) for output, _ in outputs for line in output.split())
    assert versions == list(range(common.version + 1, common.version + PROCESSES * ROUNDS + 1))
    assert (await scene.read(store, scene.pair_of(common))).version == versions[-1]
    assert len(await scene.verified_journal(store)) == 2 + PROCESSES * ROUNDS
    assert len(await store.changes(scene.EVERYTHING)) == 1 + PROCESSES * ROUNDS


async def test_a_copy_of_the_files_is_a_database(store: SQLiteStore, path: str, tmp_path: Path) -> None:
    """Every acknowledged change is in the file and its log, at any moment."""
    intent = await register(store, seals={"payload": scene.sealed(b"payload")})
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (path, f"{path}-wal"):
        shutil.copy(file, copy)
    async with SQLiteStore(str(copy / "ledger.db")) as recovered:
        assert await scene.read(recovered, scene.pair_of(intent)) == intent
        assert await recovered.unseal(scene.pair_of(intent), "payload") == b"payload"


def test_many_processes_may_make_one_file_at_once(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom twophp.stores.sqlite import SQLiteStore\n"
        "sys.stdin.readline()\nfor number in range(10): SQLiteStore(f'{sys.argv[1]}/{number}.db')\nprint('made')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    crowd = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]  # noqa: S603
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in crowd] == ["made\n"] * 6
