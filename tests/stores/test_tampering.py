"""An intruder can write to the file and does not have the keys: the server refuses each edit, and verify finds it."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import apsw
import pytest

from tests.stores.orders import POLICY, HandClock, orders, payload_of, raw
from tests.stores.verifying import filled, found
from twophp.core.errors import RecordTampered, Tampered
from twophp.core.identity import seal_context
from twophp.core.intent import Intent, Phase
from twophp.stores.sqlite.rotate import rotate
from twophp.stores.sqlite.verify import verify
from twophp.stores.urls import open_vault, parse_store_url, ring_source

BACK = "UPDATE intent SET phase = ?, settled_at = NULL, status = NULL WHERE server_correlation_id = 's1'"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


@pytest.mark.req("A-62", "P-13.4-a")
@pytest.mark.parametrize("phase", [Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.TTL_EXPIRED])
def test_a_settled_intent_that_was_set_back_is_refused_and_found(database: Path, phase: Phase) -> None:
    raw(database, BACK, phase.value)

    async def confirm_and_repeat() -> None:
        async with orders(database, clock=_later()) as service:
            with pytest.raises(RecordTampered, match="s1"):
                await service.confirm(1)
            with pytest.raises(RecordTampered, match="s1"):
                await service.register(1)
            assert (await service.find(0)).phase is Phase.COMMITTED, "the others are served"
            assert (await service.take(9)).phase is Phase.COMMITTED
            await service.sweep()

    asyncio.run(confirm_and_repeat())
    assert ("record_differs", 6, "s1") in found(database)


@pytest.mark.req("A-62")
def test_one_refused_intent_fails_no_other_change_of_the_same_batch(database: Path) -> None:
    raw(database, BACK, "WAITING_CONFIRM")

    async def at_the_same_time() -> list[Intent | BaseException]:
        async with orders(database, clock=_later()) as service:
            both = service.confirm(1), service.take(7)
            return list(await asyncio.gather(*both, return_exceptions=True))

    refused, taken = asyncio.run(at_the_same_time())
    assert isinstance(refused, RecordTampered)
    assert isinstance(taken, Intent)
    assert taken.phase is Phase.COMMITTED


@pytest.mark.req("A-62", "P-13.4-a")
@pytest.mark.parametrize(
    ("column", "value"),
    [("principal", "mallory"), ("method", "DELETE"), ("path", "/refunds")],
)
def test_a_payload_does_not_open_for_another_caller_or_at_another_endpoint(
    database: Path, column: str, value: str
) -> None:
    raw(database, f"UPDATE intent SET {column} = ? WHERE server_correlation_id = 's5'", value)  # noqa: S608

    async def read() -> None:
        async with orders(database) as service:
            (row,) = [i for i in _intents(database) if i[2] == "s5"]
            intent = await service.intents.look(row[1], "s5")
            assert intent is not None
            with pytest.raises(Tampered):
                await service.intents.payload(intent)

    asyncio.run(read())


@pytest.mark.req("A-62", "P-13.4-a")
def test_an_intent_whose_client_id_was_changed_is_not_found(database: Path) -> None:
    """Neither id finds it, for the index knows the old one and the row has the new."""
    raw(database, "UPDATE intent SET client_correlation_id = 'other' WHERE server_correlation_id = 's5'")

    async def read() -> None:
        async with orders(database) as service:
            assert await service.intents.look("other", "s5") is None
            with pytest.raises(AssertionError):
                await service.find(5)

    asyncio.run(read())
    assert ("record_differs", 16, "s5") in found(database)


@pytest.mark.req("A-62")
def test_what_an_older_version_sealed_still_opens_and_is_bound_to_more_by_a_rotation(database: Path) -> None:
    vault = open_vault(f"sqlite:///{database}")
    old = vault.seal(payload_of(5), context=seal_context("orders", "s5", "payload"))
    _replace_seal(database, old)

    async def read_and_rotate() -> None:
        async with orders(database) as service:
            assert await service.intents.payload(await service.find(5)) == payload_of(5)
            ring = ring_source(parse_store_url(f"sqlite:///{database}"))
            done = await rotate(service.store, ring)  # type: ignore[arg-type]
            assert done.complete
        async with orders(database) as service:
            assert await service.intents.payload(await service.find(5)) == payload_of(5)

    asyncio.run(read_and_rotate())
    assert verify(str(database), vault=open_vault(f"sqlite:///{database}")).holds
    raw(database, "UPDATE intent SET path = '/refunds' WHERE server_correlation_id = 's5'")
    opened = verify(str(database), vault=open_vault(f"sqlite:///{database}"))
    assert "seal_unopened" in [finding.what for finding in opened.findings]


@pytest.mark.req("A-62")
def test_verify_with_the_ring_finds_a_part_that_was_moved_to_another_row(database: Path) -> None:
    assert verify(str(database), vault=open_vault(f"sqlite:///{database}")).holds
    raw(
        database,
        "UPDATE intent SET response = (SELECT response FROM intent WHERE server_correlation_id = 's0')"
        " WHERE server_correlation_id = 's1'",
    )
    assert verify(str(database)).holds, "without the ring it cannot be found"
    report = verify(str(database), vault=open_vault(f"sqlite:///{database}"))
    assert [(finding.what, finding.subject) for finding in report.findings] == [("seal_unopened", "s1")]


@pytest.mark.req("A-62")
def test_a_new_database_and_its_log_are_for_their_owner_alone(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "there.db")

    async def modes() -> dict[str, int]:
        async with orders(link) as service:
            await service.take(1)
            return _modes(tmp_path)

    seen = asyncio.run(modes())
    assert {"there.db", "there.db-wal", "there.db-shm"} <= set(seen)
    assert set(seen.values()) == {0o600}


def _later() -> HandClock:
    """When the database was filled."""
    return HandClock(HandClock().now + POLICY.ttl_ms + POLICY.delta_ms)


def _modes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.iterdir() if not path.is_symlink()]
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}


def _intents(database: Path) -> list[tuple[object, str, str]]:
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [(id_, client, server) for id_, client, server in connection.execute(
            "SELECT id, client_correlation_id, server_correlation_id FROM intent")]  # fmt: skip
    finally:
        connection.close()


def _replace_seal(database: Path, sealed: bytes) -> None:
    raw(
        database,
        "UPDATE intent SET payload = ? WHERE server_correlation_id = 's5'",
        sealed,
    )
