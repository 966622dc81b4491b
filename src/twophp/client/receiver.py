"""The callback receiver: a small ASGI application that writes acknowledgements into the client's ledger.

Mount it where ``callback=`` of the transport points:

    receiver = CallbackReceiver(ledger="sqlite:///checkout.db", source="checkout")
    app = Starlette(routes=[Mount("/2php/callback", receiver)])
    http = httpx.AsyncClient(transport=AsyncTwoPhaseTransport(
        ledger="sqlite:///checkout.db", source="checkout", callback="https://checkout.example/2php/callback"))

It trusts no sender. The last segment of the URL is a token that only the ledger's owner can make, the client
correlation id must be one that the ledger knows, and the body must be the protocol's five fields (A-66); with
``webhook_secrets`` the delivery must be signed by one of them, too. A repeated delivery is dropped by its ids (A-39).
Callback and answer may come in any order: the first writes the ledger row (A-41).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final, Self, TypeAlias, Unpack

from twophp.client.ledger import Ledger
from twophp.client.recorder import STAND_IN_TTL_MS
from twophp.client.settings import Options, settings_of
from twophp.client.sharing import LoopLedger, give_back_on_loop, take_share_on_loop
from twophp.core.call import Evidence, evidence_of
from twophp.core.call_commands import ServerReply
from twophp.core.call_machine import UNKNOWN, CallDecision
from twophp.core.errors import Refused, StoreError, WireError
from twophp.core.intent import Phase
from twophp.core.settings import knows_its_settings
from twophp.delivery.webhooks import read_secret, verify
from twophp.stores.clock import wall_of
from twophp.wire.callback import MAX_BODY_BYTES, Acknowledgement, decode

log: Final = logging.getLogger("twophp.client")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NO_CONTENT, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, NOT_ALLOWED, CONFLICT, UNAVAILABLE = 204, 400, 401, 404, 405, 409, 503


class CallbackReceiver:
    """Takes ``POST .../{token}``. 204: written down, or known already. Anything else is tried again by the server."""

    @knows_its_settings(Options)
    def __init__(
        self,
        *,
        ledger: str | None = None,
        source: str | None = None,
        webhook_secrets: Sequence[str] = (),
        **options: Unpack[Options],
    ) -> None:
        self._secrets = [read_secret(text) for text in webhook_secrets]
        self._settings = settings_of(ledger, source, options)
        self._shared: LoopLedger | None = None
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the ledger back."""
        self._ledger = None
        shared, self._shared = self._shared, None
        if shared is not None:
            await give_back_on_loop(shared)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a mounted application gets nothing else."""
        if scope["type"] != "http":
            return
        status = await self._status(scope, receive)
        headers = [(b"cache-control", b"no-store")]
        if status != NO_CONTENT:
            headers.append((b"content-length", b"0"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def evidence(self, client_correlation_id: str) -> Evidence | None:
        """The row of draft §5.5.5 that this call is in by now; None if the ledger does not know it."""
        call = await (await self._open()).look(client_correlation_id)
        return None if call is None else evidence_of(call)

    async def _status(self, scope: Scope, receive: Receive) -> int:
        if scope["method"] != "POST":
            return NOT_ALLOWED
        body = await _body(receive)
        try:
            if self._secrets:
                verify(_texts(scope["headers"]), body, secrets=self._secrets, now=wall_of(self._settings.clock)())
            said = decode(body)
        except Refused as error:
            log.warning("a callback was refused: %s", error)
            return UNAUTHORIZED
        except WireError as error:
            log.warning("a callback was refused: %s", error)
            return BAD_REQUEST
        try:
            return await self._acknowledged(said, scope["path"].rpartition("/")[2])
        except StoreError as error:
            log.warning("a callback could not be written down: %s", error)
            return UNAVAILABLE

    async def _acknowledged(self, said: Acknowledgement, token: str) -> int:
        ledger = await self._open()
        if not ledger.made_token(token, said.client_correlation_id):
            log.warning("a callback with a wrong token was refused")
            return NOT_FOUND
        told = ServerReply(
            phase=Phase.PROCESSING,
            by="callback",
            at=self._settings.clock(),
            server_correlation_id=said.server_correlation_id,
            ttl_ms=self._settings.requested_ttl_ms or STAND_IN_TTL_MS,
        )
        decision: CallDecision = await ledger.record(said.client_correlation_id, told)
        if decision.code == UNKNOWN:
            return NOT_FOUND
        return NO_CONTENT if decision.code is None else CONFLICT

    async def _open(self) -> Ledger:
        if self._ledger is None:
            async with self._opening:
                if self._ledger is None:
                    self._shared, self._ledger = await take_share_on_loop(self._settings)
        return self._ledger


async def _body(receive: Receive) -> bytes:
    """The body, up to one byte more than an acknowledgement may have: a body that long is refused."""
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    return body


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
