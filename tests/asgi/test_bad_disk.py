"""A disk that is full, or fails: what is answered, what is logged, and what is served all the same."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.asgi.bad_disk import BadDisk, bad_disk
from tests.asgi.driver import SERVER, STATE, Reply, Service, serving
from twophp.asgi.messages import Message
from twophp.asgi.readiness import READY_PATH

pytestmark = pytest.mark.anyio

ALL_OF_THEM = 1_000_000


@pytest.fixture
def disk() -> Iterator[BadDisk]:
    with bad_disk() as disk:
        yield disk


def shop(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


def code(reply: Reply) -> str | None:
    found = json.loads(reply.body) if reply.body.startswith(b"{") else {}
    value: str | None = found.get("code")
    return value


async def a_visit(service: Service, client_id: str) -> list[Reply]:
    """Everything a client may ask for; any answer will do."""
    registered = await service.register(client_id)
    replies = [registered]
    if registered.get(SERVER) is not None:
        replies += [
            await service.confirm(registered, client_id),
            await service.confirm(registered, client_id),
            await service.read(registered.get(SERVER) or "", client_id),
        ]
    return replies


@pytest.mark.req("P-9.2-a", "A-108")
@pytest.mark.parametrize("lasting", [False, True])
async def test_no_fault_of_the_disk_is_an_internal_error_or_leaves_a_traceback(
    lasting: bool, tmp_path: Path, disk: BadDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call in turn fails, once or from then on; then the disk is well again, and so is the service."""
    async with serving(store=shop(tmp_path), replay_wait_ms=0) as service:
        await service.rows()
        disk.calls = 0
        await a_visit(service, "c")
        calls = disk.calls
    assert calls > 10
    for number in range(0, calls, 4 if lasting else 2):
        async with serving(store=shop(tmp_path), replay_wait_ms=0) as service:
            await service.rows()
            disk.calls, disk.failing = 0, range(number, ALL_OF_THEM if lasting else number + 1)
            for reply in await a_visit(service, f"c-{number}-{lasting}"):
                assert (reply.status, code(reply)) != (500, "internal")
                assert reply.status in {200, 202, 503} or code(reply) == "not_settled", (number, reply)
            disk.failing = None
            again = await a_visit(service, f"well-{number}-{lasting}")
            assert [reply.status for reply in again] == [200] * 4
    assert not [record for record in caplog.records if record.exc_info]


@asynccontextmanager
async def in_a_lifespan(service: Service) -> AsyncIterator[list[Message]]:
    """As a server runs it: start-up, requests, shutdown."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    sent: list[Message] = []
    started = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        started.set()

    await messages.put({"type": "lifespan.startup"})
    scope = {"type": "lifespan", "asgi": {}, "state": {}}
    running = asyncio.ensure_future(service.app(scope, messages.get, send))
    await asyncio.wait([running, asyncio.ensure_future(started.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield sent
    finally:
        await messages.put({"type": "lifespan.shutdown"})
        await running


async def app_with_lifespan(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"plain"})


async def ready(service: Service) -> int:
    service.middleware._readiness._until = 0.0  # It asks anew only once a second.
    return (await service.request("GET", READY_PATH)).status


@pytest.mark.req("P-9.2-a", "P-11-a")
@pytest.mark.parametrize("was_there", [True, False])
async def test_a_full_disk_at_the_start_keeps_nobody_from_plain_requests_and_repeats(
    was_there: bool, tmp_path: Path, disk: BadDisk
) -> None:
    if was_there:
        async with serving(app=app_with_lifespan, store=shop(tmp_path)) as before:
            registered, done = await before.both()
            waiting = await before.register("c-2")
    disk.full = True
    async with serving(app=app_with_lifespan, store=shop(tmp_path)) as service, in_a_lifespan(service) as sent:
        assert [message["type"] for message in sent] == ["lifespan.startup.complete"]
        assert (await service.request("POST", "/orders", {}, b"x")).body == b"plain"
        assert await ready(service) == 503
        assert (await service.register("c-9")).status == 503
        if was_there:
            assert await service.confirm(registered) == done
            assert (await service.read(registered.get(SERVER) or "")).get(STATE) == "COMMITTED"
            assert (await service.confirm(waiting, "c-2")).status == 503
        disk.full = False
        assert await ready(service) == 200
        assert [reply.status for reply in await service.both("c-9")] == [200, 200]
        if was_there:
            assert (await service.confirm(waiting, "c-2")).status == 200


@pytest.mark.req("P-9.2-a")
async def test_a_disk_that_fills_up_refuses_changes_and_answers_repeats_in_the_same_batch(
    tmp_path: Path, disk: BadDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store=shop(tmp_path)) as service:
        registered, _done = await service.both()
        disk.full = True
        with caplog.at_level(logging.WARNING):
            reads = [service.read(registered.get(SERVER) or "") for _ in range(8)]
            replies = await asyncio.gather(*(service.register(f"n-{number}") for number in range(40)), *reads)
        assert [reply.status for reply in replies] == [503] * 40 + [200] * 8
        assert await ready(service) == 503
        lines = [record for record in caplog.records if "disk" in record.getMessage()]
        assert len(lines) <= 2, "one line for a condition, and not one for each of whom it meets"
        disk.full = False
        assert await ready(service) == 200
        assert (await service.register("n-1")).status == 200
