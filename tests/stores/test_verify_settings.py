"""The settings that ledger rows repeat: gone, unreadable or rewritten, verification says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.running import FOUND, UNUSABLE, run
from tests.stores.orders import HandClock, orders, raw
from tests.stores.verifying import filled, forgotten, found, messages, reserve
from twophp.core.errors import StoreError
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.health import look_at
from twophp.stores.sqlite.reading import kept, reading


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return filled(tmp_path / "orders.db")


UNREADABLE = "CAST(x'ff80' AS TEXT)"


# What cannot be read.


def test_a_setting_that_is_no_text_is_found_and_the_rest_is_checked(database: Path) -> None:
    raw(database, f"UPDATE meta SET value = {UNREADABLE} WHERE name = 'service'")  # noqa: S608
    raw(database, "UPDATE intent SET fence = 9 WHERE server_correlation_id = 's1'")
    assert found(database) == [("setting_differs", None, ""), ("record_differs", 6, "s1")]
    assert f"{database}: the setting service cannot be read; restore" in messages(database)


def test_a_setting_that_is_no_text_is_a_clear_error_for_its_reader(database: Path) -> None:
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
    asyncio.run(forgotten(database))
    assert found(database) == []
    raw(database, f"UPDATE intent SET phase = {UNREADABLE} WHERE server_correlation_id = 's1'")  # noqa: S608
    assert ("entry_differs", None, "") in found(database)


def test_a_look_at_a_database_without_a_head_is_a_clear_error(database: Path) -> None:
    raw(database, "DELETE FROM head")
    with pytest.raises(StoreError, match="the head of the journal is gone") as refused:
        look_at(str(database), 10)
    assert refused.value.code == "store_corrupt"


# What is gone or was rewritten.


@pytest.mark.parametrize("name", ["service", "service_ledger_id"])
def test_a_setting_that_is_gone_is_found_where_rows_repeat_it(database: Path, name: str) -> None:
    raw(database, "DELETE FROM meta WHERE name = ?", name)
    assert found(database) == [("setting_differs", None, "")]
    assert f"the setting {name} is gone, and every ledger row repeats it" in messages(database)


def test_without_ledger_rows_no_setting_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "effects.db"

    async def fill() -> None:
        async with SQLiteStore(str(path), clock=HandClock()) as store:
            await reserve(store)

    asyncio.run(fill())
    assert found(path) == []


async def issue(path: Path, *issued: str) -> None:
    async with orders(path) as service:
        for guid in issued:
            await service.store.reassign_ledger_id(guid)


@pytest.mark.req("A-59")
def test_a_guid_that_was_issued_cannot_be_rewritten_even_in_every_row(database: Path) -> None:
    asyncio.run(issue(database, "issued-1", "issued-2"))
    assert found(database) == []
    raw(database, "UPDATE meta SET value = 'issued-1' WHERE name = 'service_ledger_id'")
    assert found(database) == [("setting_differs", 19, "")]
    assert "the setting service_ledger_id is issued-1, expected issued-2, as line 19 says" in messages(database)


def test_a_guid_that_was_issued_is_missed_when_the_setting_is_gone(database: Path) -> None:
    asyncio.run(issue(database, "issued"))
    raw(database, "DELETE FROM meta WHERE name = 'service_ledger_id'")
    assert found(database)[0] == ("setting_differs", None, "")


def test_a_line_of_an_issued_guid_that_is_no_text_is_found_once(database: Path) -> None:
    asyncio.run(issue(database, "issued"))
    raw(database, f"UPDATE link SET lines = {UNREADABLE} WHERE id = 18")  # noqa: S608
    assert found(database) == [("edited_line", 18, "")]
