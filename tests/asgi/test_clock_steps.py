"""The machine's clock is set while a service runs: leases and deadlines do not move, and time goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import pytest

from tests.asgi.crashed import confirmed_by_the_dead, swept
from tests.asgi.driver import DEADLINE, OUTGOING, SERVER, START_MS, STATE, Clock, Orders, Service, held
from tests.patience import PATIENCE_S
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.core.policy import CrashPolicy
from twophp.stores.clock import AnchoredClock

pytestmark = pytest.mark.anyio

HOUR_MS: Final = 3_600_000
STEPS: Final = [2 * HOUR_MS, -24 * HOUR_MS]


class Machine:
    """A wall clock that can be set, and a clock that cannot."""

    def __init__(self) -> None:
        self.wall_ms, self.up_ms = START_MS, 0

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.up_ms += ms

    def clock(self) -> AnchoredClock:
        return AnchoredClock(lambda: self.wall_ms, lambda: self.up_ms * 1_000_000)


@asynccontextmanager
async def serving_on(machine: Machine, store: str, orders: Orders, policy: Policy) -> AsyncIterator[Service]:
    """One process more or less: every service here has an owner and an anchor of its own."""
    middleware = TwoPhaseMiddleware(
        orders,
        service="shop",
        store=store,
        identify=anonymous,
        policies={"POST /orders": policy},
        outgoing=OUTGOING,
        sweep_interval_s=3_600.0,
        clock=machine.clock(),
    )
    try:
        yield Service(middleware, orders, middleware, Clock())
    finally:
        orders.may_go_on.set()
        await middleware.stop()


@pytest.mark.req("A-29", "A-34")
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
@pytest.mark.parametrize("step_ms", STEPS)
async def test_a_step_takes_nothing_over_and_expires_nothing(step_ms: int, on_crash: CrashPolicy, store: str) -> None:
    machine, orders, policy = Machine(), Orders(behave=held), Policy.standard(on_crash=on_crash)
    async with serving_on(machine, store, orders, policy) as service:
        waiting = await service.register("c-2")
        registered = await service.register()
        confirming = asyncio.create_task(service.confirm(registered))
        await orders.entered.wait()
        machine.wall_ms += step_ms
        await swept(service)
        assert await service.phase(waiting.get(SERVER), "c-2") == "WAITING_CONFIRM"
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"
        orders.may_go_on.set()
        assert (await confirming).get(STATE) == "COMMITTED"
        assert (await service.confirm(waiting, "c-2")).get(STATE) == "COMMITTED"
        intent = await service.intent(registered.get(SERVER))
    assert (orders.runs, intent is not None and intent.fence) == (2, 1)


@pytest.mark.req("A-29", "A-27", "A-34")
@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("restarts", [False, True])
async def test_after_a_step_time_goes_on(step_ms: int, restarts: bool, tmp_path: object) -> None:
    """An intent without a confirm expires, and one left behind by an owner that may be dead is recovered."""
    machine, policy, store = Machine(), Policy.standard(), f"sqlite:///{tmp_path}/shop.db"
    async with serving_on(machine, store, Orders(), policy) as service:
        waiting = await service.register("c-2")
        registered = await service.register()
        await confirmed_by_the_dead(service, registered.get(SERVER) or "")
        machine.wall_ms += step_ms
        if not restarts:
            await time_goes_on(machine, service, policy, waiting.get(SERVER), registered.get(SERVER))
    if restarts:
        async with serving_on(machine, store, Orders(), policy) as service:
            await service.middleware.start()
            await time_goes_on(machine, service, policy, waiting.get(SERVER), registered.get(SERVER))


async def time_goes_on(
    machine: Machine, service: Service, policy: Policy, waiting: str | None, left: str | None
) -> None:
    machine.passes(policy.lease_ms + policy.delta_ms)
    await swept(service)
    assert await service.phase(waiting, "c-2") == "ABANDONED"
    assert await service.phase(left) == "FAILED"


@pytest.mark.req("A-29", "A-34")
@pytest.mark.parametrize("step_ms", STEPS)
async def test_who_starts_after_the_step_does_not_take_over_who_started_before(step_ms: int, tmp_path: object) -> None:
    """Their anchors differ by the step, so by the clock of one the other's leases have run out."""
    machine, policy, store = Machine(), Policy.standard(on_crash="rerun"), f"sqlite:///{tmp_path}/shop.db"
    early, late = Orders(behave=held), Orders(behave=held)
    async with serving_on(machine, store, early, policy) as before:
        registered = await before.register()
        first = asyncio.create_task(before.confirm(registered))
        await early.entered.wait()
        machine.wall_ms += step_ms
        async with serving_on(machine, store, late, policy) as after:
            other = await after.register("c-2")
            second = asyncio.create_task(after.confirm(other, "c-2"))
            await late.entered.wait()
            machine.passes(2 * policy.lease_ms)  # A pause: no heartbeat came in all that time.
            for service in (after, before, after):
                await swept(service)
            early.may_go_on.set()
            late.may_go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                assert [(await one).get(STATE) for one in (first, second)] == ["COMMITTED", "COMMITTED"]
    assert (early.runs, late.runs) == (1, 1)


@pytest.mark.req("A-25", "A-29")
@pytest.mark.parametrize("step_ms", STEPS)
async def test_the_deadline_that_a_client_is_told_is_by_the_clock_that_it_can_compare(step_ms: int, store: str) -> None:
    """The answer's Date is by the machine's clock; a deadline that lay before it would keep clients from confirming."""
    machine, policy = Machine(), Policy.standard()
    async with serving_on(machine, store, Orders(), policy) as service:
        machine.wall_ms += step_ms
        told = [(await service.register()).get(DEADLINE) for _again in range(2)]
    assert told[0] == told[1]
    deadline_ms = datetime.fromisoformat(told[0] or "").timestamp() * 1_000
    assert deadline_ms == machine.wall_ms + policy.ttl_ms
