"""Blocks of ``intent.transaction()`` that outlast the answer: the outcome waits for their rows, or they are refused.

A framework leaves a dependency with ``yield`` after the answer and its background tasks, so this is an everyday case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI

from tests.asgi.driver import SERVER, STATE, Orders, Seen, answer
from tests.asgi.test_transactions import ADD, rows, shopping
from twophp import current_intent
from twophp.asgi.messages import Send
from twophp.core.errors import Refused
from twophp.engine.current import RunningIntent, Transaction

pytestmark = pytest.mark.anyio


def running() -> RunningIntent:
    intent = current_intent()
    assert intent is not None
    return intent


async def in_a_block() -> AsyncIterator[Transaction]:
    async with running().transaction() as tx:
        yield tx


def in_a_block_of_a_thread() -> Iterator[Transaction]:
    with running().transaction() as tx:
        yield tx


@pytest.mark.req("A-34")
@pytest.mark.parametrize("dependency", [in_a_block, in_a_block_of_a_thread])
async def test_a_dependency_that_is_left_after_the_background_tasks_brings_its_rows(
    dependency: Any, tmp_path: Path
) -> None:
    app, mailing, sent = FastAPI(), asyncio.Event(), asyncio.Event()
    app.dependency_overrides[in_a_block] = dependency

    async def mail() -> None:
        mailing.set()
        await sent.wait()

    @app.post("/orders", status_code=201)
    async def create(tasks: BackgroundTasks, tx: Annotated[Transaction, Depends(in_a_block)]) -> dict[str, str]:
        tx.execute(ADD, ("one", "a"))
        tasks.add_task(mail)
        return {"id": "7"}

    async with shopping(tmp_path, app=app) as service:
        registered = await service.register()
        confirm = asyncio.create_task(service.confirm(registered))
        await mailing.wait()
        assert (rows(tmp_path), await service.phase(registered.get(SERVER))) == (0, "PROCESSING")
        sent.set()
        assert (await confirm).get(STATE) == "COMMITTED"
        assert rows(tmp_path) == 1


@pytest.mark.req("A-34")
async def test_the_outcome_waits_for_the_last_open_block_and_for_nothing_after_it(tmp_path: Path) -> None:
    first_left = asyncio.Event()

    async def outlasting(app: Orders, _seen: Seen, send: Send) -> None:
        async with running().transaction() as outer:
            async with running().transaction() as inner:
                inner.execute(ADD, ("one", "a"))
                await answer(send)
                app.entered.set()
                await first_left.wait()
            outer.execute(ADD, ("two", "b"))
        await app.may_go_on.wait()

    async with shopping(tmp_path, outlasting) as service:
        service.handlers_go_on = True
        registered = await service.register()
        confirm = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"
        first_left.set()
        assert (await confirm).get(STATE) == "COMMITTED"  # The handler has not returned yet.
        assert rows(tmp_path) == 2


@pytest.mark.req("A-34", "A-108")
async def test_a_block_that_ends_badly_after_the_answer_leaves_neither_rows_nor_success(tmp_path: Path) -> None:
    async def gives_up(app: Orders, seen: Seen, send: Send) -> None:
        with suppress(ZeroDivisionError):
            async with running().transaction() as tx:
                tx.execute(ADD, ("one", "a"))
                await answer(send, 422 if seen.body == b"invalid" else 201)
                raise ZeroDivisionError
        await app.may_go_on.wait()

    async with shopping(tmp_path, gives_up) as service:
        service.handlers_go_on = True
        _registered, done = await service.both("c-1")
        assert (done.status, done.get(STATE), rows(tmp_path)) == (500, "FAILED", 0)
        _registered, refused = await service.both("c-2", body=b"invalid")
        assert (refused.status, rows(tmp_path)) == (422, 0)


@pytest.mark.req("A-34")
async def test_a_handler_that_returns_does_not_wait_for_its_blocks_and_who_leaves_one_is_told(tmp_path: Path) -> None:
    """Code that goes on in a task of its own has left the handler; its rows are refused and not lost silently."""
    tasks: list[asyncio.Task[None]] = []
    may_leave = asyncio.Event()

    async def elsewhere(entered: asyncio.Event) -> None:
        async with running().transaction() as tx:
            tx.execute(ADD, ("one", "a"))
            entered.set()
            await may_leave.wait()

    async def returns(app: Orders, _seen: Seen, send: Send) -> None:
        tasks.append(asyncio.create_task(elsewhere(app.entered)))
        await app.entered.wait()
        await answer(send)

    async with shopping(tmp_path, returns) as service:
        _registered, done = await service.both()
        assert done.get(STATE) == "COMMITTED"
        may_leave.set()
        with pytest.raises(Refused) as refused:
            await tasks[0]
        assert (refused.value.code, rows(tmp_path)) == ("intent_not_running", 0)


@pytest.mark.req("A-34")
async def test_no_block_begins_once_the_answer_is_being_settled(tmp_path: Path) -> None:
    told: list[str] = []

    async def late(app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send)
        await app.may_go_on.wait()
        try:
            with running().transaction() as tx:
                tx.execute(ADD, ("one", "a"))
        except Refused as refused:
            told.append(refused.code)
        app.entered.set()

    async with shopping(tmp_path, late) as service:
        service.handlers_go_on = True
        _registered, done = await service.both()
        assert done.get(STATE) == "COMMITTED"
        service.orders.may_go_on.set()
        await service.orders.entered.wait()
        assert (told, rows(tmp_path)) == (["intent_not_running"], 0)


@pytest.mark.req("A-34")
async def test_a_block_that_breaks_after_the_answer_fails_it_though_it_held_no_row_yet(tmp_path: Path) -> None:
    async def breaks(_app: Orders, _seen: Seen, send: Send) -> None:
        with suppress(ZeroDivisionError):
            async with running().transaction() as tx:
                await answer(send)
                tx.execute(ADD, ("one", str(1 // 0)))

    async with shopping(tmp_path, breaks) as service:
        _registered, done = await service.both()
        assert (done.status, done.get(STATE), rows(tmp_path)) == (500, "FAILED", 0)
