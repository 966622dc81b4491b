"""An outbox over a store with a clock set by hand, and receivers that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.delivery.tls_server import Behaviour, read_request
from tests.patience import PATIENCE_S
from twophp.core import phase
from twophp.core.entry import Writer
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.intent_commands import Register
from twophp.core.job import Job, Tries, by_job_id
from twophp.core.policy import Policy
from twophp.core.records import Instant
from twophp.delivery.callbacks import callback_letter
from twophp.delivery.outbox import Deliver, Delivery, Outbox, OutboxMessage, PendingAcknowledgement
from twophp.engine.intents import Intents
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, WholeStore
from twophp.stores.memory import MemoryStore
from twophp.stores.testing.scene import T0, HandClock
from twophp.stores.vault import AesGcmVault, KeyRing
from twophp.wire.callback import Acknowledgement, encode

SERVICE = "orders"
POLICY = Policy.standard()
VAULT = AesGcmVault(KeyRing({"k": bytes(32)}, "k"))
WRITER = Writer(source=SERVICE, service_ledger_id="00000000-0000-4000-8000-000000000001")
GUARD_S = PATIENCE_S
"""Longer than any test runs. Only what would hang for ever meets it."""


class Receiver:
    """A deliverer that notes every attempt, and waits or fails as the test sets it."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self.errors: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.in_flight = self.most_in_flight = 0

    async def __call__(self, delivery: Delivery) -> None:
        self.seen.append(delivery)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.open.wait()
        finally:
            self.in_flight -= 1
        if self.errors:
            raise self.errors.pop(0)

    async def is_visited(self) -> bool:
        return bool(self.seen)

    @property
    def ids(self) -> list[str]:
        return [delivery.job.job_id for delivery in self.seen]


class Desk:
    """A service's intents and its outbox."""

    def __init__(
        self, receive: Deliver, store: WholeStore | None = None, clock: HandClock | None = None, **facts: Any
    ) -> None:
        self.clock = clock or HandClock()
        self.store = store or MemoryStore(clock=self.clock)
        works: dict[str, Deliver] = {"callback": receive, "hook": receive}
        self.outbox = Outbox(self.store, VAULT, SERVICE, **({"deliver": works} | facts))
        self.intents = Intents(self.store, VAULT, WRITER)

    async def owe(
        self, name: str = "1", url: str = "https://hooks.example.com/c"
    ) -> tuple[phase.IntentDecision, PendingAcknowledgement]:
        """Register an auto-confirmed intent with a callback; nothing is started yet."""
        owed = self.outbox.owing(acknowledging(url))
        decision = await self.intents.register(registration(name), b"payload", POLICY, follow=owed)
        return decision, owed

    async def put(self, *names: str) -> None:
        """Jobs that are not started."""
        letters = [callback_letter(name, "https://hooks.example.com/", b"{}") for name in names]
        puts = tuple(self.outbox.put_for(letter, self.clock.now) for letter in letters)
        await self.store.transact(AdHocCommand((), lambda _records: Change(answer=None, puts=puts)))

    async def job(self, name: str = "server-1") -> Job:
        key = by_job_id(f"{name}/callback")
        job = await self.store.transact(AdHocCommand((key,), lambda records: Change(answer=records.get(key))))
        assert isinstance(job, Job)
        return job

    async def idle(self) -> None:
        """Until no attempt is under way."""
        while self.outbox._attempts:
            await asyncio.wait(set(self.outbox._attempts))

    async def deliver_due(self) -> None:
        """Attend to everything that is due now, and see it through."""
        while await self.outbox.visit():
            await self.idle()
        await self.idle()

    async def next_due(self, name: str = "server-1") -> None:
        """Let time pass until the job is due, then deliver."""
        due_at = (await self.job(name)).due_at
        assert due_at is not None
        self.clock.now = due_at
        await self.deliver_due()


def registration(name: str = "1", **facts: Any) -> Register:
    known: dict[str, Any] = {
        "client_correlation_id": f"client-{name}",
        "server_correlation_id": f"server-{name}",
        "principal": "alice",
        "replay_key": "what was meant",
        "mode": Mode.AUTO_CONFIRM,
        "service_endpoint": "orders/orders",
        "path": "/orders",
        "arrived_at": T0,
        "owner": "worker",
    }
    return Register(**(known | facts))


def acknowledging(url: str) -> Callable[[Intent, Instant], OutboxMessage]:
    """What the edge will do: the draft's five fields, as they are when the point of no return is crossed."""

    def letter(intent: Intent, now: Instant) -> OutboxMessage:
        assert intent.phase is Phase.PROCESSING
        acknowledgement = Acknowledgement(
            server_correlation_id=intent.server_correlation_id,
            client_correlation_id=intent.client_correlation_id,
            dispatched_at=now,
        )
        return callback_letter(intent.server_correlation_id, url, encode(acknowledgement))

    return letter


class Site:
    """A server's behaviour: notes every request and answers with the next status, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses) or [204]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.arrived = asyncio.Event()

    def behaviour(self) -> Behaviour:
        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head, body = await read_request(reader)
            lines = head.decode("ascii").split("\r\n")[1:-2]
            fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            self.requests.append((fields, body))
            self.arrived.set()
            status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
            writer.write(f"HTTP/1.1 {status} Said\r\n\r\n".encode("ascii"))
            await writer.drain()

        return behave


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Let the others go on until something is so; the test's guard ends what never is."""
    while not await is_so():  # noqa: ASYNC110 - it is a fact of the store, which has no event for it.
        await asyncio.sleep(0)


QUICK = Tries(attempts=2, attempt_ms=50, lease_ms=60)
"""For attempts that end by being cut off."""
