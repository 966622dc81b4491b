"""Registrars with their gate open: in memory, in a file, and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import postgres_url
from tests.registrar.scene import Scene, sqlite_url
from tests.stores.schemas import Schema, schema

__all__ = ["postgres_url", "schema"]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """On each store."""
    yield from opened(url_of(request, tmp_path))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of each store that outlives its process."""
    return url_of(request, tmp_path)


@pytest.fixture
def durable(url: str) -> Iterator[Scene]:
    """On each store that outlives its process."""
    yield from opened(url)


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Scene]:
    """On a file."""
    yield from opened(sqlite_url(tmp_path))


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "postgresql":
        found: Schema = request.getfixturevalue("schema")
        return found.url
    return "memory:" if request.param == "memory" else sqlite_url(folder)


def opened(url: str) -> Iterator[Scene]:
    made = Scene(url)
    made.registrar.open_gate("board-7")
    yield made
    made.close()
