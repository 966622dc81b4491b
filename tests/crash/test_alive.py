"""A process that was kept from its heartbeat for longer than a lease, and still lives: it does not bury itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi.driver import SERVER, STATE, Orders, held, serving
from twophp import Policy
from twophp.core.policy import CrashPolicy

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.req("A-34")
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
async def test_a_handler_that_runs_here_is_not_recovered_here(on_crash: CrashPolicy) -> None:
    orders, policy = Orders(behave=held), Policy.standard(on_crash=on_crash)
    async with serving(orders, policies={"POST /orders": policy}) as service:
        registered = await service.register()
        confirming = asyncio.create_task(service.confirm(registered))
        await orders.entered.wait()
        service.clock.now += 2 * policy.lease_ms  # As if something had blocked the loop all the while.
        await service.server.sweep()
        orders.may_go_on.set()
        answer = await confirming
        intent = await service.intent(registered.get(SERVER))
    assert (answer.status, answer.get(STATE), orders.runs) == (200, "COMMITTED", 1)
    assert intent is not None
    assert intent.fence == 1
