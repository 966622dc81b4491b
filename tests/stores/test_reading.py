"""Looking at a database from outside leaves no trace, and never shows two moments as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.orders import orders, raw
from twophp.core.errors import ConfigError, SchemaMismatch, StoreUnavailable, TwoPHPError
from twophp.core.intent import Phase
from twophp.ports import Find, Tail
from twophp.stores.sqlite.reader import ledger_reader
from twophp.stores.sqlite.reading import holds_seals

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    path = tmp_path / "a name with ?#% and spaces.db"
    async with orders(path) as service:
        await service.take(1)
    return path


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


async def test_a_database_that_no_process_has_open_is_left_as_it_is(database: Path) -> None:
    before = files(database)
    with ledger_reader(str(database)) as ledger:
        assert [row.phase for row in ledger.entries(Tail())] == [Phase.COMMITTED]
        assert files(database) == before
    assert holds_seals(str(database))
    assert files(database) == before


async def test_beside_a_running_service_all_is_of_one_moment(database: Path) -> None:
    async with orders(database) as service:
        await service.register(2)
        with ledger_reader(str(database)) as ledger:
            (row,) = ledger.entries(Find("s2"))
            assert row.phase is Phase.WAITING_CONFIRM
            last = ledger.last_line()
            await service.settle(2)
            assert ledger.entries(Find("s2")) == [row]
        with ledger_reader(str(database)) as ledger:
            (changed,) = ledger.changed_after(last)
            assert (changed.server_correlation_id, changed.phase) == ("s2", Phase.COMMITTED)


async def test_a_link_leads_to_what_the_running_service_has_written(database: Path) -> None:
    """The log lies beside the file, not beside the link: without it everything since the last fold would be missing."""
    link = database.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(database)
    async with orders(database) as service:
        await service.take(7)
        with ledger_reader(str(link)) as reader:
            assert [row.phase for row in reader.entries(Find("s7"))] == [Phase.COMMITTED]


async def test_a_service_that_starts_and_ends_during_a_reading_makes_it_void(database: Path) -> None:
    async def visit() -> None:
        with ledger_reader(str(database)) as ledger:
            ledger.entries(Tail())
            async with orders(database) as service:
                await service.take(2)

    with pytest.raises(StoreUnavailable) as refused:
        await visit()
    assert refused.value.code == "changed_while_reading"


@pytest.mark.parametrize(
    ("damage", "error", "code"),
    [
        ("PRAGMA application_id = 1", SchemaMismatch, "foreign_database"),
        ("PRAGMA user_version = 99", SchemaMismatch, "schema_too_new"),
        ("PRAGMA user_version = 0", SchemaMismatch, "schema_too_old"),
        ("DROP TABLE link", TwoPHPError, "store_corrupt"),
    ],
)
async def test_what_cannot_be_read_says_why(database: Path, damage: str, error: type[TwoPHPError], code: str) -> None:
    raw(database, damage)
    before = files(database)
    with pytest.raises(error) as refused, ledger_reader(str(database)):
        pass
    assert refused.value.code == code
    assert files(database) == before


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused, ledger_reader(str(tmp_path / "none.db")):
        pass
    assert refused.value.code == "no_such_database"
    assert list(tmp_path.iterdir()) == []
