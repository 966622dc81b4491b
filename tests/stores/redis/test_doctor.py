"""The doctor looks into a ledger in Redis as it looks into one in PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.doctoring import doctor
from tests.cli.running import OK
from tests.redis import KEYS, Server
from twophp.stores.redis import RedisStore
from twophp.stores.testing.scene import register

SERVER, NOTED = "store.server", "journal.noted"


def fill(url: str, name: str) -> None:
    async def filling() -> None:
        async with RedisStore(url) as store:
            await register(store, name, arrived_at=store.now())

    asyncio.run(filling())


@pytest.mark.req("A-84")
def test_a_server_is_looked_at(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that nobody has made, one that is well, one that has little room, and one that would forget."""
    monkeypatch.setenv("TWOPHP_KEYS", KEYS)
    level, means, _remedy = doctor(server.url)[SERVER]
    assert (level, "schema_too_old" in means) == ("fail", True)
    fill(server.url, "1")
    found = doctor(server.url)
    assert found.code == OK
    assert "no limit set" in found[SERVER][1]
    server.ask("CONFIG", "SET", "maxmemory", "100mb")
    assert "of 100 MiB" in doctor(server.url)[SERVER][1]
    server.ask("CONFIG", "SET", "maxmemory", "1500kb")
    assert doctor(server.url)[SERVER][0] == "warn"
    server.ask("CONFIG", "SET", "appendfsync", "everysec")
    level, means, _remedy = doctor(server.url)[SERVER]
    assert (level, "CONFIG SET appendfsync always" in means) == ("fail", True)


@pytest.mark.req("A-47", "A-52")
def test_a_server_that_was_restored_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose replica took over before it had the last changes: the head that was noted is gone."""
    monkeypatch.setenv("TWOPHP_KEYS", KEYS)
    note = tmp_path / "orders.head"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twophp-redis-")))
        server = Server(folder)
        stack.callback(server.close)
        fill(server.url, "1")
        shutil.copytree(folder / "appendonlydir", tmp_path / "backup")
        fill(server.url, "2")
        assert doctor(server.url, "--head", note)[NOTED][0] == "ok"
        assert "is still part of it" in doctor(server.url, "--head", note)[NOTED][1]
        server.kill()
        shutil.rmtree(folder / "appendonlydir")
        shutil.copytree(tmp_path / "backup", folder / "appendonlydir")
        server.start()
        level, means, _remedy = doctor(server.url, "--head", note)[NOTED]
        assert (level, "restored to an older point" in means) == ("fail", True)
        for name in ("3", "4"):
            fill(server.url, name)
        level, means, _remedy = doctor(server.url, "--head", note)[NOTED]
        assert (level, "another history" in means) == ("fail", True)
