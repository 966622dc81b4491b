"""A schema of PostgreSQL for each test: import the fixtures ``postgres_url`` and ``schema`` into a conftest.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

_numbers = count(1)


class Schema:
    """Where a ledger may lie, and a way to look behind it."""

    def __init__(self, server: str, name: str) -> None:
        self.server = server
        self.name = name
        self.url = f"{server}?schema={name}"

    async def run(self, statement: str, *values: Any) -> list[Any]:
        """Run SQL on a connection of its own; ``twophp.`` is this schema."""
        connection = await asyncpg.connect(self.server)
        try:
            found: list[Any] = await connection.fetch(statement.replace("twophp.", f"{self.name}."), *values)
        finally:
            await connection.close()
        return found

    async def hold(self, statement: str) -> Any:
        """The same in a transaction that goes on until the connection is closed."""
        connection = await asyncpg.connect(self.server)
        await connection.execute("BEGIN")
        await connection.execute(statement.replace("twophp.", f"{self.name}."))
        return connection


@pytest.fixture
def schema(postgres_url: str) -> Iterator[Schema]:
    """One that nobody else uses; what is made in it goes with the test."""
    found = Schema(postgres_url, f"ledger_{next(_numbers)}")
    yield found
    with ThreadPoolExecutor(1) as thread:  # The test's own loop may be running yet.
        thread.submit(asyncio.run, found.run(f"DROP SCHEMA IF EXISTS {found.name} CASCADE")).result()
