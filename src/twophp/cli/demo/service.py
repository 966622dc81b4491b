"""One service of the demo, as a process of its own: ``python -m twophp.cli.demo.service SPEC``.

It is an ordinary application. Two things make it speak 2PHP, and each is one statement: the middleware in front of its
handlers, and the transport of its HTTP client.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from twophp import Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware
from twophp.cli.demo.chain import calls_of, id_within
from twophp.cli.demo.fleet import serve
from twophp.client import AsyncTwoPhaseTransport, calling

SLOWEST_CALL_S: Final = 20.0
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without any authority's certificate, which loopback does not need: reading them all would slow the first call."""
POLICY: Final = Policy.standard(allow_shorter_ttl=True, delta_ms=60_000)
"""A call may ask for less time, so that it expires before thirty seconds are over; the grace is a minute."""


class Shipping(msgspec.Struct, frozen=True, kw_only=True):
    """How a participant's rows reach the central ledger: sent by itself from time to time, or pulled when asked for."""

    url: str
    token: str
    management_token: str
    every_s: float = 0.5


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a service's process."""

    name: str
    listener: int  # The number of the socket it serves.
    ledger: str
    runs: str  # The file that gets a line for every run of a handler.
    urls: dict[str, str]  # Where every service is.
    central: Shipping


class Service:
    """An order comes in, and is passed on to the next services in the chain."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._http: httpx2.AsyncClient
        self.app: Starlette = Starlette(
            routes=[Route("/orders", self.order, methods=["POST"])], lifespan=self._lifespan
        )
        self.app.add_middleware(
            TwoPhaseMiddleware,
            service=spec.name,
            store=spec.ledger,
            identify=anonymous,
            policies={"POST /orders": POLICY},
            allow_insecure=True,  # Loopback.
            central=spec.central.url,
            central_token=spec.central.token,
            central_interval_s=spec.central.every_s,
            management_token=spec.central.management_token,
            pull_url=f"{spec.urls[spec.name]}/_2php/ledger",
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        transport = AsyncTwoPhaseTransport(
            ledger=self._spec.ledger,
            source=self._spec.name,
            targets={url: name for name, url in self._spec.urls.items()},
            transport=httpx2.AsyncHTTPTransport(verify=NO_TLS),
            allow_insecure=True,
        )
        async with httpx2.AsyncClient(transport=transport, timeout=SLOWEST_CALL_S) as self._http:
            yield

    async def order(self, request: Request) -> JSONResponse:
        """Do the work, once. The next services are called while this call is served, so these are its children."""
        order = await request.json()
        intent = current_intent()
        assert intent is not None, "the demo's client speaks 2PHP"
        await asyncio.to_thread(self._note, intent.client_correlation_id)
        for number, _source, target in calls_of(self._spec.name):
            with calling(client_correlation_id=id_within(intent.client_correlation_id, number)):
                answer = await self._http.post(f"{self._spec.urls[target]}/orders", json=order)
            if answer.is_error:
                return _refusal(answer.json()["error"])
        if order.get("sold_out_at") == self._spec.name:
            return _refusal(f"{self._spec.name}: {order['item']} is sold out")
        return JSONResponse({"id": f"{self._spec.name}-order", "item": order["item"]}, 201)

    def _note(self, client_correlation_id: str) -> None:
        """One write at the end of the file: what the demo counts to see that nothing ran twice."""
        file = os.open(self._spec.runs, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{client_correlation_id}\n".encode())
        finally:
            os.close(file)


def _refusal(why: str) -> JSONResponse:
    return JSONResponse({"error": why}, 409)


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=Spec)
    asyncio.run(serve(Service(told).app, told.listener))
