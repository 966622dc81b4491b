"""The demo's client: an httpx client with the two-phase transport, and an ear on the wire below it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx2
import msgspec

from twophp.cli.demo.chain import CLIENT, ENTRANCE
from twophp.cli.demo.service import NO_TLS, Shipping
from twophp.client import TwoPhaseTransport, calling
from twophp.wire import emit, fields

SLOWEST_CALL_S: Final = 30.0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent, and what was answered."""

    method: str
    path: str
    client_correlation_id: str
    server_correlation_id: str  # The server assigns it; the client repeats it from then on.
    status: int | None = None  # None: it did not get through.
    phase: str = ""
    ttl_ms: str = ""
    body: str = ""

    @property
    def is_confirm(self) -> bool:
        """Whether it is Phase 2."""
        return self.path.endswith("/confirm")


class Ear(httpx2.BaseTransport):
    """What really sends. It notes what is said while it ``listens``; while it is ``cut``, no confirm gets through."""

    def __init__(self) -> None:
        self._inner = httpx2.HTTPTransport(verify=NO_TLS)
        self.heard: list[Message] = []
        self.listens = True
        self.cut = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx."""
        sent = Message(
            method=request.method,
            path=request.url.path,
            client_correlation_id=request.headers.get(fields.CLIENT_CORRELATION_ID.name, ""),
            server_correlation_id=request.headers.get(fields.SERVER_CORRELATION_ID.name, ""),
        )
        if self.cut and sent.is_confirm:
            self._note(sent)
            raise httpx2.ConnectError("the line is cut")
        response = self._inner.handle_request(request)
        response.read()
        told = response.headers
        answered = msgspec.structs.replace(
            sent,
            server_correlation_id=told.get(fields.SERVER_CORRELATION_ID.name, sent.server_correlation_id),
            status=response.status_code,
            phase=told.get(fields.PHASE_STATE.name, ""),
            ttl_ms=told.get(fields.TTL.name, ""),
            body=response.text,
        )
        self._note(answered)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()

    def _note(self, message: Message) -> None:
        if self.listens:
            self.heard.append(message)


class Caller:
    """Makes orders at the entrance of the chain. Safe to use from any thread, but for what it heard."""

    def __init__(self, ledger: str, urls: Mapping[str, str], central: Shipping) -> None:
        self.ear = Ear()
        self._url = f"{urls[ENTRANCE]}/orders"
        self._http = httpx2.Client(
            transport=TwoPhaseTransport(
                ledger=ledger,
                source=CLIENT,
                targets={url: name for name, url in urls.items()},
                transport=self.ear,
                allow_insecure=True,  # Loopback.
                central=central.url,
                central_token=central.token,
                central_interval_s=central.every_s,
            ),
            timeout=SLOWEST_CALL_S,
        )

    def order(self, client_correlation_id: str, order: Mapping[str, Any], ttl_ms: int | None = None) -> httpx2.Response:
        """One call, both phases. Raises PhaseError if it comes to no answer."""
        with calling(client_correlation_id=client_correlation_id, requested_ttl_ms=ttl_ms):
            return self._http.post(self._url, json=order)

    def confirm(self, client_correlation_id: str, server_correlation_id: str) -> httpx2.Response:
        """Phase 2 past the transport, which sets these headers itself and takes them from no caller."""
        headers = emit.phase_two_request(
            client_correlation_id=client_correlation_id, server_correlation_id=server_correlation_id
        )
        return self._http.post(f"{self._url}/confirm", headers=headers, extensions={"twophp": False})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()
