# ruff: noqa: PLR2004 - Figures that were made up need no names.
"""Made-up traffic for the central ledger, the same every time: for tests of its pages and for pictures of them.

A shop over two weeks: its storefront calls orders, which calls payments, stock and shipping, each of which calls one
more. Most calls end well; some fail, expire, stall, or have only one side here. Beside them stands the draft's worked
example (§10.3), row by row, and one call that made nine hundred others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, Final

import msgspec

from twophp.central.ports import Service
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry, outcome_of
from twophp.core.identity import digest
from twophp.core.intent import Mode, Phase
from twophp.core.policy import DAY_MS, HOUR_MS
from twophp.core.records import Instant

MINUTE_MS: Final = 60_000
DAYS: Final = 14
WIDE: Final = 900
WIDE_ROOT: Final = "5d1c7a52-0f6e-4d0a-9a43-6a1d52c0ffee"

CHAIN: Final = {
    "orders/orders": ("payments/charges", "stock/reservations", "shipping/parcels"),
    "payments/charges": ("fraud/checks",),
    "stock/reservations": ("warehouse/picks",),
    "shipping/parcels": ("labels/labels",),
}
RUN_MS: Final = {
    "orders": 420,
    "payments": 180,
    "stock": 40,
    "shipping": 65,
    "fraud": 110,
    "warehouse": 30,
    "labels": 22,
}

# Row, caller, callee, parent: the draft's worked example; of each line follow two rows.
WORKED: Final = (
    (1, "client", "serviceA", 1),
    (2, "serviceA", "serviceB1", 1),
    (3, "serviceA", "serviceB2", 1),
    (4, "serviceA", "serviceB3", 1),
    (5, "serviceB1", "serviceC1", 2),
    (6, "serviceB2", "serviceD1", 3),
    (7, "serviceB3", "serviceE1", 4),
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call that was made up."""

    client_id: str
    server_id: str
    caller: str
    endpoint: str
    parent: str
    at: Instant
    confirmed_after_ms: int | None
    ran_for_ms: int | None
    phase: Phase
    client_phase: Phase | None  # None: the client has no row here.
    has_server: bool = True
    mode: Mode = Mode.STANDARD
    indeterminate: bool = False
    ttl_ms: int = 30_000

    @property
    def callee(self) -> str:
        """The service that was called."""
        return self.endpoint.partition("/")[0]

    def rows(self) -> Iterator[LedgerEntry]:
        """The rows that are here."""
        if self.client_phase is not None:
            yield self._row("client", self.client_phase, self.at + 4)
        if self.has_server:
            yield self._row("server", self.phase, self.at)

    def _row(self, actor: str, phase: Phase, at: Instant) -> LedgerEntry:
        is_client = actor == "client"
        is_confirmed = self.confirmed_after_ms is not None and phase is not Phase.WAITING_CONFIRM
        confirmed_at = at + (self.confirmed_after_ms or 0) if is_confirmed else None
        known: dict[str, Any] = {
            "client_correlation_id": self.client_id,
            "server_correlation_id": self.server_id,
            "service_ledger_id": "",
            "service_endpoint": self.endpoint,
            "actor": actor,
            "source": self.caller if is_client else self.callee,
            "target": self.callee if is_client else None,
            "parent_reference_id": self.parent if is_client else self.client_id,
            "phase": phase,
            "phase_1_timestamp": at,
            "phase_2_timestamp": confirmed_at,
            "ttl_ms": self.ttl_ms,
            "outcome": outcome_of(phase),
            "payload_ref": None if is_client else f"vault:{self.server_id}/payload",
            "sync_timestamp": None,
            "transaction_reference": None,
            "version": {Phase.WAITING_CONFIRM: 1, Phase.PROCESSING: 2}.get(phase, 3),
            "mode": self.mode,
            "client_id_is_proxy": self.mode is Mode.TRANSPARENT,
            "settled_at": self._settled_at(phase, at),
            "request_digest": digest(b"traffic", self.client_id.encode()),
            "indeterminate": self.indeterminate and phase is Phase.FAILED,
        }
        return LedgerEntry(**known)

    def _settled_at(self, phase: Phase, at: Instant) -> Instant | None:
        if phase in {Phase.COMMITTED, Phase.FAILED}:
            return at + (self.confirmed_after_ms or 0) + (self.ran_for_ms or 0)
        return at + self.ttl_ms if outcome_of(phase) is not None else None


class Shop:
    """Makes the calls up."""

    def __init__(self, now: Instant, seed: int = 7) -> None:
        self._now = now
        self._dice = Random(seed)  # noqa: S311 - The same every time is what is wanted.

    def calls(self, per_day: int) -> Iterator[Call]:
        """Two weeks of them, in no order."""
        for day in range(DAYS):
            for _ in range(self._busy(day, per_day)):
                yield from self._tree(self._moment(day))
        yield from self._odd_ones()

    def _busy(self, day: int, per_day: int) -> int:
        weekday = 0.55 if (self._now // DAY_MS - day) % 7 in {2, 3} else 1.0
        return round(per_day * weekday * self._dice.uniform(0.85, 1.15) * (2 if day == 0 else 1))

    def _moment(self, day: int) -> Instant:
        """Some time of the day; by night little is sold."""
        while True:
            back = self._dice.random()
            if self._dice.random() < 0.35 + 0.65 * math.sin(math.pi * back) ** 2:
                return self._now - day * DAY_MS - int(back * DAY_MS) - MINUTE_MS

    def _tree(self, at: Instant) -> Iterator[Call]:
        fate = self._dice.random()
        endpoint, caller = ("orders/orders", "storefront") if fate < 0.8 else ("stock/reservations", "backoffice")
        yield from self._below(endpoint, caller, None, at)

    def _below(self, endpoint: str, caller: str, parent: str | None, at: Instant) -> Iterator[Call]:
        call = self._call(endpoint, caller, parent, at)
        yield call
        if call.phase in {Phase.COMMITTED, Phase.FAILED, Phase.PROCESSING}:
            start = at + (call.confirmed_after_ms or 0) + 5
            for place, child in enumerate(CHAIN.get(endpoint, ())):
                yield from self._below(child, call.callee, call.client_id, start + 60 * place)

    def _call(self, endpoint: str, caller: str, parent: str | None, at: Instant) -> Call:
        fate = self._dice.random()
        phase = client_phase = Phase.COMMITTED
        if fate < 0.022:
            phase = client_phase = Phase.FAILED
        elif fate < 0.034:
            is_old = self._now - at > HOUR_MS
            phase, client_phase = (Phase.ABANDONED if is_old else Phase.TTL_EXPIRED), Phase.TTL_EXPIRED
        is_confirmed = phase in {Phase.COMMITTED, Phase.FAILED}
        client_id, base = self._id(), RUN_MS[endpoint.partition("/")[0]]
        return Call(
            client_id=client_id,
            server_id=self._id(),
            caller=caller,
            endpoint=endpoint,
            parent=parent or client_id,
            at=at,
            confirmed_after_ms=self._took(14) if is_confirmed else None,
            ran_for_ms=self._took(base) if is_confirmed else None,
            phase=phase,
            client_phase=client_phase,
        )

    def _odd_ones(self) -> Iterator[Call]:
        """Trees in which something is wrong, all within the last minutes, so that they are seen at once."""
        yield from self._failing(self._now - 9 * MINUTE_MS)
        yield from self._one_sided(self._now - 7 * MINUTE_MS)
        yield from self._stalled()

    def _failing(self, at: Instant) -> Iterator[Call]:
        """Fraud says no, so the payment fails, so the order does."""
        tree = list(self._whole("orders/orders", "storefront", None, at))
        bad = {"orders/orders", "payments/charges", "fraud/checks"}
        for call in tree:
            failed = {"phase": Phase.FAILED, "client_phase": Phase.FAILED}
            yield msgspec.structs.replace(call, **failed) if call.endpoint in bad else call

    def _one_sided(self, at: Instant) -> Iterator[Call]:
        """A server's row that is gone, one that is not here yet; a plain caller, and an answer that was lost."""
        for call in self._whole("orders/orders", "storefront", None, at):
            match call.endpoint:
                case "payments/charges":
                    yield msgspec.structs.replace(call, has_server=False, client_phase=Phase.PROCESSING)
                case "stock/reservations":
                    yield msgspec.structs.replace(call, phase=Phase.PROCESSING, client_phase=Phase.WAITING_CONFIRM)
                case "labels/labels":
                    yield msgspec.structs.replace(call, has_server=False, client_phase=Phase.COMMITTED)
                case _:
                    yield call
        call = self._sound("payments/charges", "", None, at)
        yield msgspec.structs.replace(call, client_phase=None, mode=Mode.TRANSPARENT, confirmed_after_ms=None)
        call = self._sound("shipping/parcels", "orders", None, at)
        yield msgspec.structs.replace(call, client_phase=None, phase=Phase.TTL_EXPIRED, confirmed_after_ms=None)

    def _stalled(self) -> Iterator[Call]:
        for back, endpoint, phase in (
            (2, "payments/charges", Phase.WAITING_CONFIRM),
            (4, "stock/reservations", Phase.WAITING_CONFIRM),
            (11, "orders/orders", Phase.TTL_EXPIRED),
            (26, "shipping/parcels", Phase.TTL_EXPIRED),
            (95, "payments/charges", Phase.TTL_EXPIRED),
        ):
            call = self._sound(endpoint, "storefront", None, self._now - back * MINUTE_MS)
            ttl_ms = 10 * MINUTE_MS if back == 2 else 30_000
            open_ = {"phase": phase, "client_phase": phase, "confirmed_after_ms": None, "ran_for_ms": None}
            yield msgspec.structs.replace(call, **open_, ttl_ms=ttl_ms)
        call = self._sound("warehouse/picks", "stock", None, self._now - 14 * MINUTE_MS)
        yield msgspec.structs.replace(call, phase=Phase.PROCESSING, client_phase=Phase.PROCESSING)

    def _whole(self, endpoint: str, caller: str, parent: str | None, at: Instant) -> Iterator[Call]:
        call = self._sound(endpoint, caller, parent, at)
        yield call
        for place, child in enumerate(CHAIN.get(endpoint, ())):
            yield from self._whole(child, call.callee, call.client_id, at + 20 + 60 * place)

    def _sound(self, endpoint: str, caller: str, parent: str | None, at: Instant) -> Call:
        call = self._call(endpoint, caller, parent, at)
        times = {"confirmed_after_ms": self._took(14), "ran_for_ms": self._took(RUN_MS[call.callee])}
        return msgspec.structs.replace(call, phase=Phase.COMMITTED, client_phase=Phase.COMMITTED, **times)

    def _took(self, median_ms: float) -> int:
        return max(round(self._dice.lognormvariate(math.log(median_ms), 0.55)), 1)

    def _id(self) -> str:
        drawn = f"{self._dice.getrandbits(128):032x}"
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def worked_example(at: Instant) -> Iterator[Call]:
    """The draft's seven calls and fourteen rows, E01 to E14."""
    for number, caller, callee, parent in WORKED:
        yield Call(
            client_id=f"client-corr-id{number}",
            server_id=f"server-corr-id{number}",
            caller=caller,
            endpoint=f"{callee}/tasks",
            parent=f"client-corr-id{parent}",
            at=at + 30 * number,
            confirmed_after_ms=8 + number,
            ran_for_ms=(240, 120, 95, 130, 40, 35, 48)[number - 1],
            phase=Phase.COMMITTED,
            client_phase=Phase.COMMITTED,
        )


def wide_tree(at: Instant, many: int = WIDE) -> Iterator[Call]:
    """One call that made very many."""
    root = Call(
        client_id=WIDE_ROOT,
        server_id="wide-root",
        caller="nightly",
        endpoint="reports/run",
        parent=WIDE_ROOT,
        at=at,
        confirmed_after_ms=12,
        ran_for_ms=61_000,
        phase=Phase.COMMITTED,
        client_phase=Phase.COMMITTED,
        ttl_ms=300_000,
    )
    yield root
    for number in range(many):
        phase = Phase.FAILED if number % 151 == 7 else Phase.COMMITTED
        yield msgspec.structs.replace(
            root,
            client_id=f"wide-{number:05}",
            server_id=f"wide-{number:05}-server",
            caller="reports" if number < 40 else "mail",
            endpoint=f"mail/messages/{number % 30:02}",
            parent=WIDE_ROOT if number < 40 else f"wide-{number % 40:05}",
            at=at + 20 + 3 * number,
            ran_for_ms=18 + number % 23,
            phase=phase,
            client_phase=phase,
        )


async def fill(store: CentralStore, calls: Iterable[Call], now: Instant) -> dict[str, Service]:
    """Register every service and let the rows arrive, an hour's at a time, as they would have."""
    rows = [row for call in calls for row in call.rows()]
    services = await registered(store, sorted({row.source for row in rows}), now)
    batches: defaultdict[tuple[int, str], list[LedgerEntry]] = defaultdict(list)
    for row in rows:
        batches[row.phase_1_timestamp // HOUR_MS, row.source].append(row)
    for hour, source in sorted(batches):
        await ingest(store, services[source], batches[hour, source], min((hour + 1) * HOUR_MS, now - MINUTE_MS))
    return services


async def registered(store: CentralStore, names: Sequence[str], now: Instant) -> dict[str, Service]:
    """The services of these names."""
    since = now - (DAYS + 1) * DAY_MS
    return {name: await store.register(name, None, f"token of {name}", since) for name in names}


async def ingest(store: CentralStore, service: Service, rows: Sequence[LedgerEntry], at: Instant) -> None:
    """Let some rows arrive."""
    own = [msgspec.structs.replace(row, service_ledger_id=service.service_ledger_id) for row in rows]
    acks = await store.ingest(service, own, at)
    assert all(ack.outcome != "refused" for ack in acks), [ack for ack in acks if ack.outcome == "refused"][:3]


def everything(now: Instant, per_day: int = 90) -> list[Call]:
    """All that the pictures show."""
    return [
        *Shop(now).calls(per_day),
        *worked_example(now - 32 * MINUTE_MS),
        *wide_tree(now - 3 * DAY_MS - 5 * HOUR_MS),
    ]
