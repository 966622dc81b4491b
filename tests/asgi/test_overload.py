"""More requests than the store can take, or a disk that is full: what has run keeps its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.asgi.driver import SERVER, STATE, Orders, Reply, Seen, Service, answer, created, serving
from twophp.asgi.messages import Send
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.writer import Writer

pytestmark = pytest.mark.anyio

CAPACITY, HANDLERS = 64, 50


@asynccontextmanager
async def small(tmp_path: Path, behave: Any = created, **settings: Any) -> AsyncIterator[Service]:
    """A service whose store takes few changes at a time."""
    async with serving(Orders(behave), store=f"sqlite:///{tmp_path}/shop.db", **settings) as service:
        await service.rows()
        the_store(service)._writer._waiting._capacity = CAPACITY
        yield service


def the_store(service: Service) -> SQLiteStore:
    store = service.server.store
    assert isinstance(store, SQLiteStore)
    return store


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is the store's queue, which has no event.
            await asyncio.sleep(0)


async def several_wait(app: Orders, _seen: Seen, send: Send) -> None:
    """Handlers that think until all of them may go on."""
    await app.may_go_on.wait()
    await answer(send)


async def running(service: Service, count: int = HANDLERS) -> tuple[list[Reply], list[asyncio.Task[Reply]]]:
    registered = [await service.register(f"c-{number}") for number in range(count)]
    confirms = [asyncio.create_task(service.confirm(reply, f"c-{number}")) for number, reply in enumerate(registered)]
    await until(lambda: service.orders.runs == count)
    return registered, confirms


@pytest.mark.req("A-108", "P-5.3.2-c")
async def test_what_runs_is_settled_while_registrations_are_refused(tmp_path: Path) -> None:
    async with small(tmp_path, several_wait) as service:
        _registered, confirms = await running(service)
        other = apsw.Connection(str(tmp_path / "shop.db"))
        other.execute("BEGIN IMMEDIATE")  # The disk is busy, and all clients come at once.
        crowd = [asyncio.create_task(service.register(f"new-{number}")) for number in range(9 * CAPACITY)]
        await until(lambda: sum(task.done() for task in crowd) >= 7 * CAPACITY)
        service.orders.may_go_on.set()
        await until(lambda: the_store(service).load().waiting == CAPACITY + HANDLERS)
        other.execute("ROLLBACK")
        other.close()
        outcomes = [(reply.status, reply.get(STATE)) for reply in await asyncio.gather(*confirms)]
        assert outcomes == [(200, "COMMITTED")] * HANDLERS
        refused = [reply for reply in await asyncio.gather(*crowd) if reply.status != 200]
        assert {(reply.status, reply.get("retry-after")) for reply in refused} == {(503, "1")}


@pytest.mark.req("A-108", "A-34")
async def test_more_handlers_than_the_queue_takes_keep_their_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twophp.engine.execution.RENEWED_TOGETHER", 16)
    async with small(tmp_path, several_wait) as service:
        registered, confirms = await running(service)
        the_store(service)._writer._waiting._capacity = 16
        service.clock.now += 20_000
        await service.server.executions.renew()
        leases = {
            intent.lease_until
            for number, reply in enumerate(registered)
            if (intent := await service.intent(reply.get(SERVER), f"c-{number}")) is not None
        }
        assert leases == {service.clock.now + 30_000}
        service.orders.may_go_on.set()
        assert {reply.get(STATE) for reply in await asyncio.gather(*confirms)} == {"COMMITTED"}


class FullDisk:
    """A disk without room for another commit, until ``make_room``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self._monkeypatch = monkeypatch

    def fill(self) -> None:
        def full(_writer: Writer) -> None:
            self.refused += 1
            raise apsw.FullError("database or disk is full")

        self._monkeypatch.setattr(Writer, "_sync", full)

    def make_room(self) -> None:
        self._monkeypatch.undo()


@pytest.mark.req("A-108")
async def test_an_outcome_waits_for_room_on_the_disk_and_so_does_whoever_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    async with small(tmp_path, several_wait) as service:
        registered, (confirm,) = await running(service, 1)
        disk.fill()
        service.orders.may_go_on.set()
        await until(lambda: disk.refused >= 7)  # Two more than the settlement was once tried.
        assert not confirm.done()
        disk.make_room()
        done = await confirm
        assert (done.status, done.get(STATE), service.orders.runs) == (200, "COMMITTED", 1)
        assert await service.confirm(registered[0], "c-0") == done


@pytest.mark.req("A-108")
async def test_who_has_waited_long_enough_is_told_to_ask_again_and_finds_the_true_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    async with small(tmp_path, several_wait, replay_wait_ms=50) as service:
        registered, (confirm,) = await running(service, 1)
        disk.fill()
        service.orders.may_go_on.set()
        told = await confirm
        assert (told.status, told.get(STATE)) == (500, "PROCESSING")
        disk.make_room()
        assert await service.server.executions.drain(60) == []
        done = await service.confirm(registered[0], "c-0")
        assert (done.status, done.get(STATE), service.orders.runs) == (200, "COMMITTED", 1)


@pytest.mark.req("A-108", "A-34")
async def test_a_shutdown_with_a_full_disk_ends_and_the_intent_stays_with_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    async with small(tmp_path, several_wait, replay_wait_ms=0, drain_timeout_s=0.1) as service:
        _registered, (confirm,) = await running(service, 1)
        disk.fill()
        service.orders.may_go_on.set()
        assert (await confirm).get(STATE) == "PROCESSING"
        server = service.server
        async with asyncio.timeout(60):
            await service.middleware.stop()
            await server.executions.drain(60)
        disk.make_room()
    async with serving(store=f"sqlite:///{tmp_path}/shop.db") as again:
        assert [row.phase for row in await again.rows()] == ["PROCESSING"]
