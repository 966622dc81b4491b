"""The tracker for event loops: the same contract, awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.obligations.scene import TIMEOUT_MS, Scene, Sink, refused
from twophp.core.errors import StoreUnavailable
from twophp.obligations import AsyncObligationTracker, Effect, StaleToken, State

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def opened(scene: Scene, **options: Any) -> AsyncObligationTracker:
    known = {"clock": scene.clock, "scan_interval_secs": None}
    return AsyncObligationTracker(scene.url, **(known | options))


@pytest.mark.req("OBL-RSV-1", "OBL-CMT-1", "OBL-RBK-1", "OBL-SM-2")
async def test_the_contract(scene: Scene) -> None:
    async with opened(scene) as tracker:
        oid = await tracker.reserve("publish", {"key": "k1"}, "t1")
        with refused("ERR_OBL_DUPLICATE_RESERVE"):
            await tracker.reserve("publish", {"key": "k1"}, "t")
        assert (await tracker.commit(oid, "t2")).changed
        with refused("ERR_OBL_ALREADY_COMMITTED"):
            await tracker.rollback(oid, "t")
        other = await tracker.reserve("publish", {"key": "k1"}, "t3")
        await tracker.rollback(other, "t")
        assert not (await tracker.rollback(other, "t")).changed
        with refused("ERR_OBL_ALREADY_ROLLED_BACK"):
            await tracker.rollback(other, "t", strict=True)
        late = await tracker.reserve("publish", {"key": "k1"}, "t4", timeout_secs=1)
        scene.clock.now += 1_000
        with refused("ERR_OBL_LEAK_TIMEOUT"):
            await tracker.commit(late, "t")
        with refused("ERR_OBL_NOT_FOUND"):
            await tracker.get("nobody")
        assert [line.code async for line in tracker.audit()] == [
            *("OBL-001", "OBL-002", "OBL-001", "OBL-003", "OBL-001", "OBL-004")
        ]
        assert [line.event.event for line in await tracker.history(oid)] == ["OBL-001", "OBL-002"]
        assert await tracker.payload(oid) == {"key": "k1"}
        assert [one.obligation_id for one in await tracker.list()] == [late, other, oid]
        assert (await tracker.report()).leaked == 1


async def test_guards_scans_effects_and_tokens(scene: Scene) -> None:
    sink = Sink()
    async with opened(scene, effects={"publish": sink}, flow_budget=5) as tracker:
        async with tracker.guard("publish", {"key": "a"}, "t") as done:
            await done.commit()
        async with tracker.guard("publish", {"key": "b"}, "t") as forgotten:
            pass
        async with tracker.guard("publish", {"key": "c"}, "t") as given_up:
            await given_up.rollback()
        async with tracker.guard("publish", {"key": "d"}, "t") as somebody_elses:
            await tracker.commit(somebody_elses.obligation_id, "t")
        await asyncio.to_thread(sink.wait_for, 2)
        assert sorted(sink.ids) == sorted([done.obligation_id, somebody_elses.obligation_id])
        assert (await tracker.get(forgotten.obligation_id)).resolution == "guard"
        token = await tracker.acquire("printer", "t")
        await tracker.check("printer", token.number)
        held = await tracker.reserve("revoke", None, "t")
        scene.clock.now += TIMEOUT_MS
        found = await tracker.run_leak_scan()
        assert {one.obligation_id for one in found.leaked} == {token.obligation_id, held}
        with pytest.raises(StaleToken):
            await tracker.check("printer", token.number)
        again = await tracker.acquire("printer", "t")
        assert again.number == 2
        await tracker.release(again, "t")


async def test_many_tasks_share_their_commits(scene: Scene) -> None:
    async with opened(scene) as tracker:
        ids = await asyncio.gather(*(tracker.reserve("publish", {"key": str(n)}, "t") for n in range(200)))
        await asyncio.gather(*(tracker.commit(oid, "t") for oid in ids))
        found = await tracker.list(limit=1_000)
        assert {one.state for one in found} == {State.COMMITTED}
        assert len(found) == 200


async def test_the_oracle_runs_on_the_callers_loop(scene: Scene) -> None:
    turns: list[float] = []
    turned = asyncio.Event()

    async def wait(stopping: asyncio.Event, seconds: float) -> None:
        turns.append(seconds)
        turned.set()
        await stopping.wait()

    async with opened(scene, scan_interval_secs=2.0, wait=wait) as tracker:
        await turned.wait()
        assert [line.code async for line in tracker.audit()] == ["OBL-005"]
    assert turns == [2.0]


async def test_whoever_is_cancelled_while_it_closes_leaves_nothing_open(tmp_path: Path) -> None:
    begun, leaving, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def publish(_effect: Effect) -> None:
        begun.set()
        await never.wait()

    tracker = AsyncObligationTracker(Scene("sqlite", tmp_path).url, effects={"publish": publish})

    async def use() -> None:
        async with tracker:
            await tracker.commit(await tracker.reserve("publish", None, "t"), "t")
            await begun.wait()
            leaving.set()

    using = asyncio.create_task(use())
    await leaving.wait()
    using.cancel()
    await asyncio.wait([using])
    with pytest.raises(StoreUnavailable):
        await tracker.get("x")


def test_it_opens_again_on_another_event_loop(scene: Scene) -> None:
    tracker = opened(scene, scan_interval_secs=5)

    async def use() -> str:
        async with tracker:
            return await tracker.reserve("publish", None, "t")

    assert asyncio.run(use()) != asyncio.run(use())
