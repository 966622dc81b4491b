"""A service of the draft's chain (§10.3): its handler leaves a mark and calls on, to several others at once.

A handler that may run again after a crash must ask for the same things again: it names its calls after the call it
serves. So however often it is run, each of them is made once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.crash.life import DELTA_MS, LEASE_MS, TTL_MS, Link
from tests.storm.errands import note
from twophp import Policy, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import App
from twophp.client import AsyncTwoPhaseTransport, PhaseError, calling
from twophp.stores.clock import system_clock

TRIES: Final = 20


def link_app(link: Link) -> App:
    def clock() -> int:
        return system_clock() + link.ahead_ms

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        transport = AsyncTwoPhaseTransport(
            ledger=f"sqlite:///{link.folder}/{link.name}-calls.db",
            source=link.name,
            allow_insecure=True,
            require_2php=True,
            targets={f"http://127.0.0.1:{port}": name for name, port in link.calls.items()},
            lease_s=1.0,
            reconcile_every_s=0.2,
            clock=clock,
        )
        async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
            app.state.http = http
            yield

    async def create(request: Request) -> Response:
        intent = current_intent()
        assert intent is not None
        await asyncio.to_thread(note, link.marks, f"{intent.server_correlation_id} {intent.client_correlation_id}\n")
        calls = (_call(request.app.state.http, intent.client_correlation_id, *there) for there in link.calls.items())
        return JSONResponse({"by": link.name, "below": await asyncio.gather(*calls)}, 201)

    policy = Policy.standard(
        ttl_ms=TTL_MS, delta_ms=DELTA_MS, lease_ms=LEASE_MS, processing_timeout_ms=LEASE_MS, on_crash="rerun"
    )
    return TwoPhaseMiddleware(
        Starlette(routes=[Route("/orders", create, methods=["POST"])], lifespan=lifespan),
        service=link.name,
        store=f"sqlite:///{link.ledger}",
        identify=anonymous,
        policies={"POST /orders": policy},
        allow_insecure=True,
        clock=clock,
    )


async def _call(http: httpx2.AsyncClient, inbound: str, name: str, port: int) -> object:
    response = await insist(http, f"http://127.0.0.1:{port}/orders", f"{inbound}.{name}")
    response.raise_for_status()
    return response.json()


async def insist(http: httpx2.AsyncClient, url: str, name: str) -> httpx2.Response:
    """The same call under the same id, until it has an answer that is one."""
    last: Exception | None = None
    for _try in range(TRIES):
        try:
            with calling(client_correlation_id=name):
                return await http.post(url, json={"for": name})
        except (PhaseError, httpx2.TransportError) as error:
            last = error
    raise AssertionError(f"no answer: {last!r}")
