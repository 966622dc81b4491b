"""What a service does about executions that somebody else left behind, and how long it keeps what it executed."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi.driver import SERVER, Service, serving
from twophp import Policy
from twophp.asgi.settings import Reconciled
from twophp.core.intent import Intent
from twophp.core.phase import Confirm

pytestmark = pytest.mark.anyio

POLICY = Policy.standard(lease_ms=30_000)


@pytest.mark.req("A-34")
async def test_a_slow_answer_about_a_crash_keeps_its_lease(store: str) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        asked.set()
        await may_answer.wait()
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await service.register()
        server_id = registered.get(SERVER)
        assert server_id is not None
        await confirmed_by_the_dead(service, server_id)
        service.clock.now += POLICY.lease_ms
        sweeping = asyncio.create_task(service.server.sweep())
        await asked.wait()
        try:
            for _beat in range(3):  # The heartbeat comes by three times in a lease; a lease and a half go by.
                service.clock.now += POLICY.lease_ms // 2
                await service.server.executions.renew()
            intent = await service.intent(server_id)
            assert intent is not None
            assert intent.lease_until == service.clock.now + POLICY.lease_ms
            assert (
                await service.server.intents.sweep(lambda _intent: POLICY, "another", before=service.clock.now + 1)
                == []
            )
        finally:
            may_answer.set()
            await sweeping
        assert (await service.confirm(registered)).get("DTT-2PHP-Resource-ID") == "order-7"
        assert service.orders.runs == 0


@pytest.mark.req("A-34")
@pytest.mark.parametrize("away", [2, 50])
async def test_a_business_side_that_is_away_is_asked_again_and_not_for_ever(away: int, store: str) -> None:
    asked = 0

    def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        nonlocal asked
        asked += 1
        if asked <= away:
            raise ConnectionError("the shop is away")
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await service.register()
        await confirmed_by_the_dead(service, registered.get(SERVER) or "")
        for _lease in range(8):
            service.clock.now += POLICY.lease_ms
            await service.server.sweep()
        ended = await service.confirm(registered)
        assert asked == (3 if away == 2 else 5)
        assert (ended.status, ended.get("DTT-2PHP-Phase-State")) == (
            (200, "COMMITTED") if away == 2 else (500, "FAILED")
        )
        assert service.orders.runs == 0


@pytest.mark.req("P-9.5-e", "A-62")
async def test_a_less_critical_service_keeps_the_payload_for_the_two_phases_only(store: str) -> None:
    brief = Policy.standard(payload_retention_ms=0)
    async with serving(store=store, policies={"POST /orders": brief}) as service:
        registered = await service.register()
        waiting = await service.intent(registered.get(SERVER))
        assert waiting is not None
        assert await service.server.intents.payload(waiting) is not None
        done = await service.confirm(registered)
        await service.server.sweep()
        ended = await service.intent(registered.get(SERVER))
        assert ended is not None
        assert not ended.has_payload
        assert await service.server.intents.payload(ended) is None
        assert await service.confirm(registered) == done  # The outcome outlives what was asked for.


async def confirmed_by_the_dead(service: Service, server_id: str) -> None:
    """The point of no return, crossed by a process that died right after it."""
    found = await service.intent(server_id)
    assert found is not None
    command = Confirm(
        client_correlation_id="c-1",
        server_correlation_id=server_id,
        principal=found.principal,
        path=found.path,
        arrived_at=found.received_at,
        owner="a process that died",
    )
    assert (await service.server.intents.confirm(command, POLICY)).code is None
