"""Somebody who can write the central ledger's database: another connection than the service's."""

from __future__ import annotations

import asyncio
from typing import Any

import apsw
import asyncpg  # type: ignore[import-untyped]

from twophp.central.stores.statements import numbered

Rows = list[tuple[Any, ...]]


def tamper(url: str, statement: str, *values: object) -> Rows:
    """Run a statement, with question marks for its values, on either database."""
    if url.startswith("postgresql"):
        return asyncio.run(_tamper(url, numbered(statement), values))
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


async def _tamper(url: str, statement: str, values: tuple[object, ...]) -> Rows:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(one) for one in await connection.fetch(statement, *values)]
    finally:
        await connection.close()
