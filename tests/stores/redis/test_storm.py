"""Four replicas at work while they and the server are killed: nothing acknowledged is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.redis import Server
from tests.stores.postgres.replica import marks_of
from tests.stores.postgres.replicas import Replicas
from tests.stores.postgres.test_storm import ENOUGH, REPLICAS, trouble, under_load
from twophp.stores.redis.verify import verify

pytestmark = pytest.mark.anyio


@pytest.mark.req("A-29", "A-33", "A-34", "A-42", "A-52", "P-6-a", "P-9.1-a")
async def test_whatever_fails_nothing_acknowledged_is_lost_and_nothing_runs_twice(
    server: Server, tmp_path: Path
) -> None:
    """Replicas are killed, stand still and have their clocks set; the server is killed and reads its log again."""
    here = Replicas(server.url, tmp_path, REPLICAS)
    try:
        async with under_load(here) as load:
            await trouble(here, load)
            for _time in range(2):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await load.until(ENOUGH)
        load.judge(marks_of(here.folder))
        assert load.refused, "the outages were noticed"
        assert (await verify(server.url)).findings == ()
    finally:
        here.close()
