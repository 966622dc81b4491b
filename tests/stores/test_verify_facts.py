"""What a line binds beside the state: an edited column, a deleted seal and a job without history are found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.stores.orders import POLICY, HandClock, orders, raw
from tests.stores.verifying import enqueue, filled, found, messages
from twophp.core.errors import JournalBroken, StoreError
from twophp.core.intent import Phase
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import verify


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


INTENT_COLUMNS = {
    "client_correlation_id": "cX",
    "principal": "mallory",
    "replay_key": "x",
    "callback": "x",
    "client_id_is_proxy": 1,
    "mode": "async",
    "service_endpoint": "elsewhere",
    "path": "/elsewhere",
    "method": "DELETE",
    "received_at": 1,
    "ttl_ms": 1,
    "delta_ms": 1,
    "confirmed_at": 1,
    "settled_at": 1,
    "status": 200,
    "resource_id": "43",
    "transaction_reference": "x",
}


@pytest.mark.parametrize("column", INTENT_COLUMNS)
def test_an_edit_of_what_never_changes_or_of_the_outcome_is_found(database: Path, column: str) -> None:
    raw(database, f"UPDATE intent SET {column} = ? WHERE server_correlation_id = 's1'", INTENT_COLUMNS[column])  # noqa: S608
    assert found(database)[0] == ("record_differs", 6, "s1")


def test_an_outcome_of_what_has_not_ended_is_found(database: Path) -> None:
    raw(database, "UPDATE intent SET status = 200 WHERE server_correlation_id = 's5'")
    assert found(database) == [("record_differs", 16, "s5")]


@pytest.mark.parametrize("part", ["payload", "response"])
def test_a_deleted_seal_is_found(database: Path, part: str) -> None:
    raw(database, f"UPDATE intent SET {part} = NULL WHERE server_correlation_id = 's1'")  # noqa: S608
    assert found(database) == [("seal_missing", 6, "s1")]
    assert f"intent s1: its sealed {part} is missing" in messages(database)


def lose_payload(path: Path, which: str) -> None:
    """Delete a payload and its traces: the seal, and every column about it in record and ledger row."""
    for statement in (
        "UPDATE intent SET payload = NULL WHERE id",
        "UPDATE intent SET has_payload = 0 WHERE id",
    ):
        raw(path, f"{statement} = (SELECT id FROM intent WHERE server_correlation_id = ?)", which)  # noqa: S608


@pytest.mark.parametrize("phase", [Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED, Phase.PROCESSING, Phase.COMMITTED])
def test_a_payload_that_no_line_deletes_is_missed_even_if_its_record_agrees(tmp_path: Path, phase: Phase) -> None:
    path = tmp_path / "orders.db"

    async def reach() -> Phase:
        clock = HandClock()
        async with orders(path, clock=clock) as service:
            await service.register(1)
            if phase is Phase.TTL_EXPIRED:
                clock.now += POLICY.ttl_ms
                await service.sweep()
            elif phase is not Phase.WAITING_CONFIRM:
                await (service.confirm(1) if phase is Phase.PROCESSING else service.settle(1))
            return (await service.find(1)).phase

    assert asyncio.run(reach()) is phase
    assert found(path) == []
    lose_payload(path, "s1")
    assert [(what, subject) for what, _seq, subject in found(path)] == [
        ("record_differs", "s1"),
        ("seal_missing", "s1"),
    ]
    assert "has_payload is False, expected True" in messages(path)


def test_a_payload_that_was_let_go_of_is_not_said_to_be_there(database: Path) -> None:
    raw(database, "UPDATE intent SET has_payload = 1 WHERE server_correlation_id = 's4'")
    assert found(database)[0] == ("record_differs", 15, "s4")
    assert "has_payload is True, expected False" in messages(database)


@pytest.mark.parametrize(
    ("tampering", "expected"),
    [
        ("UPDATE job SET state = 'DELIVERED'", ("record_differs", 18, "j1")),
        ("UPDATE job SET attempts = 7", ("record_differs", 18, "j1")),
        ("UPDATE job SET job_id = 'jX'", ("record_differs", 18, "jX")),
        ("DELETE FROM job", ("record_missing", 18, "j1")),
        (
            "INSERT INTO job VALUES (99, 'j2', 'hook', 's1', '', 1, 'PENDING', 1, 0, 1, '', 0)",
            ("record_differs", None, "j2"),
        ),
    ],
)
def test_a_job_that_is_not_what_the_journal_says_is_found(
    database: Path, tampering: str, expected: tuple[str, int | None, str]
) -> None:
    async def owe() -> None:
        async with orders(database) as service:
            await enqueue(service.store)

    asyncio.run(owe())
    assert found(database) == []
    raw(database, tampering)
    assert found(database) == [expected]


# What is not even there.


def test_a_head_that_is_gone_is_found_and_the_rest_is_checked(database: Path) -> None:
    raw(database, "DELETE FROM head")
    assert found(database) == [("rewritten_head", 0, "")]
    with pytest.raises(JournalBroken, match=r"^\[journal_broken\] 1 finding: the head is gone"):
        verify(str(database)).require()
    with pytest.raises(StoreError, match="restore") as refused:
        SQLiteStore(str(database))
    assert refused.value.code == "store_corrupt"


@pytest.mark.parametrize("table", ["old_journal", "link", "writer", "head", "seal", "client_entry"])
def test_a_table_that_is_gone_is_a_clear_error(database: Path, table: str) -> None:
    raw(database, f"DROP TABLE {table}")
    with pytest.raises(StoreError, match=f"{database}: has no table {table}; restore") as refused:
        verify(str(database))
    assert refused.value.code == "store_corrupt"
