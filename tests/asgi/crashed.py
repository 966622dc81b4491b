"""What a process that died has left behind, and what a sweep makes of it."""

from __future__ import annotations

import asyncio

from tests.asgi.driver import SERVER, Reply, Service
from twophp import Policy
from twophp.core.intent_commands import Confirm

POLICY = Policy.standard(lease_ms=30_000)


async def left_by_a_crash(service: Service, client_id: str = "c-1") -> Reply:
    """A call whose lease has run out: the next sweep recovers it."""
    registered = await service.register(client_id)
    await confirmed_by_the_dead(service, registered.get(SERVER) or "", client_id)
    service.clock.now += POLICY.lease_ms
    return registered


async def swept(service: Service) -> None:
    """A sweep, and everything that it began."""
    await service.server.sweep()
    await asyncio.gather(*service.server.recovering.values())


async def confirmed_by_the_dead(service: Service, server_id: str, client_id: str = "c-1") -> None:
    """The point of no return, crossed by a process that died right after it."""
    found = await service.intent(server_id, client_id)
    assert found is not None
    command = Confirm(
        client_correlation_id=client_id,
        server_correlation_id=server_id,
        principal=found.principal,
        path=found.path,
        arrived_at=found.received_at,
        owner="a process that died",
    )
    assert (await service.server.intents.confirm(command, POLICY)).code is None
