"""The portal that synchronous edges go through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.patience import PATIENCE_S
from twophp.client import TwoPhaseTransport
from twophp.core.errors import Refused, StoreUnavailable
from twophp.obligations import ObligationTracker
from twophp.registrar import Registrar
from twophp.stores import portal as portals
from twophp.stores.portal import Portal


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def refused() -> None:
    raise Refused("no", code="no")


def test_what_a_coroutine_returns_or_raises_reaches_the_thread_that_asked() -> None:
    with Portal() as portal, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda number: portal.run(doubled(number)), range(100))) == list(range(0, 200, 2))
        with pytest.raises(Refused, match="no"):
            portal.run(refused())


def test_an_exit_is_the_callers_and_not_the_loops() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with Portal() as portal, ThreadPoolExecutor(1) as threads:
        leaving = threads.submit(portal.run, leave())
        assert isinstance(leaving.exception(timeout=PATIENCE_S), SystemExit)
        assert portal.run(doubled(2)) == 4


def test_closing_waits_for_what_is_running_and_refuses_what_comes_later() -> None:
    portal = Portal()
    started, go = threading.Event(), asyncio.Event()
    done: list[str] = []

    async def slow() -> None:
        started.set()
        await go.wait()
        done.append("slow")

    async def release() -> None:
        go.set()

    caller = threading.Thread(target=lambda: portal.run(slow()))
    caller.start()
    started.wait()
    portal.run(release())
    portal.close()
    portal.close()
    caller.join()
    assert done == ["slow"]
    with pytest.raises(StoreUnavailable) as told:
        portal.run(doubled(1))
    assert told.value.code == "store_closed"


def test_it_says_so_instead_of_waiting_for_itself() -> None:
    async def inside(portal: Portal) -> int:
        return portal.run(doubled(1))

    with Portal() as portal, pytest.raises(RuntimeError, match="cannot wait for itself"):
        portal.run(inside(portal))


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits first is interrupted at once; what they wait for goes on."""
    wait = portals._Errand.wait

    def interrupt(_errand: object) -> None:
        monkeypatch.setattr(portals._Errand, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(portals._Errand, "wait", interrupt)


@pytest.mark.usefixtures("interrupted")
def test_what_was_being_opened_for_who_is_interrupted_is_undone_once_it_is_open() -> None:
    portal = Portal()
    told: list[str] = []

    async def opening() -> None:
        for _turn in range(10):
            await asyncio.sleep(0)
        told.append("open")

    async def undo() -> None:
        told.append("undone")

    with pytest.raises(KeyboardInterrupt):
        portal.open(opening(), undo)
    assert told == ["open", "undone"]
    with pytest.raises(StoreUnavailable, match="closed"):
        portal.run(doubled(2))


def test_what_cannot_be_undone_does_not_keep_the_portal_open() -> None:
    portal = Portal()
    with pytest.raises(Refused):
        portal.open(refused(), refused)
    with pytest.raises(StoreUnavailable, match="closed"):
        portal.run(doubled(2))


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize(
    "make", [ObligationTracker, Registrar, lambda url: TwoPhaseTransport(ledger=url, source="checkout")]
)
def test_who_is_interrupted_while_it_opens_leaves_nothing_open(make: Callable[[str], Any], tmp_path: Path) -> None:
    before = set(apsw.connections())
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        make(f"sqlite:///{tmp_path}/a.db")
    assert set(apsw.connections()) <= before
    assert set(threading.enumerate()) <= threads
