"""The management endpoint of a service: its local ledger's rows for the central one, on demand (draft §9.6, §13.5).

It exists only where ``management_token`` is set, needs that very credential, and answers rows: no payload, no response,
no key ever leaves here (A-63). A request says which rows of the page before have arrived, and gets the next page:

    POST /_2php/ledger    {"limit": 500, "synced": [...]}             what central has not acknowledged
                          {"correlation_id": "..."}                   every row with this id
                          {"about": [client id, server id]}           what is here about one call beside its rows (A-47)
                          {"leases": [[client id, server id], ...]}   who executes these calls, and until when (A-54)

The last two bring no rows, and change nothing.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from twophp.asgi.answers import refused
from twophp.asgi.messages import Answer, Receive, read_body, refuse_large
from twophp.core.entry import Actor, LedgerEntry
from twophp.core.errors import Unauthenticated, WireError
from twophp.core.records import Instant
from twophp.engine.evidence import evidence_of, intents_of
from twophp.identity.head import Head
from twophp.ports import Calls, Find, WholeStore
from twophp.wire.evidence import evidence_document, lease_document
from twophp.wire.rows import Id, row_document

MOST: Final = 1_000
MOST_LEASES: Final = 100
BODY_S: Final = 60.0
MAX_BODY_BYTES: Final = 1024 * 1024
CHALLENGE: Final = "Bearer"

audit: Final = logging.getLogger("twophp.audit")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]{1,512})")
_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


class _Synced(msgspec.Struct, frozen=True):
    """A version that the central ledger has."""

    client_correlation_id: Id
    server_correlation_id: Id
    actor: Actor
    version: int
    sync_timestamp: Annotated[datetime, msgspec.Meta(tz=True)]


_Pair: TypeAlias = tuple[Id, Id]


class _Pull(msgspec.Struct, frozen=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    synced: Annotated[list[_Synced], msgspec.Meta(max_length=MOST)] = []
    correlation_id: Id | None = None
    about: _Pair | None = None
    leases: Annotated[list[_Pair], msgspec.Meta(max_length=MOST_LEASES)] = []


_decode: Final = msgspec.json.Decoder(_Pull).decode


class Management:
    """Answers pulls from one store."""

    def __init__(self, store: WholeStore, service: str, token: str) -> None:
        self._store = store
        self._service = service
        self._token = token.encode()

    async def answer(self, head: Head, receive: Receive) -> Answer:
        """A page of rows; raises Unauthenticated or WireError."""
        if head.method != "POST":
            return refused("bad_request")
        self._check(head)
        refuse_large(head.scope["headers"], MAX_BODY_BYTES)
        try:
            wanted = _decode(await read_body(receive, MAX_BODY_BYTES, BODY_S))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError("not a pull", code="bad_request") from error
        document = await (self._told(wanted) if wanted.about or wanted.leases else self._pulled(wanted))
        return Answer(200, _HEADERS, msgspec.json.encode({"name": self._service} | document))

    def _check(self, head: Head) -> None:
        lines = head.headers.getall("authorization")
        found = _BEARER.fullmatch(lines[0]) if len(lines) == 1 else None
        if found is None or not hmac.compare_digest(found[1].encode(), self._token):
            address = head.client[0] if head.client is not None else "an unknown address"
            audit.warning("a pull from %s was refused: no management credential", address)
            raise Unauthenticated("no management credential", challenge=CHALLENGE)

    async def _pulled(self, wanted: _Pull) -> dict[str, Any]:
        await self._note(wanted.synced)
        rows, drained = await self._page(wanted)
        return {"rows": [row_document(row) for row in rows], "drained": drained}

    async def _told(self, wanted: _Pull) -> dict[str, Any]:
        document: dict[str, Any] = {"rows": [], "drained": False}
        if wanted.about is not None:
            document["evidence"] = evidence_document(await evidence_of(self._store, *wanted.about), self._store.now())
        if wanted.leases:
            intents = await intents_of(self._store, wanted.leases)
            document["leases"] = [lease_document(intent, self._store.now()) for intent in intents]
        return document

    async def _page(self, wanted: _Pull) -> tuple[Sequence[LedgerEntry], bool]:
        if wanted.correlation_id is not None:
            rows = await self._store.entries(Find(wanted.correlation_id))
            return rows[: wanted.limit], False
        changed = await self._store.changes(wanted.limit)
        return changed, len(changed) < wanted.limit

    async def _note(self, acks: Sequence[_Synced]) -> None:
        """Mark what has arrived; a row that has changed since stays unsynced (A-57)."""
        if not acks:
            return
        at = {(a.client_correlation_id, a.server_correlation_id, a.actor, a.version): a.sync_timestamp for a in acks}
        rows = await self._store.entries(Calls(tuple(dict.fromkeys(a.client_correlation_id for a in acks))))
        arrived: dict[Instant, list[LedgerEntry]] = {}
        for row in rows:
            when = at.get((row.client_correlation_id, row.server_correlation_id, row.actor, row.version))
            if when is not None:
                arrived.setdefault((when - _EPOCH) // _MILLISECOND, []).append(row)
        for instant, entries in arrived.items():
            await self._store.synced(entries, instant)
