"""Writers, credentials, the access log; and opening a database that is not one of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from tests.central.store.conftest import Open
from tests.central.store.scene import LEDGER, T0, contents, order, outcomes, send
from tests.postgres import free_port
from twophp.central.ports import Access, Role, Token
from twophp.central.stores.opening import open_central
from twophp.central.stores.postgres import database as postgres
from twophp.central.stores.sqlite import database
from twophp.central.stores.store import CentralStore
from twophp.core.errors import CommitUnknown, ConfigError, SchemaMismatch, StoreOverloaded, StoreUnavailable
from twophp.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

TOKEN = Token(token_id="t-1", name="orders", roles=frozenset({Role.SERVICE}), created_at=T0, expires_at=T0 + 9)


@pytest.mark.req("P-12.4-a", "A-59")
async def test_a_credential_registers_one_service_however_often(store: CentralStore) -> None:
    await store.add_token(TOKEN, b"hash")
    first = await store.register("orders", None, "t-1", T0)
    again = await store.register("orders", "another claim", "t-1", T0 + 5)
    assert again == first
    assert len(first.service_ledger_id) == 36
    assert (first.registered_at, first.last_sync_at, first.rows) == (T0, None, 0)
    assert (await store.token(b"hash")) == Token(
        token_id="t-1",
        name="orders",
        roles=frozenset({Role.SERVICE}),
        created_at=T0,
        service_ledger_id=first.service_ledger_id,
        expires_at=T0 + 9,
    )


@pytest.mark.req("A-59")
async def test_a_claimed_id_is_confirmed_unless_another_has_it(store: CentralStore) -> None:
    first = await store.register("orders", "claimed", "t-1", T0)
    second = await store.register("payments", "claimed", "t-2", T0)
    assert first.service_ledger_id == "claimed"
    assert second.service_ledger_id not in ("claimed", "")
    assert [service.name for service in await store.services()] == ["orders", "payments"]


@pytest.mark.req("A-59")
async def test_two_that_claim_one_id_at_the_same_time_do_not_both_have_it(store: CentralStore) -> None:
    many = (store.register(f"service {number}", "claimed", f"t-{number}", T0) for number in range(8))
    ids = [service.service_ledger_id for service in await asyncio.gather(*many)]
    assert len(set(ids)) == 8
    assert ids.count("claimed") == 1


async def test_a_service_may_change_its_name_and_where_it_is_pulled_from(store: CentralStore) -> None:
    await store.register("orders", "g", "t-1", T0, pull_url="https://orders/ledger")
    kept = await store.register("orders v2", "g", "t-1", T0)
    assert (kept.name, kept.pull_url) == ("orders v2", "https://orders/ledger")
    assert (await store.register("orders", None, "t-1", T0, pull_url="https://new")).pull_url == "https://new"


async def test_a_second_credential_of_a_service_is_the_same_service(store: CentralStore) -> None:
    await store.register("orders", "g", "t-0", T0)
    rotated = Token(token_id="t-1", name="next", roles=frozenset({Role.SERVICE}), created_at=T0, service_ledger_id="g")
    await store.add_token(rotated, b"hash")
    assert await store.token(b"hash") == rotated
    assert (await store.register("orders", None, "t-1", T0)).service_ledger_id == "g"


@pytest.mark.req("A-59", "A-57")
async def test_a_service_whose_token_is_replaced_goes_on_under_its_own_id(store: CentralStore) -> None:
    """With another id its rows would be there twice, the old ones for ever as they were."""
    first = await store.register("orders", LEDGER, "t-1", T0, pull_url="https://orders/ledger")
    await store.ingest(first, [order(1)], T0)
    await store.add_token(replace(TOKEN, token_id="t-2"), b"next")
    again = await store.register("orders", LEDGER, "t-2", T0 + 5)
    assert (again.service_ledger_id, again.rows, again.pull_url) == (LEDGER, 1, first.pull_url)
    found = await store.token(b"next")
    assert found is not None
    assert found.service_ledger_id == LEDGER
    assert len(await store.services()) == 1
    assert (await store.register("orders", None, "t-3", T0)).service_ledger_id != LEDGER, "nothing was claimed"


async def test_tokens_are_kept_by_their_hash_and_revoked_once(store: CentralStore) -> None:
    audit = Token(token_id="t-2", name="eve", roles=frozenset({Role.AUDIT, Role.COMPLIANCE}), created_at=T0 + 1)
    await store.add_token(TOKEN, b"hash")
    await store.add_token(audit, b"other")
    assert await store.tokens() == [audit, TOKEN]
    assert await store.token(b"nobody's") is None
    assert await store.revoke_token("t-2", T0 + 5)
    assert await store.revoke_token("t-2", T0 + 9)
    assert not await store.revoke_token("nobody", T0)
    await store.token_used("t-2", T0 + 7)
    await store.token_used("t-2", T0 + 6)
    found = await store.token(b"other")
    assert found is not None
    assert (found.revoked_at, found.last_used_at) == (T0 + 5, T0 + 7)


@pytest.mark.req("A-63")
async def test_every_read_is_logged_newest_first(store: CentralStore) -> None:
    lines = [Access(at=T0 + n, who="eve", role="audit", method="GET", path=f"/v1/{n}", status=200) for n in range(5)]
    await store.log_access(lines[:2])
    await store.log_access(lines[2:])
    await store.log_access([])
    assert await store.accesses(limit=3) == [lines[4], lines[3], lines[2]]


async def test_a_database_that_answers_is_ready(store: CentralStore) -> None:
    await store.ready()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.ready()


@pytest.mark.parametrize("address", ["mysql://x", "sqlite://", "central.db"])
async def test_a_url_of_nothing_known_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://") as refused:
        await open_central(address)
    assert refused.value.code == "unknown_store"


async def test_a_server_that_is_not_there_is_said_to_be() -> None:
    with pytest.raises(StoreUnavailable):
        await open_central(f"postgresql://twophp@127.0.0.1:{free_port()}/postgres")


async def test_a_server_that_does_not_sync_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.SQL, "durability", "SELECT 'off', 'on', 'on'")
    with pytest.raises(ConfigError) as refused:
        await open_central(postgres_url)
    assert refused.value.code == "weak_durability"


async def test_a_connection_that_was_cut_is_replaced(store: CentralStore, lasting: Open, url: str) -> None:
    """The database was restarted, or the connection was cut: the next question goes through, or may be repeated."""
    if url.startswith("postgresql"):
        server = await asyncpg.connect(url)
        await server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'twophp central'"
        )
        await server.close()
    for _again in range(3):
        try:
            await send(store, order(1))
        except (StoreUnavailable, CommitUnknown):
            continue
    assert await contents(await lasting()) == [order(1)]


async def test_a_services_own_ledger_is_not_taken_for_the_central_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with SQLiteStore(str(path)):
        pass
    with pytest.raises(SchemaMismatch) as refused:
        await open_central(f"sqlite:///{path}")
    assert refused.value.code == "foreign_database"
    store = await open_central(f"sqlite:///{tmp_path / 'central.db'}")
    await store.close()
    with pytest.raises(SchemaMismatch):
        SQLiteStore(str(tmp_path / "central.db"))


async def test_a_schema_from_the_future_is_refused(store: CentralStore, lasting: Open, url: str) -> None:
    await store.close()
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        server = await asyncpg.connect(url)
        await server.execute("INSERT INTO twophp_central_schema VALUES (99)")
        await server.close()
    with pytest.raises(SchemaMismatch) as refused:
        await lasting()
    assert refused.value.code == "schema_too_new"


async def test_two_that_open_a_new_database_at_once_both_have_it(lasting: Open) -> None:
    first, second = await asyncio.gather(lasting(), lasting())
    await send(first, order(1))
    assert await contents(second) == [order(1)]


# SQLite's own troubles. -----------------------------------------------------------------------------------------------


async def test_more_batches_than_may_wait_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MOST_WAITING", 2)
    store = await open_central(f"sqlite:///{tmp_path / 'central.db'}")
    writer = await store.register("orders", "ledger of orders", "t", T0)
    many = [store.ingest(writer, [order(number)], T0) for number in range(5)]
    told = await asyncio.gather(*many, return_exceptions=True)
    assert [isinstance(each, StoreOverloaded) for each in told] == [False, False, True, True, True]
    assert len(await contents(store)) == 2
    await store.close()


async def test_after_a_commit_that_failed_the_database_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_central(f"sqlite:///{tmp_path / 'central.db'}")
    await send(store, order(1))
    writer = await store.register("orders", "ledger of orders", "t", T0)
    with monkeypatch.context() as patch:
        patch.setitem(database.SQL, "commit", "COMMIT; SELECT no_such_function()")
        with pytest.raises(CommitUnknown):
            await store.ingest(writer, [order(2)], T0)
    assert outcomes(await send(store, order(2), order(3)))[1] == "stored"
    assert await contents(store) == [order(1), order(2), order(3)]
    await store.close()
