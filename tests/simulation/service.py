"""One replica of the service: the middleware, and an application whose handlers act on the world."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.simulation.machine import Machine, Process
from tests.simulation.network import Exchange
from tests.simulation.scheduler import pause
from twophp import Policy, current_intent
from twophp.asgi import Outgoing, TwoPhaseMiddleware
from twophp.asgi.messages import Message, Receive, Scope, Send
from twophp.asgi.settings import Reconciled
from twophp.core.errors import TwoPHPError
from twophp.core.intent import Intent
from twophp.core.job import Tries
from twophp.delivery.egress import default_tls
from twophp.delivery.hooks import Hooks, PhaseEvent
from twophp.engine.obligations.rules import Rules
from twophp.identity.head import Head
from twophp.stores.vault import KeyRing

if TYPE_CHECKING:
    from tests.simulation.world import World

SERVICE: Final = "orders"
_TLS: Final = default_tls()
RING: Final = KeyRing({"k1": bytes(range(32))}, "k1")
LEASE_MS: Final = 2_000
TTL_MS: Final = 3_000
DELTA_MS: Final = 1_000
_TIMES: Final = {"ttl_ms": TTL_MS, "delta_ms": DELTA_MS, "lease_ms": LEASE_MS, "processing_timeout_ms": 4_000}
POLICIES: Final = {
    "POST /orders": Policy.standard(**_TIMES),  # type: ignore[arg-type]
    "POST /reruns": Policy.standard(**_TIMES, on_crash="rerun"),  # type: ignore[arg-type]
    "POST /jobs": Policy.standard(**_TIMES, mode="async"),  # type: ignore[arg-type]
    "POST /late": Policy.standard(**_TIMES, replay="REUSE"),  # type: ignore[arg-type]
}
PATHS: Final = tuple(name.partition(" ")[2] for name in POLICIES)
ADD_ROW: Final = "INSERT INTO orders VALUES (?, ?, ?)"
TRIES: Final = Tries(attempts=6, first_delay_ms=200, factor=2, attempt_ms=2_000, lease_ms=3_000)


class Order(msgspec.Struct, frozen=True):
    """What a caller wants, and how long its handler takes. ``number`` is the business's own: it is to happen once."""

    number: int
    before_s: float = 0.0
    after_s: float = 0.0
    reserves: int = 0
    writes_row: bool = False
    ends: str = "created"


class Failed(Exception):
    """What a handler raises."""


class Replica(Process):
    """One life of one replica."""

    def __init__(self, world: World, place: int, machine: Machine) -> None:
        super().__init__(world, f"replica{place}.{world.lives(f'replica{place}')}", machine)
        self.place = place
        self.is_up = False
        self.middleware: TwoPhaseMiddleware
        self.serving: dict[Exchange, None] = {}
        self.at_its_end[self._cut_all] = None
        self.begin(self._run())

    async def _run(self) -> None:
        hooks = Hooks()
        hooks.on_phase("COMMITTED", "FAILED", "ABANDONED", name="told")(self._hooked)
        self.middleware = TwoPhaseMiddleware(
            self._app,
            service=SERVICE,
            store="memory:",
            identify=_who,
            policies=POLICIES,
            keys=RING,
            clock=self.clock,
            allow_insecure=True,
            late_confirm_guard=_guard,
            reconcile=self._reconcile if self.world.reconciles else None,
            outgoing=Outgoing(hooks=hooks, tries=TRIES, resolver=_nowhere, ssl_context=_TLS),
            obligations=Rules(leak_timeout_ms=5_000, scan_interval_s=3.0),
            sweep_interval_s=1.0,
            drain_timeout_s=2.0,
            tune_collector=False,
        )
        while not self.is_up:
            try:
                await self.middleware.start()
                self.is_up = True
            except TwoPHPError:
                await pause(0.3)
        self.world.happened(self.name, "started")

    def end(self) -> None:
        """Shut down as a deployment does: finish, close, exit."""
        self.is_up = False
        self.begin(self._end())

    async def _end(self) -> None:
        try:
            await self.middleware.stop()
        except TwoPHPError:  # The store is away, and so nothing can be finished.
            self.world.happened(self.name, "could not stop well")
        self.crash()

    def crash(self) -> None:
        """See Process."""
        self.is_up = False
        super().crash()

    def now_ms(self) -> int:
        """The time by which this replica judges a request that arrives now."""
        server = self.middleware._server
        assert server is not None
        return server.store.now()

    # Requests.

    def serve(self, exchange: Exchange) -> None:
        """A request has arrived."""
        self.serving[exchange] = None
        exchange.task = self.loop.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        asked = exchange.asked
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": asked.method,
            "scheme": "http",
            "path": asked.path,
            "raw_path": asked.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in asked.headers],
            "client": ("10.0.0.9", 40_000),
            "server": ("orders.internal", 80),
        }
        try:
            await self.middleware(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - A server answers 500; that it had to is a finding.
            self.world.oracle.broke(self.name, f"a request raised {error!r}")
        finally:
            self.serving.pop(exchange, None)

    def _cut_all(self) -> None:
        for exchange in self.serving:
            exchange.break_off()

    # The application.

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        oracle, intent = self.world.oracle, current_intent()
        if intent is None:  # Such as a read that is nobody's.
            await _answer(send, 404, b"{}")
            return
        order = msgspec.json.decode(await _whole(receive), type=Order)
        run = oracle.began(self, intent._intent, order)
        await pause(order.before_s)
        oracle.acted(self, run)
        for _one in range(order.reserves):
            await intent.obligations.reserve("publish", {"order": order.number})
        if order.writes_row:
            async with intent.transaction() as tx:
                tx.execute(ADD_ROW, (intent.server_correlation_id, order.number, run))
        if order.after_s:
            await pause(order.after_s)
        if order.ends == "raises":
            raise Failed
        status = {"created": 201, "refused": 422}.get(order.ends, 200)
        self.world.note(self.name, "answers", f"order {order.number} run {run}: {status}")
        await _answer(send, status, b'{"id":"o%d-r%d"}' % (order.number, run), scope["path"])

    async def _hooked(self, event: PhaseEvent) -> None:
        self.world.oracle.hooked(self, event)
        await pause(0.01)
        if self.world.are_faults_on and self.world.random.random() < 0.1:
            raise Failed

    async def _reconcile(self, intent: Intent) -> tuple[Reconciled, str | None]:
        """What the business side knows: what it has done."""
        await pause(0.02)
        has_acted = self.world.oracle.has_acted(intent.server_correlation_id)
        return ("COMMITTED", "found") if has_acted else ("NOT_DONE", None)


async def _nowhere(_host: str, _port: int) -> Sequence[str]:
    """No callback arrives: each is owed, tried, and given up."""
    raise OSError


def _who(head: Head) -> str:
    return head.headers.get("x-user") or "shop"


def _guard(_head: Head, _intent: Intent) -> bool:
    return True


async def _whole(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message: Message = await receive()
        body += bytes(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return body


async def _answer(send: Send, status: int, body: bytes, path: str = "") -> None:
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if path:
        headers.append((b"location", path.encode() + b"/1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
