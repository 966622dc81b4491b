"""The central ledger's database, on everything it can be: each test has one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore

ENGINES = ("memory", "sqlite", "postgres")
_numbers = count(1)

Open = Callable[[], Awaitable[CentralStore]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Where the database is; for PostgreSQL a schema of its own."""
    engine = request.param
    if engine != "postgres":
        yield "memory:" if engine == "memory" else f"sqlite:///{tmp_path / 'central.db'}"
        return
    server, schema = request.getfixturevalue("postgres_url"), f"central_{next(_numbers)}"
    connection = await asyncpg.connect(server)
    await connection.execute(f"CREATE SCHEMA {schema}")
    yield f"{server}?search_path={schema}"
    await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    await connection.close()


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Open]:
    """Opens the database, again and again; closes it at the end."""
    stores: list[CentralStore] = []

    async def open_() -> CentralStore:
        stores.append(await open_central(url))
        return stores[-1]

    yield open_
    for store in stores:
        await store.close()


@pytest.fixture
async def store(opened: Open) -> CentralStore:
    return await opened()


@pytest.fixture
def lasting(opened: Open) -> Open:
    """The same, where a database outlives its handle."""
    return opened


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        engines = [engine for engine in ENGINES if engine != "memory" or "lasting" not in metafunc.fixturenames]
        metafunc.parametrize("url", engines, indirect=True)
