"""What SQLite adds: everything survives a restart, sealed, and in a store that is the tracker's own."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.obligations.scene import GUARD_S, Scene, codes
from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.obligations import ObligationTracker, State
from twophp.stores.clock import mint_uuid
from twophp.stores.ring_file import RingFile
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.rotate import rotate
from twophp.stores.sqlite.verify import verify
from twophp.storing.reopening import open_ledger

CANARY = "canary-51ab"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene("sqlite", tmp_path)


@pytest.mark.req("OBL-RSV-3", "OBL-CMT-2")
def test_everything_survives_a_restart(scene: Scene) -> None:
    with scene.tracker() as tracker:
        held = tracker.reserve("publish", {"key": "held"}, "t")
        done = tracker.reserve("publish", {"key": "done"}, "t")
        tracker.commit(done, "t")
        before = [tracker.get(oid) for oid in (held, done)]
    with scene.tracker() as tracker:
        assert [tracker.get(oid) for oid in (held, done)] == before
        assert [tracker.payload(oid) for oid in (held, done)] == [{"key": "held"}, {"key": "done"}]
        assert tracker.commit(held, "t").changed
        assert codes(tracker) == ["OBL-001", "OBL-001", "OBL-002", "OBL-002"]
    assert verify(str(scene.path)).holds


def test_payloads_are_sealed_and_go_with_a_rollback(scene: Scene, tmp_path: Path) -> None:
    with scene.tracker() as tracker:
        oid = tracker.reserve("publish", {"key": "k", "secret": CANARY}, "t")
        assert all(CANARY.encode() not in path.read_bytes() for path in tmp_path.iterdir())
        tracker.rollback(oid, "t")
        assert tracker.payload(oid) is None


def test_payloads_open_after_a_rotation_of_keys(scene: Scene) -> None:
    async def rotated() -> bool:
        async with SQLiteStore(str(scene.path)) as store:
            return (await rotate(store, RingFile.beside(str(scene.path)))).complete

    with scene.tracker() as tracker:
        oid = tracker.reserve("publish", {"key": "k", "secret": CANARY}, "t")
    assert asyncio.run(rotated())
    with scene.tracker() as tracker:
        assert tracker.payload(oid) == {"key": "k", "secret": CANARY}
        assert tracker.get(oid).state is State.RESERVED


def test_the_store_of_a_service_is_not_the_trackers(scene: Scene) -> None:
    async def take() -> None:
        async with SQLiteStore(str(scene.path)) as store:
            await open_ledger(store, "orders", mint_uuid)

    asyncio.run(take())
    with pytest.raises(ConfigError) as error:
        ObligationTracker(scene.url)
    assert error.value.code == "other_service"


def test_a_forked_child_is_told_to_open_its_own(scene: Scene) -> None:
    with scene.tracker(scan_interval_secs=5) as tracker:
        tracker.reserve("publish", {"key": "parent"}, "t")
        child = os.fork()
        if not child:
            os._exit(_as_a_child(tracker))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tracker.reserve("publish", {"key": "parent again"}, "t")


def _as_a_child(tracker: ObligationTracker) -> int:
    signal.alarm(round(GUARD_S))  # Ends a child that waits for a thread of its parent.
    try:
        tracker.reserve("publish", {"key": "child"}, "t")
    except StoreUnavailable as error:
        tracker.close()
        return 0 if error.code == "forked" else 1
    return 2
