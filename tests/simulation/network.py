"""Requests and answers as messages: late, lost, twice, out of order, cut off at any boundary.

A client's request goes to a replica by a load balancer that knows little: it may choose one that is down. Within one
connection messages keep their order, as TCP promises; between connections nothing does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import httpx2
import msgspec

from tests.simulation.machine import Process
from twophp.asgi.messages import Message
from twophp.wire.fields import Headers

if TYPE_CHECKING:
    from tests.simulation.service import Replica
    from tests.simulation.world import World

Cut: TypeAlias = Literal["", "request", "answer", "body"]
Deliver: TypeAlias = Callable[["Exchange"], None]
CUTS: Final[tuple[Cut, ...]] = ("request", "answer", "body")
READ_S: Final = 6.0
"""So long a client waits for the next message of an answer."""


class Faults(msgspec.Struct):
    """What may happen to a message, as parts of one."""

    slow: float = 0.0
    slow_s: float = 2.0
    lost: float = 0.0
    twice: float = 0.0
    cut: float = 0.0
    unreachable: float = 0.0
    gateway: float = 0.0

    def end(self) -> None:
        """From here on all goes well."""
        self.slow = self.lost = self.twice = self.cut = self.unreachable = self.gateway = 0.0


class Asked(msgspec.Struct, frozen=True):
    """A request."""

    method: str
    path: str
    headers: Headers
    body: bytes = b""

    def field(self, name: bytes) -> str:
        """The value of a header field, or nothing."""
        return next((value.decode() for key, value in self.headers if key.lower() == name), "")


class NotReached(Exception):
    """No connection was made."""


class Broken(Exception):
    """The connection ended in the middle."""


class TooSlow(Exception):
    """No message came for too long."""


class Exchange:
    """One request and its answer, on a connection of their own."""

    def __init__(self, network: Network, client: Process, asked: Asked, cut: Cut) -> None:
        self.network = network
        self.client = client
        self.asked = asked
        self.cut: Cut = cut
        self.server: Replica | None = None
        self.is_over = False
        self.is_heard = True  # False for the copy of a request that was sent twice.
        self._heard: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._free_at = 0.0  # When the last message of the server arrives.
        self.task: asyncio.Task[None] | None = None
        client.at_its_end[self.leave] = None

    # The client's end.

    async def next(self) -> Any:
        """The next message, or an error."""
        if not self._heard:
            loop = self.client.loop
            self._waiter = loop.create_future()
            timer = loop.call_later(READ_S, self._give_up, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        found = self._heard.popleft()
        if isinstance(found, Exception):
            self.leave()
            raise found
        return found

    def _give_up(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            self._heard.append(TooSlow("nothing came"))
            waiter.set_result(None)

    def leave(self) -> None:
        """The client is done with it, or has died: the server hears of that after a while."""
        self.client.at_its_end.pop(self.leave, None)
        if not self.is_over:
            self.is_over = True
            self.network.world.scheduler.later(self.network.delay_s(), self._left)

    def _left(self) -> None:
        server = self.server
        if server is None or server.is_dead:
            return
        if self._gone is not None and not self._gone.done():
            server.loop.call_soon(_set, self._gone)
        if self.network.cancels and self.task is not None and not self.task.done():
            server.loop.call_soon(self.task.cancel)

    def hear(self, message: Any) -> None:
        """Something has come to the client."""
        if self.is_over or self.client.is_dead or not self.is_heard:
            return
        self._heard.append(message)
        if self._waiter is not None:
            self.client.loop.call_soon(_set, self._waiter)

    # The server's end.

    def break_off(self) -> None:
        """The connection ends, and both ends hear of it."""
        scheduler, network = self.network.world.scheduler, self.network
        scheduler.later(max(self._free_at - scheduler.now, 0.0) + network.delay_s(), self.hear, Broken("cut off"))
        scheduler.later(network.delay_s(), self._left)

    async def receive(self) -> Message:
        """See ASGI: the whole body, then nothing until the client leaves."""
        if self._gone is None:
            assert self.server is not None
            self._gone = self.server.loop.create_future()
            if self.cut != "request":
                return {"type": "http.request", "body": self.asked.body, "more_body": False}
            return {"type": "http.request", "body": self.asked.body[:5], "more_body": True}
        if self.cut != "request":
            await self._gone
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """See ASGI. What is sent to a client that is gone is lost, as servers have it."""
        network = self.network
        network.world.oracle.sent(self, message)
        if self.is_over or self.cut == "request":
            return
        if self.cut == "answer":
            self.break_off()
            self.cut = "request"
            return
        found: Any = (message["status"], message["headers"]) if message["type"] == "http.response.start" else None
        if found is None:
            found = message.get("body", b"")
            if self.cut == "body" and found:
                self._say(found[: len(found) // 2])
                self.break_off()
                self.cut = "request"
                return
        self._say(found)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._say(None)

    def _say(self, message: Any) -> None:
        scheduler = self.network.world.scheduler
        self._free_at = max(self._free_at, scheduler.now + self.network.delay_s())
        scheduler.later(self._free_at - scheduler.now, self.hear, message)


class Network:
    """Between all clients and all replicas."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults()
        self.cancels = False  # Whether the server cancels a request whose client has left.
        self.parted: set[tuple[str, str]] = set()  # Machines that do not reach each other.

    def delay_s(self) -> float:
        """How long a message takes."""
        draw, faults = self.world.random.random, self.faults
        if faults.slow and draw() < faults.slow:
            return draw() * faults.slow_s
        return 0.0005 + draw() * 0.004

    def chance(self, part: float) -> bool:
        """Whether something of this probability happens now."""
        return part > 0 and self.world.random.random() < part

    def send(self, client: Process, asked: Asked, to: int | None = None) -> Exchange:
        """Send a request to a replica, or to one that the load balancer chooses."""
        faults, draw = self.faults, self.world.random
        exchange = Exchange(self, client, asked, draw.choice(CUTS) if self.chance(faults.cut) else "")
        place = draw.randrange(len(self.world.replicas)) if to is None else to
        if self.chance(faults.lost):
            self.world.happened(client.name, "request lost", _named(asked))
        else:
            self._later(exchange, place)
        return exchange

    def _later(self, exchange: Exchange, place: int) -> None:
        self.world.scheduler.later(self.delay_s(), self.arrive, exchange, place)

    def arrive(self, exchange: Exchange, place: int) -> None:
        """It has come to the replica, if that is there."""
        world, asked = self.world, exchange.asked
        replica = world.replicas[place]
        is_parted = (exchange.client.machine.name, f"replica{place}") in self.parted
        if exchange.client.is_dead and self.chance(0.5):
            return
        if replica is None or replica.is_dead or not replica.is_up or is_parted or self.chance(self.faults.unreachable):
            world.happened(exchange.client.name, "not reached", f"replica{place} {_named(asked)}")
            answer: Any = NotReached("nobody is there")
            if self.chance(self.faults.gateway):
                exchange.hear((world.random.choice((502, 503, 504)), [(b"content-length", b"0")]))
                answer = None
            exchange.hear(answer)
            return
        world.happened(replica.name, "request", _named(asked) + (f" (cut: {exchange.cut})" if exchange.cut else ""))
        exchange.server = replica
        replica.serve(exchange)
        if exchange.is_heard and self.chance(self.faults.twice):  # What was not sent is not there twice.
            copy = Exchange(self, exchange.client, asked, "")
            copy.is_heard = False
            self._later(copy, world.random.randrange(len(world.replicas)))


def _named(asked: Asked) -> str:
    ids = f"{asked.field(b'dtt-2php-client-correlation-id')} {asked.field(b'dtt-2php-server-correlation-id')}"
    return f"{asked.method} {asked.path} {ids}".strip()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Stream(httpx2.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await self._exchange.next()
            except (Broken, TooSlow) as error:
                raise httpx2.ReadError(str(error)) from None
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        """See httpx."""
        self._exchange.leave()


class Wire(httpx2.AsyncBaseTransport):
    """What really sends, for the transport of a client."""

    def __init__(self, network: Network, client: Process) -> None:
        self._network = network
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx."""
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        asked = Asked(request.method, request.url.path, headers, await request.aread())
        exchange = self._network.send(self._client, asked)
        try:
            status, fields = await exchange.next()
        except NotReached as error:
            raise httpx2.ConnectError(str(error)) from None
        except Broken as error:
            raise httpx2.ReadError(str(error)) from None
        except TooSlow as error:
            raise httpx2.ReadTimeout(str(error)) from None
        except BaseException:
            exchange.leave()
            raise
        return httpx2.Response(status, headers=fields, stream=Stream(exchange), request=request)
