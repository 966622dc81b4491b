"""The portal that synchronous edges go through."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from twophp.core.errors import Refused, StoreUnavailable
from twophp.stores.portal import Portal

PATIENCE_S = 30


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
