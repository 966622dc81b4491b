"""Every test here runs on asyncio, the loop that ASGI servers use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh store, of both kinds in turn."""
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"
