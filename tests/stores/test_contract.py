"""Every store of ours keeps the contract that we ask of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis import PREFIXES
from tests.stores.schemas import Schema
from twophp.stores.memory import MemoryStore
from twophp.stores.postgres import PostgresStore
from twophp.stores.redis import RedisStore
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing import DURABLE, SHARED, SQL_STATEMENTS, OpenStore, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda clock: MemoryStore(clock=clock)


class TestSQLite(StoreContract):
    capabilities = frozenset({DURABLE, SHARED, SQL_STATEMENTS})

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda clock: SQLiteStore(str(tmp_path / "ledger.db"), clock=clock)


class TestPostgreSQL(StoreContract):
    capabilities = frozenset({DURABLE, SHARED, SQL_STATEMENTS})

    @pytest.fixture
    def open_store(self, schema: Schema) -> OpenStore:
        return lambda clock: PostgresStore(schema.url, clock=clock)


class TestRedis(StoreContract):
    capabilities = frozenset({DURABLE, SHARED})

    @pytest.fixture
    def open_store(self, redis_url: str) -> OpenStore:
        prefix = next(PREFIXES)
        return lambda clock: RedisStore(f"{redis_url}?prefix={prefix}", clock=clock)


class TestRedisCluster(StoreContract):
    capabilities = frozenset({DURABLE, SHARED})

    @pytest.fixture
    def open_store(self, redis_cluster_url: str) -> OpenStore:
        prefix = next(PREFIXES)
        return lambda clock: RedisStore(f"{redis_cluster_url}?prefix={prefix}", clock=clock)


def test_without_pytest_the_contract_says_what_it_needs() -> None:
    program = "import sys; sys.modules['pytest'] = None\nimport twophp.stores.testing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 1
    assert "twophp.stores.testing needs pytest" in done.stderr
