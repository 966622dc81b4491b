"""Fixtures for what is Redis's alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.redis import PREFIXES, Server
from tests.stores.postgres.replicas import Replicas


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ledger(redis_url: str) -> str:
    """The URL of a ledger that nobody else uses."""
    return f"{redis_url}?prefix={next(PREFIXES)}"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that nobody else uses."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="twophp-redis-", ignore_cleanup_errors=True))
        server = Server(Path(folder))
        stack.callback(server.close)
        yield server


@pytest.fixture
def replicas(ledger: str, tmp_path: Path) -> Iterator[Callable[[int], Replicas]]:
    """Start so many."""
    started: list[Replicas] = []

    def start(count: int) -> Replicas:
        started.append(Replicas(ledger, tmp_path, count))
        return started[-1]

    yield start
    for one in started:
        one.close()
