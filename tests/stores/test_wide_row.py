"""One row for an intent: keys whose hashes collide, parts that are large, rows that central has had, and who writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from tests.stores.orders import HandClock
from tests.stores.verifying import found
from twophp.core.errors import ConstraintViolation
from twophp.core.intent import by_logical_key, by_pair
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Find, Put, Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing import scene
from twophp.stores.testing.changes import new_intent
from twophp.stores.testing.scene import pair_of, register, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(str(tmp_path / "ledger.db"), clock=HandClock()) as store:
        yield store


@pytest.mark.req("A-32", "REG-1-05")
async def test_two_callers_may_use_the_same_client_id(store: SQLiteStore) -> None:
    """The everyday case: one hash of the client's id, two principals."""
    for number, who in enumerate(("alice", "bob", "carol")):
        command = scene.registration("1", principal=who, server_correlation_id=f"server-{number}")
        await scene.act(store, by_logical_key(who, "client-1"), command)
    for number, who in enumerate(("alice", "bob", "carol")):
        intent = await scene.read(store, by_logical_key(who, "client-1"))
        assert (intent.principal, intent.server_correlation_id) == (who, f"server-{number}")
        assert await scene.read(store, by_pair("client-1", f"server-{number}")) == intent
    assert len(await store.entries(Find("client-1"))) == 3
    assert [what for what, _seq, _subject in found(Path(store.path))] == ["seal_missing"] * 3, "the scene seals nothing"


async def test_the_index_itself_refuses_a_key_twice(store: SQLiteStore) -> None:
    """Even if a writer's cache is wrong, the file takes a key once."""
    await register(store)
    await register(store, "2")
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        store._connection.execute(
            "UPDATE intent SET (client_hash, who) = (SELECT client_hash, who FROM intent WHERE id = 1) WHERE id = 2"
        )


@pytest.mark.req("A-57")
async def test_a_row_that_changes_after_it_was_sent_comes_again(store: SQLiteStore) -> None:
    first, second = await register(store, "1"), await register(store, "2")
    await store.synced(await store.changes(10), 5)
    assert await store.changes(10) == []
    await scene.confirm(store, second)
    await scene.confirm(store, first)
    assert [row.server_correlation_id for row in await store.changes(10)] == ["server-1", "server-2"]
    assert {row.sync_timestamp for row in await store.changes(10)} == {None}


async def test_a_change_that_is_not_the_ledgers_sends_no_row_again(store: SQLiteStore) -> None:
    running = await scene.confirm(store, await register(store))
    await store.synced(await store.changes(10), 5)
    renewed = replace(running, version=running.version + 1, lease_until=1)
    await write(store, Put(record=renewed), keys=(pair_of(running),))
    assert await store.changes(10) == []
    (row,) = await store.entries(Tail())
    assert (row.version, row.sync_timestamp) == (running.version, 5)


async def test_a_row_of_an_intent_is_the_servers(store: SQLiteStore) -> None:
    put = new_intent()
    assert put.entry is not None
    client = replace(put.entry, actor="client", target="x")
    with pytest.raises(ConstraintViolation):
        await write(store, replace(put, entry=client))
    assert await scene.read(store, pair_of(await register(store))) is not None


@pytest.mark.req("A-32")
async def test_an_intent_that_another_handle_forgot_is_no_longer_known(store: SQLiteStore) -> None:
    """Its row stays for the ledger, at the version that this handle knows."""
    key = pair_of(await register(store))
    async with SQLiteStore(store.path, clock=HandClock()) as other:
        await other.transact(AdHocCommand((key,), lambda _records: Change(answer=None, drops=(key,))))
    assert await scene.read(store, key) is None
    assert (await register(store, server_correlation_id="server-2")).server_correlation_id == "server-2"
