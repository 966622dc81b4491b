"""The settings that ledger rows repeat: gone, unreadable or rewritten, verification says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.running import FOUND, UNUSABLE, run
from tests.stores.orders import POLICY, HandClock, orders, raw
from tests.stores.verifying import filled, found, messages
from twophp.core.errors import StoreError
from twophp.stores.sqlite.health import look_at
from twophp.stores.sqlite.reading import kept, reading


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


UNREADABLE = "CAST(x'ff80' AS TEXT)"


# What cannot be read.


def test_a_setting_that_is_no_text_is_found_and_the_rest_is_checked(database: Path) -> None:
    raw(database, f"UPDATE meta SET value = {UNREADABLE} WHERE name = 'service'")  # noqa: S608
    raw(database, "UPDATE entry SET service_ledger_id = 'evil' WHERE server_correlation_id = 's1'")
    assert found(database) == [("setting_differs", None, ""), ("entry_differs", 6, "s1")]
    assert f"{database}: the setting service cannot be read; restore" in messages(database)


def test_a_setting_that_is_no_text_is_a_clear_error_for_whoever_needs_it(database: Path) -> None:
    raw(database, f"UPDATE meta SET value = {UNREADABLE}")  # noqa: S608
    with reading(str(database)) as connection, pytest.raises(StoreError, match="the setting service") as refused:
        kept(connection, "service")
    assert refused.value.code == "store_corrupt"


def test_the_command_line_says_which_setting_cannot_be_read(database: Path) -> None:
    raw(database, f"UPDATE meta SET value = {UNREADABLE}")  # noqa: S608
    verified = run("ledger", "verify", database)
    assert verified.exit_code == FOUND
    assert "the setting service" in verified.stdout + verified.stderr
    tail = run("ledger", "tail", database)
    assert tail.exit_code == UNUSABLE
    assert "the setting service" in tail.stderr


def test_a_row_of_the_forgotten_that_is_no_text_is_found(database: Path) -> None:
    async def forget() -> None:
        clock = HandClock(HandClock().now + 2 * POLICY.horizon_ms)
        async with orders(database, clock=clock) as service:
            for _ in range(2):  # The payload goes first, then the rest.
                await service.sweep()
                clock.now += POLICY.horizon_ms

    asyncio.run(forget())
    assert found(database) == []
    raw(database, f"UPDATE entry SET phase = {UNREADABLE} WHERE server_correlation_id = 's1'")  # noqa: S608
    assert found(database) == [("entry_differs", None, "")]


def test_a_look_at_a_database_without_a_head_is_a_clear_error(database: Path) -> None:
    raw(database, "DELETE FROM head")
    with pytest.raises(StoreError, match="the head of the journal is gone") as refused:
        look_at(str(database), 10)
    assert refused.value.code == "store_corrupt"
