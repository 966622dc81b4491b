"""Requests whose task is cancelled, as some servers and every timeout around an application do, wherever they wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Literal

import apsw
import pytest

from tests.asgi.driver import AUTO, CLIENT, SERVER, STATE, Reply, serving
from twophp import Policy
from twophp.core.errors import StoreUnavailable
from twophp.delivery.outbox import Outbox
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite.writer import Writer

pytestmark = pytest.mark.anyio

TURNS = 12  # Of the loop; by then the longest of these requests has its answer.
CALLBACK = {"DTT-2PHP-Callback": "https://hooks.example/ack"}


async def cut_off(request: asyncio.Task[Reply], turns: int) -> None:
    """Let it run for so many turns of the loop, then cancel it."""
    for _turn in range(turns):
        await asyncio.sleep(0)
    request.cancel()
    with suppress(asyncio.CancelledError):
        await request


@pytest.mark.req("A-107")
@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_confirm_changes_nothing_or_comes_to_its_end(
    turns: int, mode: Literal["sync", "async"], store: str
) -> None:
    policies = {"POST /orders": Policy.standard(mode=mode)}
    async with serving(store=store, policies=policies) as service:
        registered = await service.register()
        await cut_off(asyncio.create_task(service.confirm(registered)), turns)
        await service.server.executions.drain(10)
        phase = await service.phase(registered.get(SERVER))
        assert (phase, service.orders.runs) in {("WAITING_CONFIRM", 0), ("COMMITTED", 1)}
        await service.confirm(registered)
        await service.server.executions.drain(10)
        assert (await service.confirm(registered)).get(STATE) == "COMMITTED"
        assert service.orders.runs == 1


@pytest.mark.req("A-107", "A-38")
@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("callback", [{}, CALLBACK], ids=["transparent", "auto-confirm"])
async def test_what_the_server_confirms_is_not_begun_or_comes_to_its_end(
    turns: int, callback: dict[str, str], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = count_starts(monkeypatch)
    async with serving(store=store) as service:
        request = service.request("POST", "/orders", {**AUTO, CLIENT: "c-1", **callback}, b"{}")
        await cut_off(asyncio.create_task(request), turns)
        if service.middleware._server is not None:
            await service.server.executions.drain(10)
        rows = [(row.phase, service.orders.runs) for row in await service.rows()]
        assert rows in ([], [("COMMITTED", 1)])
        assert len(started) == (1 if rows and callback else 0)


def count_starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first attempts of callbacks."""
    started: list[str] = []
    begin = Outbox._begin

    def counted(self: Outbox, *given: object) -> object:
        started.append("once")
        return begin(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Outbox, "_begin", counted)
    return started


@pytest.mark.req("A-107", "A-42")
@pytest.mark.parametrize("leaves", [False, True], ids=["it waits", "it leaves"])
async def test_a_confirm_of_unknown_outcome_runs_once(
    leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, failed = Writer._sync, asyncio.Event()

    def failing(self: Writer) -> None:
        if failed.is_set():
            sync(self)
        else:
            failed.set()
            raise apsw.IOError("an fsync failed")

    async with serving(store=f"sqlite:///{tmp_path}/shop.db") as service:
        registered = await service.register()
        monkeypatch.setattr(Writer, "_sync", failing)
        confirming = asyncio.create_task(service.confirm(registered))
        await failed.wait()
        if leaves:
            confirming.cancel()
        await asyncio.wait([confirming])
        await service.server.executions.drain(10)
        assert (await service.phase(registered.get(SERVER)), service.orders.runs) == ("COMMITTED", 1)
        assert leaves or confirming.result().status == 200


@pytest.mark.req("A-107", "A-108")
async def test_a_confirm_that_the_store_refuses_is_told_so_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as service:
        registered = await service.register()
        with monkeypatch.context() as patched:
            patched.setattr(MemoryStore, "submit", refusing)
            assert (await service.confirm(registered)).status == 503
        assert await service.server.executions.drain(10) == []
        assert service.orders.runs == 0
        assert (await service.confirm(registered)).status == 200


def refusing(_store: MemoryStore, _command: object, _then: object) -> None:
    raise StoreUnavailable("the disk is gone")
