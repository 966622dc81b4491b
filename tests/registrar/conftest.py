"""Registrars, in memory and in a file, with their gate open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import postgres_url
from tests.registrar.scene import Scene, sqlite_url

__all__ = ["postgres_url"]


@pytest.fixture(params=["memory", "sqlite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """On each store."""
    made = Scene("memory:" if request.param == "memory" else sqlite_url(tmp_path))
    made.registrar.open_gate("board-7")
    yield made
    made.close()


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Scene]:
    """On a file."""
    made = Scene(sqlite_url(tmp_path))
    made.registrar.open_gate("board-7")
    yield made
    made.close()
