"""``twophp doctor --head``: a ledger that was restored to an older point is noticed, whatever it lies in."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.doctoring import doctor
from tests.postgres import postgres_url, program
from tests.stores.orders import orders
from tests.stores.schemas import Schema, schema
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import register

__all__ = ["postgres_url", "schema"]
CHECK = "journal.noted"
RING = "one:a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


def take(path: Path, *numbers: int) -> None:
    async def taking() -> None:
        async with orders(path) as service:
            for number in numbers:
                await service.take(number)

    asyncio.run(taking())


@pytest.mark.req("A-47", "A-30")
def test_a_file_that_was_restored_is_noticed(tmp_path: Path) -> None:
    path, note = tmp_path / "orders.db", tmp_path / "orders.head"
    take(path, 1)
    shutil.copy(path, tmp_path / "backup")
    assert doctor(path, "--head", note)[CHECK][0] == "ok"
    take(path, 2)
    assert "is still part of it" in doctor(path, "--head", note)[CHECK][1]
    for left in tmp_path.glob("orders.db-*"):
        left.unlink()
    shutil.copy(tmp_path / "backup", path)
    for _again in range(2):
        level, means, remedy = doctor(path, "--head", note)[CHECK]
        assert (level, "restored to an older point" in means) == ("fail", True)
        assert "would run again" in remedy
    take(path, 3, 4)
    level, means, _remedy = doctor(path, "--head", note)[CHECK]
    assert (level, "another history" in means) == ("fail", True)


def postgres(*command: str, **files: int) -> None:
    done = subprocess.run(command, check=False, capture_output=not files, **files)  # type: ignore[call-overload]  # noqa: S603
    assert done.returncode == 0, done


@pytest.mark.req("A-47", "A-30", "A-52")
def test_a_database_that_was_restored_is_noticed(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pg_dump and psql, as it is done."""
    monkeypatch.setenv("TWOPHP_KEYS", RING)
    note, backup = tmp_path / "orders.head", tmp_path / "backup.sql"
    dump, psql = program("pg_dump"), program("psql")
    assert dump
    assert psql

    async def write(*names: str) -> None:
        async with PostgresStore(schema.url) as store:
            for name in names:
                await register(store, name, arrived_at=store.now())

    asyncio.run(write("one"))
    told = doctor(schema.url, "--head", note)
    assert {level for found in told.findings.values() for level, *_ in found} == {"ok"}
    assert "durable; no commit waits" in told["store.server"][1]
    postgres(dump, schema.server, "-n", schema.name, "-f", str(backup))
    asyncio.run(write("two"))
    assert "is still part of it" in doctor(schema.url, "--head", note)[CHECK][1]
    asyncio.run(schema.run(f"DROP SCHEMA {schema.name} CASCADE"))
    postgres(psql, schema.server, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(backup), env=dict(os.environ))  # type: ignore[arg-type]
    level, means, _remedy = doctor(schema.url, "--head", note)[CHECK]
    assert (level, "restored to an older point" in means) == ("fail", True)


def test_a_database_that_a_service_would_refuse_fails(schema: Schema) -> None:
    told = doctor(f"{schema.url}&synchronous_commit=off")
    assert (told["store.server"][0], "weak_durability" in told["store.server"][1]) == ("fail", True)
    assert told["keys.ring"][0] == "fail"
