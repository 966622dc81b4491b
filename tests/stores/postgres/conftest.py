"""Fixtures for what is PostgreSQL's alone."""

from __future__ import annotations

import pytest

from tests.stores.postgres.replicas import replicas

__all__ = ["replicas"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
