"""A client with a ledger: callers that repeat, give up and come back, and the reconciler behind them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec

from tests.simulation.machine import Machine, Process
from tests.simulation.network import Wire
from tests.simulation.scheduler import pause
from tests.simulation.service import PATHS, RING, SERVICE, Order
from twophp.client import AsyncTwoPhaseTransport, PhaseError, calling
from twophp.core.errors import Advice, TwoPHPError

if TYPE_CHECKING:
    from tests.simulation.world import World

ORIGIN: Final = "http://orders.internal"
TRIES: Final = 4


class Wanted(msgspec.Struct):
    """An order of the business, and what became of it so far."""

    order: Order
    path: str
    name: str | None  # The id that the business gives its call; None: the transport makes one up.
    is_over: bool = False
    tries: int = 0


class Shop(Process):
    """One life of one client process."""

    def __init__(self, world: World, place: int, machine: Machine) -> None:
        super().__init__(world, f"shop{place}.{world.lives(f'shop{place}')}", machine)
        self.place = place
        self.begin(self._run())

    async def _run(self) -> None:
        world = self.world
        self._transport = AsyncTwoPhaseTransport(
            ledger="memory:",
            source=self.machine.name,
            transport=Wire(world.network, self),
            allow_insecure=True,
            targets={ORIGIN: SERVICE},
            keys=RING,
            clock=self.clock,
            steady=self.machine.steady_ms,
            mint=world.mint,
            lease_s=2.0,
            patience_s=3.0,
            poll_limit_s=20.0,
            reconcile_every_s=0.8,
            callback_wait_s=0.3,
            require_2php=self.machine.name in world.auto_confirming,
            callback="https://shop.example/acknowledged" if self.machine.name in world.auto_confirming else None,
        )
        is_open = False
        while not is_open:
            try:
                await self._transport.__aenter__()
                is_open = True
            except TwoPHPError:
                await pause(0.3)
        world.happened(self.name, "started")
        for _caller in range(world.callers):
            self.begin(self._call())
        for wanted in world.unfinished(self.place):  # What the business knows of by name it asks for again.
            self.begin(self._insist(wanted))

    async def _call(self) -> None:
        world = self.world
        while world.are_faults_on:
            await pause(world.random.random() * 0.4)
            if not world.are_faults_on:
                return
            await self._insist(world.want(self.place))

    async def _insist(self, wanted: Wanted) -> None:
        """Make the call; after an error do what its advice allows, at most a few times."""
        while not wanted.is_over and wanted.tries < TRIES:
            wanted.tries += 1
            await self._once(wanted)
            if not wanted.is_over:
                await pause(0.05 + self.world.random.random())
        wanted.is_over = True

    async def _once(self, wanted: Wanted) -> None:
        world, order = self.world, wanted.order
        world.happened(self.name, "calls", f"{wanted.path} order {order.number} as {wanted.name}")
        try:
            async with asyncio.timeout(world.patience_s()):
                with calling(client_correlation_id=wanted.name):
                    request = httpx2.Request("POST", ORIGIN + wanted.path, content=msgspec.json.encode(order))
                    request.headers["content-type"] = "application/json"
                    response = await self._transport.handle_async_request(request)
                    body = await response.aread()
        except PhaseError as error:
            world.note(self.name, "is told", f"order {order.number}: {error.code}, {error.advice}")
            self._advised(wanted, error)
        except (httpx2.TransportError, TimeoutError, TwoPHPError) as error:
            world.note(self.name, "fails", f"order {order.number}: {type(error).__name__}")
        else:
            wanted.is_over = True
            world.note(self.name, "has", f"order {order.number}: {response.status_code} {body.decode()}")
            world.oracle.heard(self.name, order, response, body)

    def _advised(self, wanted: Wanted, error: PhaseError) -> None:
        if error.advice is Advice.RESUBMIT:
            world = self.world
            world.oracle.may_be_made_anew(wanted.order, error)
            wanted.name = wanted.name and world.mint()
        elif error.advice in {Advice.DONE, Advice.FIX}:
            wanted.is_over = True
        elif error.advice is Advice.CHECK and wanted.name is None:
            wanted.is_over = True  # The protocol does not know; nobody asks for it as a new call.


def draw(world: World, number: int, path: str | None = None) -> Wanted:
    """An order of every kind."""
    random = world.random.random
    ends = "created" if random() < 0.8 else world.random.choice(("refused", "raises"))
    order = Order(
        number=number,
        before_s=round(random() * 0.1 if random() < 0.7 else random() * 5.0, 4),
        after_s=round(random() * 0.05, 4) if random() < 0.5 else 0.0,
        reserves=int(random() * 3) if random() < 0.4 else 0,
        writes_row=random() < 0.4,
        ends=ends,
    )
    name = world.mint() if random() < 0.5 else None
    return Wanted(order, path or world.random.choice(PATHS), name)
