"""What must hold at every step. It looks at what is durable, at what is sent and at what handlers do, from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.simulation.database import Database
from tests.simulation.machine import Process
from tests.simulation.network import Exchange
from tests.simulation.service import LEASE_MS, Order
from twophp.asgi.messages import Message
from twophp.core.errors import PhaseError
from twophp.core.intent import INTENT, SETTLED, UNCONFIRMED, Intent, Phase
from twophp.core.records import JournalEvent
from twophp.delivery.hooks import PhaseEvent
from twophp.kernel.apply import Operations
from twophp.wire import fields
from twophp.wire.fields import Headers

if TYPE_CHECKING:
    from tests.simulation.world import World

_PHASE: Final = fields.PHASE_STATE.key
_SERVER_ID: Final = fields.SERVER_CORRELATION_ID.key
_CLIENT_ID: Final = fields.CLIENT_CORRELATION_ID.key
_SETTLED: Final = frozenset(map(str, SETTLED))
_RAN: Final = frozenset({Phase.PROCESSING, *SETTLED})
WELL_S: Final = 2 * LEASE_MS / 1_000
"""Whoever was well for so long has renewed its leases."""


class Run(msgspec.Struct):
    """One run of a handler."""

    number: int
    process: str
    intent: Intent
    order: Order
    has_acted: bool = False


class Oracle:
    """Everything that was promised, and whether it still holds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: list[str] = []
        self.runs: dict[str, list[Run]] = {}  # By server correlation id.
        self.by_order: dict[int, str] = {}  # The intent under which an order has run.
        self.never: dict[str, str] = {}  # Client ids of which somebody was told that they never run.
        self.intents: dict[str, Intent] = {}  # As they became durable last.
        self.answers: dict[tuple[str, str], tuple[int, Headers, bytes]] = {}
        self.acknowledged: dict[str, tuple[str, int, bytes]] = {}
        self.told: dict[str, int] = {}
        self._sending: dict[Exchange, tuple[int, Headers, bytes]] = {}
        self._run_number = 0

    def broke(self, who: str, what: str) -> None:
        """A promise does not hold."""
        self._world.happened(who, "BROKEN", what)
        self.broken.append(what)

    # What becomes durable.

    def written(self, database: Database, operations: Operations) -> None:
        """A change is durable in a ledger."""
        world = self._world
        for _slot, event in operations.lines:
            detail = f"{event.kind} {event.subject[:8]} {event.before}>{event.after} {event.event} f{event.fence}"
            world.note(database.name, "writes", detail)
        world.count()
        for slot in operations.changed:
            if type(slot.record) is Intent and not slot.is_dropped:
                events = [event for of, event in operations.lines if of is slot]
                self._changed(slot.record, events)
        world.told(database, operations)

    def _changed(self, after: Intent, events: list[JournalEvent]) -> None:
        id_ = after.server_correlation_id
        before = self.intents.get(id_)
        self.intents[id_] = after
        settles = [event for event in events if event.kind == INTENT and event.after in _SETTLED and event.detail]
        if before is not None and before.phase in SETTLED:
            if _outcome(before) != _outcome(after) or settles:
                self.broke("store", f"{id_} was settled a second time: {_outcome(before)}, {_outcome(after)}")
            return
        if len(settles) > 1:
            self.broke("store", f"{id_} was settled {len(settles)} times in one change")
        fence = 0 if before is None else before.fence
        if after.fence < fence:
            self.broke("store", f"{id_} has fence {after.fence} after {fence}")
        was_confirmed = before is not None and before.phase not in UNCONFIRMED
        if not was_confirmed and after.phase in _RAN and after.confirmed_at is not None:
            self._confirmed(after)
        if before is not None and any(event.event == "recovered" for event in events):
            self._recovered(before, after)

    def _confirmed(self, intent: Intent) -> None:
        assert intent.confirmed_at is not None
        late_ms = intent.confirmed_at - intent.deadline_at
        end_ms = intent.delta_ms if intent.path == "/late" else 0
        if late_ms >= end_ms:
            self.broke("store", f"{intent.server_correlation_id} was confirmed {late_ms} ms after its deadline")

    def _recovered(self, before: Intent, after: Intent) -> None:
        owner = self._world.owners.get(before.owner or "")
        if owner is None or owner.is_dead or after.owner == before.owner:
            return
        now = self._world.scheduler.now
        if now - owner.unwell_until > WELL_S and not self._world.is_shaken(WELL_S):
            self.broke("store", f"{before.server_correlation_id} was taken over from {owner.name}, which is well")

    # What handlers do.

    def began(self, process: Process, intent: Intent, order: Order) -> int:
        """A handler begins. Its number is in its answer, so answers of two runs differ."""
        world, id_ = self._world, intent.server_correlation_id
        self._run_number += 1
        runs = self.runs.setdefault(id_, [])
        world.happened(process.name, "runs", f"order {order.number} run {self._run_number} {id_[:8]} f{intent.fence}")
        durable = world.orders.intent(id_)
        if durable is None or durable.phase not in _RAN or durable.fence < intent.fence:
            self.broke(process.name, f"{id_} runs, and its confirm is not durable")
        if runs and intent.path != "/reruns":
            self.broke(process.name, f"{id_} runs a second time")
        if any(run.intent.fence == intent.fence for run in runs):
            self.broke(process.name, f"{id_} runs twice under fence {intent.fence}")
        if self.by_order.setdefault(order.number, id_) != id_:
            self.broke(process.name, f"order {order.number} runs as {id_} and as {self.by_order[order.number]}")
        if intent.client_correlation_id in self.never:
            self.broke(process.name, f"{id_} runs, and its caller was told {self.never[intent.client_correlation_id]}")
        runs.append(Run(self._run_number, process.name, intent, order))
        return self._run_number

    def acted(self, process: Process, number: int) -> None:
        """A handler has done what no store can undo."""
        for runs in self.runs.values():
            for run in runs:
                if run.number == number:
                    run.has_acted = True
                    self._world.note(process.name, "acts", f"run {number}")

    def has_acted(self, server_correlation_id: str) -> bool:
        """Whether any run of it has."""
        return any(run.has_acted for run in self.runs.get(server_correlation_id, ()))

    def hooked(self, process: Process, event: PhaseEvent) -> None:
        """A hook was called: what it is told must be durable."""
        durable = self._world.orders.intent(event.server_correlation_id)
        self._world.note(process.name, "hook", f"{event.server_correlation_id[:8]} {event.phase}")
        self.told[event.id] = self.told.get(event.id, 0) + 1
        if durable is None or durable.phase != event.phase:
            self.broke(process.name, f"a hook was told of {event.id} before that was durable")

    # What clients are told.

    def sent(self, exchange: Exchange, message: Message) -> None:
        """A server sends a part of an answer: what it says must be durable by now, and the same as ever."""
        if message["type"] == "http.response.start":
            self._sending[exchange] = message["status"], list(message["headers"]), b""
            self._started(exchange, message)
            return
        status, headers, body = self._sending.pop(exchange, (0, [], b""))
        body += message.get("body", b"")
        if message.get("more_body"):
            self._sending[exchange] = status, headers, body
            return
        self._completed(exchange, status, headers, body)

    def _started(self, exchange: Exchange, message: Message) -> None:
        said = dict(message["headers"])
        phase = said.get(_PHASE, b"").decode()
        asked, server = exchange.asked, exchange.server
        assert server is not None
        id_ = said.get(_SERVER_ID, asked.field(_SERVER_ID).encode()).decode()
        self._world.note(server.name, "says", f"{message['status']} {phase} {id_[:8]}".rstrip())
        if not phase or not id_ or phase in {"TTL_EXPIRED", "ABANDONED"}:
            return
        durable = self._world.orders.intent(id_)
        is_true = durable is not None and (durable.phase == phase or phase not in _SETTLED)
        if phase == Phase.PROCESSING:
            is_true = durable is not None and durable.phase in _RAN
        if not is_true:
            found = None if durable is None else durable.phase
            self.broke(server.name, f"{id_} was answered {phase}, and what is durable is {found}")
        if durable is not None and asked.field(b"x-user"):
            self.broke(server.name, f"{id_} was answered {phase} to somebody else")

    def _completed(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        said = dict(headers)
        if exchange.asked.method != "POST" or said.get(_PHASE, b"").decode() not in _SETTLED:
            return
        id_ = said.get(_SERVER_ID, exchange.asked.field(_SERVER_ID).encode()).decode()
        kind = "confirm" if exchange.asked.path.endswith("/confirm") else "phase 1"
        told = status, sorted(pair for pair in headers if pair[0] != b"date"), body
        first = self.answers.setdefault((id_, kind), told)
        if first != told:
            self.broke("network", f"{id_} was answered in two ways: {first}, {told}")

    def heard(self, who: str, order: Order, response: Any, body: bytes) -> None:
        """A caller has its outcome."""
        info = response.extensions["twophp"]
        if info["phase"] not in _SETTLED or info["server_correlation_id"] is None:
            return
        id_ = info["server_correlation_id"]
        told = info["phase"], response.status_code, body
        self.acknowledged[id_] = told
        durable = self._world.orders.intent(id_)
        if durable is None or durable.phase != info["phase"]:
            self.broke(who, f"{id_} was acknowledged as {info['phase']}, and what is durable is {durable}")
        if info["phase"] == Phase.COMMITTED and b"o%d-" % order.number not in body and body:
            self.broke(who, f"order {order.number} was answered {body!r}")

    def may_be_made_anew(self, order: Order, error: PhaseError) -> None:
        """A caller was told that nothing ran and nothing will: that must be so for ever."""
        id_ = error.client_correlation_id or ""
        self.never[id_] = f"{error.code} of order {order.number}"
        for intent in self.intents.values():
            if intent.client_correlation_id == id_ and intent.phase in _RAN and intent.status not in {307, 308}:
                self.broke("shop", f"{id_} is {intent.phase}, and its caller was told {error.code}: resubmit")

    def strange(self, exchange: Exchange, status: int, headers: Headers) -> None:
        """Somebody else was answered: nothing may be told."""
        if any(name == _PHASE for name, _value in headers):
            self.broke("scripts", f"{exchange.asked.field(_SERVER_ID)} was told to somebody else ({status})")


def _outcome(intent: Intent) -> tuple[object, ...]:
    facts = intent.phase.value, intent.status, intent.resource_id, intent.settled_at
    return (*facts, intent.indeterminate, intent.transaction_reference, intent.fence)
