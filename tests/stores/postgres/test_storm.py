"""Four replicas at work while everything around them fails: nothing acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.crash.caller import Connection, confirm, register
from tests.patience import PATIENCE_S
from tests.postgres import Server
from tests.stores.postgres.load import INDETERMINATE, Load
from tests.stores.postgres.replica import marks_of
from tests.stores.postgres.replicas import Replicas
from twophp.stores.postgres.verify import verify

pytestmark = pytest.mark.anyio
REPLICAS: Final = 4
CALLERS: Final = 8
ENOUGH: Final = 40
"""So many calls come to their end between two faults."""
LONGEST_S: Final = 240


class Pair:
    """A primary, and a standby that has applied everything before it is acknowledged."""

    def __init__(self, folder: Path) -> None:
        for name in ("one", "two"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        self.primary = Server(folder / "one")
        self.standby = Server(folder / "two", follows=self.primary)
        self.url = f"postgresql://twophp@127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}/postgres"
        self.url += "?target_session_attrs=read-write"
        asyncio.run(self._set("synchronous_standby_names = '*'", "synchronous_commit = remote_apply"))

    async def _set(self, *settings: str) -> None:
        connection = await asyncpg.connect(self.url)
        for one in settings:
            await connection.execute(f"ALTER SYSTEM SET {one}")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()

    async def fail_over(self) -> None:
        """The primary crashes and stays away. The standby takes over, and waits for no standby of its own."""
        await asyncio.to_thread(self.primary.close, "immediate")
        await asyncio.to_thread(self.standby.promote)
        await self._set("synchronous_standby_names = ''")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="twophp-postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        pair = Pair(Path(folder))
        yield pair
        pair.standby.close("immediate")


@asynccontextmanager
async def under_load(here: Replicas) -> AsyncIterator[Load]:
    """Callers at work from the beginning to the end of the block; then all is asked once more."""
    load = Load(here.ports)
    async with asyncio.timeout(LONGEST_S), asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(load.caller(str(number)))
        await load.until(ENOUGH)
        yield load
        await load.until(ENOUGH)
        load.end()
    async with asyncio.timeout(LONGEST_S):
        await load.replay_everything()


async def pause_longer_than_a_lease(here: Replicas, number: int, other: int) -> str:
    """A replica stands still with an intent in its hands. Another one ends that; the late answer changes nothing."""
    os.mkfifo(gate := here.folder / "gate")
    first, second = Connection(here.ports[number]), Connection(here.ports[other])
    intent = (await first.insist(register("paused"))).server_id
    await first.send(confirm("paused", intent))
    handler = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
    gate.unlink()
    here.stop(number)
    told = await second.insist(confirm("paused", intent))
    os.close(handler)
    here.go_on(number)
    async with asyncio.timeout(PATIENCE_S):
        late = await first.read()
    for answer in (told, late):
        assert (answer.status, answer.phase, answer["dtt-2php-message"]) == INDETERMINATE
    for connection in (first, second):
        await connection.close()
    return intent


async def trouble(here: Replicas, load: Load) -> None:
    """One replica is killed and begins anew, one stands still, and one has its clock set, forward and back."""
    here.kill(0)
    await load.until(ENOUGH)
    here.begin_anew(0)
    await load.until(ENOUGH)
    load.paused.append(await pause_longer_than_a_lease(here, 1, 2))
    here.set_clock(2, signal.SIGUSR1)
    await load.until(ENOUGH)
    here.set_clock(2, signal.SIGUSR2)
    await load.until(ENOUGH)


@pytest.mark.req("A-29", "A-33", "A-34", "A-42", "A-52", "P-6-a", "P-9.1-a")
async def test_whatever_fails_nothing_acknowledged_is_lost_and_nothing_runs_twice(pair: Pair, tmp_path: Path) -> None:
    """Replicas are killed, stand still and have their clocks set; the server is restarted, crashes and fails over."""
    here = Replicas(pair.url, tmp_path, REPLICAS)
    try:
        async with under_load(here) as load:
            await trouble(here, load)
            for mode in ("fast", "immediate"):
                await asyncio.to_thread(pair.primary.restart, mode)
                await load.until(ENOUGH)
            await pair.fail_over()
        load.judge(marks_of(here.folder))
        assert load.refused, "the outages were noticed"
        assert (await verify(pair.url)).findings == ()
    finally:
        here.close()
