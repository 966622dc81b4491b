"""Where a central ledger of the tests keeps its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.postgres import postgres_url

__all__ = ["postgres_url"]

_numbers = count(1)


@pytest.fixture(scope="module")
def store_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """A database for a module's tests: a schema of its own on PostgreSQL, or None for a file of their own."""
    if request.param == "sqlite":
        yield None
        return
    with schema(request.getfixturevalue("postgres_url")) as url:
        yield url


@contextmanager
def schema(server: str) -> Iterator[str]:
    """The URL of a new schema, which goes at the end."""
    name = f"served_{next(_numbers)}"
    asyncio.run(_execute(server, f"CREATE SCHEMA {name}"))
    yield f"{server}?search_path={name}"
    asyncio.run(_execute(server, f"DROP SCHEMA {name} CASCADE"))


async def _execute(server: str, statement: str) -> None:
    connection = await asyncpg.connect(server)
    await connection.execute(statement)
    await connection.close()
