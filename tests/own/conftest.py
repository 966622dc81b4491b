"""A server of PostgreSQL, a schema in it for each test, and replicas that end with their test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.own.serving import Replica
from tests.own.shops import MAKE
from tests.postgres import postgres_url
from tests.stores.schemas import Schema, schema

__all__ = ["postgres_url", "schema"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def shop(schema: Schema) -> Schema:
    """A schema with the business table; the ledger's come when a replica starts."""
    asyncio.run(schema.run(f"CREATE SCHEMA {schema.name}"))
    asyncio.run(schema.run(MAKE.replace(" orders", " twophp.orders")))
    return schema


@pytest.fixture
def replica(shop: Schema) -> Iterator[Callable[..., Replica]]:
    """Start one of a library, which may die at a place."""
    started: list[Replica] = []

    def start(library: str, place: str = "") -> Replica:
        started.append(Replica(library, shop.server, shop.name, place))
        return started[-1]

    yield start
    for one in started:
        one.kill()
