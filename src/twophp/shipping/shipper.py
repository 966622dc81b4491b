"""Tier 2: a background job that brings a ledger's rows to the central one (draft §9.4), never on a request's path.

What has to be sent is not kept here: a row without ``sync_timestamp`` is the debt, written in the same transaction as
the transition it tells of, and an acknowledged version is its payment (A-57). So there is no queue that could grow or
be lost, and an outage of hours costs no memory: a row that changed during it is sent once, in its newest version. Rows
leave a bounded batch at a time, oldest change first. Each batch has an obligation of its own (``shipping.shipments``),
so the leak scan finds a central ledger that stays away.

A service registers its ledger under the GUID it claimed at its first start (A-59). If the central ledger knows the
credential under another, that one becomes the ledger's own: its rows are stamped anew before the first of them leaves.

    nothing left       a heartbeat says so now and then: by it central can tell a row that is late from one that is lost
    429, 503           wait as long as it says
    400, 413, 422      halve the batch; a single row that is not taken is left alone and logged
    no answer          the shipment stays open; no other is opened before there is an answer, so an outage opens one
    anything else      back off, further each time, with jitter: services that fell silent together come back apart
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from twophp.core.entry import LedgerEntry, Writer
from twophp.core.errors import DeliveryFailed, StoreError
from twophp.core.obligation import Obligation
from twophp.core.records import Instant, since_epoch
from twophp.core.settings import SettingsStruct, check_rules
from twophp.delivery.connectors import require_reserved
from twophp.delivery.fetch import Answer, fetch, read_origin
from twophp.engine.environment import flag_in, number_in, secret_in
from twophp.engine.obligations.flow import DecisionListener
from twophp.ports import MintId, Synced, WholeStore
from twophp.shipping.remembering import GivenHead, Remembering
from twophp.shipping.shipments import Shipments

log: Final = logging.getLogger("twophp.ship")

URL_VARIABLE: Final = "TWOPHP_CENTRAL"
TOKEN_VARIABLE: Final = "TWOPHP_CENTRAL_TOKEN"  # noqa: S105 - A name.
INTERVAL_VARIABLE: Final = "TWOPHP_CENTRAL_INTERVAL_S"
KEY_VARIABLE: Final = "TWOPHP_CENTRAL_KEY"
EVENTS_VARIABLE: Final = "TWOPHP_CENTRAL_EVENTS"

PULL_PATH: Final = "/_2php/ledger"
"""Where a service answers a pull, appended to its own address."""

HEARTBEAT_S: Final = 30.0
LONGEST_WAIT_S: Final = 300.0
GATHER_S: Final = 0.05
"""How long an event waits for others to travel with: one exchange for many, and none is late."""
FAREWELL_S: Final = 2.0
"""How long a service that stops may take to send what is left."""
MOST_REFUSED: Final = 10_000
"""How many rows that are not taken are remembered, so that they delay no other; behind more, others wait."""

MOST_SAID_CHARS: Final = 300


OK: Final = 200
FORBIDDEN: Final = 403
TOO_MUCH: Final = frozenset({400, 413, 422})
BUSY: Final = frozenset({429, 503})

Encode: TypeAlias = Callable[..., bytes]
"""A batch of rows as JSON (``wire.rows.encode_batch``); the engine does not know the wire."""


class Shipping(SettingsStruct, frozen=True, kw_only=True):
    """Where a ledger's rows go, as whom, and how often."""

    url: str
    token: str
    interval_s: float = 5.0
    events: bool = False  # Each row as soon as it is written, and not with the next batch (draft §9.5).
    batch_rows: int = 250
    timeout_s: float = 10.0
    leak_timeout_s: float = 60.0  # A batch that is not acknowledged for so long has leaked.
    pull_url: str | None = None
    key: str | None = None  # Whose signature the central ledger's heads have; else that of the first one.
    allow_insecure: bool = False
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        read_origin(self.url, allow_insecure=self.allow_insecure)
        if self.pull_url is not None:  # The central ledger decides whether plain HTTP will do.
            read_origin(self.pull_url, allow_insecure=True)
        is_sendable = self.token.isascii() and self.token.isprintable() and " " not in self.token
        rules = [
            (bool(self.token), f"central_token= or {TOKEN_VARIABLE} must name the service's token"),
            (is_sendable, "central_token must be one word of printable ASCII characters"),
            ((self.pull_url or PULL_PATH).rstrip("/").endswith(PULL_PATH), f"pull_url must end with {PULL_PATH}"),
            (0 < self.interval_s < math.inf, "central_interval_s must be positive and finite"),
            (0 < self.batch_rows <= 5_000, "batch_rows must be 1 to 5000"),  # noqa: PLR2004
            (0 < self.timeout_s < self.leak_timeout_s, "timeout_s must be positive and below leak_timeout_s"),
        ]
        check_rules(rules)

    def __repr__(self) -> str:
        return f"Shipping({self.url!r})"  # No token in a log.


def shipping(
    url: str | None,
    token: str | None,
    interval_s: float | None,
    *,
    events: bool | None = None,
    pull_url: str | None = None,
    allow_insecure: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Shipping | None:
    """What the code said, or else what the environment says; None: this ledger is not sent anywhere."""
    environ = os.environ if environ is None else environ
    where = url or environ.get(URL_VARIABLE)
    if not where:
        return None
    every = interval_s if interval_s is not None else number_in(environ, INTERVAL_VARIABLE, 5.0)
    secret = token or secret_in(environ, TOKEN_VARIABLE) or ""
    return Shipping(
        url=where,
        token=secret,
        interval_s=every,
        events=flag_in(environ, EVENTS_VARIABLE) if events is None else events,
        pull_url=pull_url,
        key=environ.get(KEY_VARIABLE),
        allow_insecure=allow_insecure,
    )


class _Registered(msgspec.Struct, frozen=True):
    service_ledger_id: str


class _Ack(msgspec.Struct, frozen=True):
    version: int
    outcome: Literal["stored", "known", "older", "refused"]
    sync_timestamp: datetime | None = None
    code: str | None = None


class _Acks(msgspec.Struct, frozen=True):
    acks: list[_Ack]
    head: GivenHead | None = None  # An older central ledger has none.


class _Problem(msgspec.Struct, frozen=True):
    code: str = ""
    detail: str = ""


class NotTaken(DeliveryFailed):
    """The central ledger did not take a batch; ``retry_after_s`` is what it asked for."""

    default_code = "not_taken"

    def __init__(self, message: str, *, reason: str, status: int | None, retry_after_s: int | None = None) -> None:
        super().__init__(message, reason=reason, status=status)
        self.retry_after_s = retry_after_s


class BatchRefused(NotTaken):
    """These very rows are too many, or one cannot be read. Not raised for a registration, which has no rows."""


Renamed: TypeAlias = Callable[[Writer], None]
"""Called with the writer of all rows from now on."""
RowKey: TypeAlias = tuple[str, str, str, int]


class Shipper:
    """Sends one store's rows, in a task of its own between ``start`` and ``close``."""

    def __init__(
        self,
        store: WholeStore,
        writer: Writer,
        to: Shipping,
        *,
        encode: Encode,
        mint: MintId,
        told: DecisionListener | None = None,
        renamed: Renamed | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._to = to
        self._origin = read_origin(to.url, allow_insecure=to.allow_insecure)
        self._encode = encode
        self._mint = mint
        self._shipments = Shipments(
            store,
            writer.service_ledger_id,
            mint=mint,
            timeout_ms=round(to.leak_timeout_s * 1_000),
            attempt_ms=round(to.timeout_s * 1_000),
            told=told,
        )
        self._remembering = Remembering(store, to.key)
        self._renamed = renamed
        self._registered_as: str | None = None
        self._refused: set[RowKey] = set()
        self._failures = 0
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def broken_promises(self) -> int:
        """How often the central ledger gave a head that does not continue the one before."""
        return self._remembering.broken

    @property
    def failures(self) -> int:
        """How many attempts in a row have failed."""
        return self._failures

    def start(self) -> None:
        """Begin."""
        log.info("rows go to %s every %g s", self._to.url, self._to.interval_s)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what is left, if the other side answers at once, and stop. What is not sent is sent next time."""
        self._stopping.set()
        self._news.set()
        if self._task is not None:
            _done, left = await asyncio.wait([self._task], timeout=FAREWELL_S)
            for task in left:
                task.cancel()
                await asyncio.wait([task], timeout=FAREWELL_S)

    async def _run(self) -> None:
        """Send now and at every interval, until closed; then once more, unless the last attempt failed."""
        while not self._stopping.is_set():
            wait_s = await self._visit()
            await self._pause(wait_s)
        if not self._failures:
            await self._visit()

    def wake(self) -> None:
        """Send now, without waiting for the interval. A central ledger that is away is still asked less and less."""
        if not self._failures:
            self._news.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
                async with asyncio.timeout(GATHER_S):
                    await self._stopping.wait()
        if not self._stopping.is_set():
            self._news.clear()

    async def _visit(self) -> float:
        """One round; return how long to wait until the next. What fails is tried again, so nothing is lost."""
        try:
            await self.ship()
        except (DeliveryFailed, StoreError) as error:
            return self._after(error)
        except Exception:
            log.exception("rows could not be sent")
            return self._after(None)
        if self._failures:
            log.info("the central ledger is back after %d attempts", self._failures)
        self._failures = 0
        return self._to.interval_s

    def _after(self, error: Exception | None) -> float:
        self._failures += 1
        if self._failures == 1 and error is not None:
            log.warning("rows wait for the central ledger: %s", error)
        drawn = int(self._mint().replace("-", "")[:8], 16) / 0xFFFF_FFFF
        longest = min(self._to.interval_s * 2 ** min(self._failures, 16), LONGEST_WAIT_S)
        wait_s = longest / 2 + longest / 2 * drawn
        asked = error.retry_after_s if isinstance(error, NotTaken) else None
        return min(asked * (1 + drawn / 2), LONGEST_WAIT_S) if asked else wait_s

    async def ship(self) -> int:
        """Send all that has changed, a batch at a time, and return how many rows were taken. Raises DeliveryFailed."""
        if self._failures:  # A central ledger that failed last time has to answer before a shipment is opened.
            await self._shipments.scan()
            self._registered_as = await self._register()
        taken = 0
        while True:
            limit = self._to.batch_rows + len(self._refused)
            found = await self._store.changes(limit)
            wanted = [row for row in found if _key(row) not in self._refused]
            rows = wanted[: self._to.batch_rows]
            drained = len(found) < limit and len(rows) == len(wanted)
            if len(found) < limit:  # These are all: any other refused row has a newer version, or is gone.
                self._refused.intersection_update(map(_key, found))
            if rows:
                pushed = await self._push(rows, drained=drained)
                if pushed is None:
                    return taken
                taken += pushed
                if not pushed and len(self._refused) >= MOST_REFUSED:
                    message = f"The central ledger refuses {MOST_REFUSED:,} rows and more; others wait behind them."
                    raise NotTaken(message, reason="refused", status=None)
            elif self._wants_heartbeat():
                await self._send([], None, drained=True)
            if drained or not rows:
                return taken

    def _wants_heartbeat(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard_at >= HEARTBEAT_S

    async def _register(self) -> str:
        claim = {"name": self._writer.source, "service_ledger_id": self._writer.service_ledger_id}
        if self._to.pull_url:
            claim["pull_url"] = self._to.pull_url
        answer = await self._post("/v1/services", msgspec.json.encode(claim), {})
        if answer.status != OK:
            raise _not_taken(answer)
        found = _decoded(answer.body, _Registered)
        if found.service_ledger_id != self._writer.service_ledger_id:
            log.warning(
                "the central ledger knows this service as %s; rows are written as that", found.service_ledger_id
            )
            await self._rename(found.service_ledger_id)
        return found.service_ledger_id

    async def _rename(self, issued: str) -> None:
        """New rows first, then those that are there: none is written under the old GUID after that.

        The old one is claimed until that is done, so what fails half way is begun again with the next registration.
        """
        writer = msgspec.structs.replace(self._writer, service_ledger_id=issued)
        if self._renamed is not None:
            self._renamed(writer)
        await self._store.reassign_ledger_id(issued)
        self._writer = writer

    async def _push(self, rows: Sequence[LedgerEntry], *, drained: bool) -> int | None:
        """Send under a shipment and note what was acknowledged; None if another worker is sending.

        A batch that is not understood is halved until the row is found. Any other failure leaves the shipment open.
        """
        shipment = await self._shipments.open()
        if shipment is None:
            return None
        try:
            acks = await self._send(rows, shipment, drained=drained)
        except BatchRefused as error:
            await self._shipments.roll_back(shipment)
            if len(rows) == 1:
                self._refuse(rows[0], f"status {error.status}")
                return 0
            middle = len(rows) // 2
            first = await self._push(rows[:middle], drained=False)
            second = None if first is None else await self._push(rows[middle:], drained=drained)
            return None if first is None or second is None else first + second
        return await self._note(shipment, rows, acks)

    async def _note(self, shipment: Obligation, rows: Sequence[LedgerEntry], acks: Sequence[_Ack]) -> int:
        synced: dict[Instant, list[LedgerEntry]] = {}
        for row, ack in zip(rows, acks, strict=True):
            if ack.outcome == "refused" or ack.sync_timestamp is None:
                self._refuse(row, ack.code or "refused")
            else:
                synced.setdefault(since_epoch(ack.sync_timestamp), []).append(row)
        if not synced:
            await self._shipments.roll_back(shipment)
        elif not await self._shipments.commit(shipment, tuple(Synced(rows, at) for at, rows in synced.items())):
            message = "The shipment was given up before it was acknowledged; its rows are sent again."
            raise NotTaken(message, reason="late", status=None)
        return sum(len(entries) for entries in synced.values())

    def _refuse(self, row: LedgerEntry, code: str) -> None:
        log.error(
            "the central ledger refuses a row: %s",
            code,
            extra={
                "client_correlation_id": row.client_correlation_id,
                "server_correlation_id": row.server_correlation_id,
            },
        )
        if len(self._refused) < MOST_REFUSED:
            self._refused.add(_key(row))

    async def _send(self, rows: Sequence[LedgerEntry], shipment: Obligation | None, *, drained: bool) -> Sequence[_Ack]:
        """Send rows: the only way by which they leave. A heartbeat has none, and needs no shipment."""
        if rows:
            require_reserved(shipment)
        if self._registered_as is None:
            self._registered_as = await self._register()
        # In a thread: no request waits while rows are encoded and compressed.
        body = await asyncio.to_thread(self._packed, rows, drained, await self._remembering.size())
        answer = await self._post("/v1/entries", body, {"Content-Encoding": "gzip"})
        if answer.status == FORBIDDEN:
            self._registered_as = None  # The central ledger may have lost our registration: register again.
        if answer.status != OK:
            raise _not_taken(answer, BatchRefused if answer.status in TOO_MUCH else NotTaken)
        said = _decoded(answer.body, _Acks)
        acks = said.acks
        if len(acks) != len(rows):
            raise NotTaken("The answer does not fit the batch.", reason="bad_answer", status=answer.status)
        self._heard_at = asyncio.get_running_loop().time()
        if said.head is not None:
            await self._remembering.look(said.head)
        return acks

    def _packed(self, rows: Sequence[LedgerEntry], drained: bool, head: int) -> bytes:  # noqa: FBT001 - For a thread.
        issued = self._registered_as
        stamped = [
            row if row.service_ledger_id == issued else msgspec.structs.replace(row, service_ledger_id=issued)
            for row in rows
        ]
        return gzip.compress(self._encode(stamped, drained=drained, head=head), compresslevel=1, mtime=0)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        sent = {"Authorization": f"Bearer {self._to.token}", "Content-Type": "application/json", **headers}
        return await fetch(
            self._origin,
            "POST",
            path,
            headers=sent,
            body=body,
            tls=self._to.ssl_context,
            timeout_s=self._to.timeout_s,
        )


def _key(row: LedgerEntry) -> RowKey:
    return row.client_correlation_id, row.server_correlation_id, row.actor, row.version


T = TypeVar("T")


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise NotTaken("The answer cannot be understood.", reason="bad_answer", status=None) from error


def _not_taken(answer: Answer, kind: type[NotTaken] = NotTaken) -> NotTaken:
    said = ""
    with suppress(msgspec.DecodeError):
        problem = msgspec.json.decode(answer.body, type=_Problem)
        said = f" {problem.code}: {problem.detail}".rstrip(": ")[:MOST_SAID_CHARS]
    retry_after_s = answer.retry_after_s if answer.status in BUSY else None
    message = f"The central ledger answered {answer.status}{said}."
    return kind(message, reason="status", status=answer.status, retry_after_s=retry_after_s)
