"""Pulling a service's local ledger on demand (draft §9.6): an operator need not wait for the next batch.

The service answers on ``/_2php/ledger`` with the rows that it has not been told are here: rows only, never a payload
(A-63). Each round acknowledges what the one before brought, so a pull goes on where it stands and ends by itself.

Two more questions bring no rows, and nothing of their answers is kept here: all about one call (its journal, attempts
and obligations stay with the service, A-47), and who executes some calls until when (A-54).

The credential is another one than any that a service holds towards us, and each service has its own: it is derived from
one key and the service's name. A service that keeps what it was sent can do nothing with it anywhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from twophp.central.api.problems import ApiProblem
from twophp.central.missing import Heard
from twophp.central.ports import Ack, Service
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConfigError, DeliveryFailed, TwoPHPError, WireError
from twophp.delivery.fetch import fetch, read_origin
from twophp.ports import Clock
from twophp.shipping.shipper import PULL_PATH
from twophp.wire.evidence import EvidenceFacts, LeaseFacts, decode_evidence, decode_leases
from twophp.wire.instant import format_instant
from twophp.wire.rows import decode_rows

MANAGEMENT_TAG: Final = b"twophp:management:1\0"
MANAGEMENT_PREFIX: Final = "tphpm_"
MIN_KEY_BYTES: Final = 32

PAGE: Final = 500
MOST_LEASES: Final = 100
MOST_ROUNDS: Final = 100
MOST_AT_ONCE: Final = 4
TIMEOUT_S: Final = 10.0
OK: Final = 200

T = TypeVar("T")


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """What a pull brought. ``complete``: the service had nothing more."""

    service_ledger_id: str
    rows: int
    stored: int
    refused: int
    complete: bool


class _Page(msgspec.Struct, frozen=True):
    rows: msgspec.Raw
    drained: bool = False
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""
    evidence: msgspec.Raw | UnsetType = UNSET
    leases: msgspec.Raw | UnsetType = UNSET


def management_token(key: bytes, service: str) -> str:
    """The management credential of one service."""
    return MANAGEMENT_PREFIX + hmac.new(key, MANAGEMENT_TAG + service.encode(), hashlib.sha256).hexdigest()


def check_pull_url(url: str, *, allow_insecure: bool = False) -> str:
    """The URL, if a ledger can be pulled from there; raises ConfigError.

    The path is fixed, so that a registration cannot make the central ledger send other requests.
    """
    origin = read_origin(url, allow_insecure=allow_insecure)
    if not origin.path.endswith(PULL_PATH):
        raise ConfigError(f"a pull URL ends with {PULL_PATH}", code="bad_url")
    return url


class Puller:
    """Pulls. Without a key nothing can be pulled."""

    def __init__(
        self,
        store: CentralStore,
        clock: Clock,
        heard: Heard,
        *,
        key: bytes | None = None,
        allow_insecure: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if key is not None and len(key) < MIN_KEY_BYTES:
            raise ConfigError(f"the management key needs {MIN_KEY_BYTES} bytes", code="bad_key")
        self.heard = heard
        self.allow_insecure = allow_insecure
        self._store = store
        self._clock = clock
        self._key = key
        self._tls = ssl_context
        self._timeout_s = timeout_s
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)

    async def pull(self, service: Service, *, correlation_id: str | None = None) -> Pulled:
        """Take up everything that the service has not sent, or every row with one id; raises ApiProblem."""
        return await self._guarded(service, self._rounds(service, correlation_id))

    async def evidence(self, service: Service, client_correlation_id: str, server_correlation_id: str) -> EvidenceFacts:
        """All that the service holds about one call beside its rows; nothing of it is kept. Raises ApiProblem."""
        return await self._guarded(service, self._evidence(service, client_correlation_id, server_correlation_id))

    async def leases(self, service: Service, pairs: Sequence[tuple[str, str]]) -> list[LeaseFacts]:
        """Who executes these calls, and until when; of those it does not know, nothing. Raises ApiProblem."""
        return await self._guarded(service, self._leases(service, pairs[:MOST_LEASES]))

    async def _guarded(self, service: Service, asking: Coroutine[Any, Any, T]) -> T:
        """The answer, a few at a time; every way to get none as a problem."""
        if service.pull_url is None or self._key is None:
            asking.close()
            raise ApiProblem("no_pull_url")
        try:
            async with self._at_once:
                return await asking
        except ApiProblem:
            raise
        except (DeliveryFailed, WireError, ConfigError) as error:
            raise ApiProblem("pull_failed", _words(error)) from error

    async def _evidence(self, service: Service, client_id: str, server_id: str) -> EvidenceFacts:
        page = await self._post(service, {"limit": 1, "about": (client_id, server_id)})
        return decode_evidence(_told(page.evidence))

    async def _leases(self, service: Service, pairs: Sequence[tuple[str, str]]) -> list[LeaseFacts]:
        page = await self._post(service, {"limit": 1, "leases": pairs})
        return decode_leases(_told(page.leases))

    async def _rounds(self, service: Service, correlation_id: str | None) -> Pulled:
        rows = stored = refused = 0
        acks: Sequence[Ack] = ()
        for _ in range(MOST_ROUNDS):
            entries, drained = await self._ask(service, correlation_id, acks)
            at = self._clock()
            acks = await self._store.take_up(service, entries, at) if entries else ()
            rows += len(entries)
            stored += sum(ack.outcome == "stored" for ack in acks)
            refused_now = sum(ack.outcome == "refused" for ack in acks)
            refused += refused_now
            if drained:
                self.heard.drained(service.service_ledger_id, at)
            if drained or correlation_id is not None or refused_now == len(acks):
                if acks:
                    await self._ask(service, correlation_id, acks)  # So that the service knows of the last rows, too.
                return _pulled(service, rows, stored, refused, complete=drained)
        return _pulled(service, rows, stored, refused, complete=False)

    async def _ask(
        self, service: Service, correlation_id: str | None, acks: Sequence[Ack]
    ) -> tuple[list[LedgerEntry], bool]:
        wanted: dict[str, Any] = {
            "limit": PAGE,
            "synced": [_synced(ack) for ack in acks if ack.outcome != "refused"],
        }
        if correlation_id is not None:
            wanted["correlation_id"] = correlation_id
        page = await self._post(service, wanted)
        # The service may not know yet under which GUID it is registered here.
        id_ = service.service_ledger_id
        rows = [msgspec.structs.replace(row, service_ledger_id=id_) for row in decode_rows(bytes(page.rows))]
        return rows[:PAGE], page.drained

    async def _post(self, service: Service, wanted: Any) -> _Page:
        assert service.pull_url is not None
        assert self._key is not None
        origin = read_origin(check_pull_url(service.pull_url, allow_insecure=True), allow_insecure=self.allow_insecure)
        token = management_token(self._key, service.name)
        answer = await fetch(
            origin,
            "POST",
            "",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            body=msgspec.json.encode(wanted),
            tls=self._tls,
            timeout_s=self._timeout_s,
        )
        if answer.status != OK:
            raise DeliveryFailed(f"The service answered {answer.status}.", reason="status", status=answer.status)
        try:
            return msgspec.json.decode(answer.body, type=_Page)
        except msgspec.DecodeError as error:
            raise WireError("the service's answer is not a page of rows") from error


def _told(part: msgspec.Raw | UnsetType) -> bytes:
    if isinstance(part, UnsetType):
        raise WireError("The service answers with rows alone: it is older than this question.")
    return bytes(part)


def _synced(ack: Ack) -> dict[str, object]:
    return {
        "client_correlation_id": ack.client_correlation_id,
        "server_correlation_id": ack.server_correlation_id,
        "actor": ack.actor,
        "version": ack.version,
        "sync_timestamp": None if ack.sync_timestamp is None else format_instant(ack.sync_timestamp),
    }


def _pulled(service: Service, rows: int, stored: int, refused: int, *, complete: bool) -> Pulled:
    return Pulled(
        service_ledger_id=service.service_ledger_id, rows=rows, stored=stored, refused=refused, complete=complete
    )


def _words(error: TwoPHPError) -> str:
    """What an operator may know: that of our own making."""
    return error.message[:200]
