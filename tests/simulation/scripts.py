"""Clients without a ledger, which do what a well-behaved client does not.

They confirm at the very deadline, at every replica at once, again and again, and as somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.simulation.machine import Machine, Process
from tests.simulation.network import Asked, Broken, Exchange, NotReached, TooSlow
from tests.simulation.scheduler import pause
from tests.simulation.service import DELTA_MS, PATHS, TTL_MS, Order
from tests.simulation.shop import draw
from twophp.wire import emit, fields
from twophp.wire.fields import Headers

if TYPE_CHECKING:
    from tests.simulation.world import World

_JSON: Final = (b"content-type", b"application/json")
STRANGER: Final = (b"x-user", b"somebody-else")


class Scripts(Process):
    """One process of them; it never crashes, since it has nothing to lose."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, "scripts", machine)
        self.busy = 0
        self.begin(self._run())

    async def _run(self) -> None:
        world = self.world
        scenes = (self._at_the_deadline, self._crowd, self._stranger, self._twice)
        while world.are_faults_on:
            await pause(0.2 + world.random.random() * 1.5)
            if world.are_faults_on:
                self.busy += 1
                self.begin(self._scene(world.random.choice(scenes)))

    async def _scene(self, scene: Any) -> None:
        try:
            await scene()
        finally:
            self.busy -= 1

    # Scenes.

    async def _at_the_deadline(self) -> None:
        """A confirm that arrives within a few milliseconds of the deadline, or of the end of the grace."""
        if (found := await self._registered()) is None:
            return
        order, path, client_id, server_id = found
        intent = self.world.orders.intent(server_id)
        if intent is None:
            return
        target = intent.received_at + TTL_MS + (DELTA_MS if self.world.random.random() < 0.3 else 0)
        exchange = self._confirm(path, client_id, server_id)
        self._arrive_at(exchange, target + self.world.random.choice((-1, 0, 0, 1)))
        await self._heard(exchange, order)

    def _arrive_at(self, exchange: Exchange, target_ms: int) -> None:
        """Let it arrive at a replica when that replica's clock says so."""
        world = self.world
        place = world.random.randrange(len(world.replicas))
        replica = world.replicas[place]
        if replica is not None and replica.is_up and (left_ms := target_ms - replica.now_ms()) > 0:
            world.scheduler.later(max(left_ms / 1_000 - 0.0002, 0.0002), self._arrive_if, exchange, place, target_ms)
        else:
            world.network.arrive(exchange, place)

    def _arrive_if(self, exchange: Exchange, place: int, target_ms: int) -> None:
        replica = self.world.replicas[place]
        if replica is not None and replica.is_up and 0 < target_ms - replica.now_ms() < 50:
            self.world.scheduler.later(0.0003, self._arrive_if, exchange, place, target_ms)
        else:
            self.world.network.arrive(exchange, place)

    async def _crowd(self) -> None:
        """Confirms at all replicas at once."""
        if (found := await self._registered()) is None:
            return
        order, path, client_id, server_id = found
        exchanges = [self._confirm(path, client_id, server_id) for _one in range(4)]
        for place, exchange in enumerate(exchanges):
            self.world.network._later(exchange, place % len(self.world.replicas))
        for exchange in exchanges:
            await self._heard(exchange, order)

    async def _stranger(self) -> None:
        """Somebody else confirms, before the owner does and after that, and asks for the status."""
        if (found := await self._registered()) is None:
            return
        order, path, client_id, server_id = found
        for has_confirmed in (False, True):
            if has_confirmed:
                await self._sent(self._confirm(path, client_id, server_id), order)
            theirs = self._confirm(path, client_id, server_id, STRANGER)
            await self._sent(theirs, None)
            status = emit.status_read_request(client_correlation_id=client_id, server_correlation_id=server_id)
            await self._sent(self._exchange(Asked("GET", path, [*status, STRANGER])), None)

    async def _twice(self) -> None:
        """The same Phase 1 from two sides, then a confirm and, much later, the same again."""
        world = self.world
        wanted, client_id = draw(world, world.next_number()), world.mint()
        both = [self._phase_one(wanted.path, client_id, wanted.order) for _one in range(2)]
        for exchange in both:
            world.network._later(exchange, world.random.randrange(len(world.replicas)))
        heard = [await self._heard(exchange, wanted.order) for exchange in both]
        ids = [id_ for id_ in map(_server_id, heard) if id_]
        if len(set(ids)) > 1:
            world.oracle.broke(self.name, f"one Phase 1 was registered twice: {ids}")
        for _again in range(2) if ids else ():
            await self._sent(self._confirm(wanted.path, client_id, ids[0]), wanted.order)
            await pause(world.random.random() * 4)

    # Steps.

    async def _registered(self) -> tuple[Order, str, str, str] | None:
        world = self.world
        wanted, client_id = draw(world, world.next_number(), world.random.choice(PATHS)), world.mint()
        answer = await self._sent(self._phase_one(wanted.path, client_id, wanted.order), wanted.order)
        server_id = _server_id(answer)
        return (wanted.order, wanted.path, client_id, server_id) if server_id else None

    def _phase_one(self, path: str, client_id: str, order: Order) -> Exchange:
        headers = [_JSON, *emit.phase_one_request(client_correlation_id=client_id)]
        return self._exchange(Asked("POST", path, headers, msgspec.json.encode(order)))

    def _confirm(self, path: str, client_id: str, server_id: str, *more: tuple[bytes, bytes]) -> Exchange:
        self.world.unledgered[client_id] = None
        headers = emit.phase_two_request(client_correlation_id=client_id, server_correlation_id=server_id)
        return self._exchange(Asked("POST", f"{path}/confirm", [*headers, *more]))

    def _exchange(self, asked: Asked) -> Exchange:
        return Exchange(self.world.network, self, asked, "")

    async def _sent(self, exchange: Exchange, order: Order | None) -> tuple[int, Headers, bytes] | None:
        world = self.world
        world.network._later(exchange, world.random.randrange(len(world.replicas)))
        return await self._heard(exchange, order)

    async def _heard(self, exchange: Exchange, order: Order | None) -> tuple[int, Headers, bytes] | None:
        """The whole answer, or None. Without an order it is a stranger's, who must not learn anything."""
        body = b""
        try:
            status, headers = await exchange.next()
            while (chunk := await exchange.next()) is not None:
                body += chunk
        except (NotReached, Broken, TooSlow):
            return None
        exchange.leave()
        if order is None:
            self.world.oracle.strange(exchange, status, headers)
        return status, headers, body


def _server_id(answer: tuple[int, Headers, bytes] | None) -> str:
    found = dict(answer[1]).get(fields.SERVER_CORRELATION_ID.key) if answer else None
    return found.decode() if found else ""
