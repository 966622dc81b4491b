"""The same small service twice, bare and behind the middleware: what ``make bench`` compares."""

from __future__ import annotations

import os
import ssl
from typing import Any

from starlette.applications import Starlette

from bench.observed import observe
from bench.orders import fastapi_orders, starlette_orders
from twophp import Policy, anonymous
from twophp.asgi import Outgoing, TwoPhaseMiddleware
from twophp.asgi.messages import App, Receive, Scope, Send
from twophp.core.intent import Phase
from twophp.delivery.egress import Rules
from twophp.stores.clock import mint_uuid, system_clock
from twophp.wire.emit import final_answer, phase_one_answer


def starlette_app() -> Starlette:
    """Starlette, bare."""
    return observe(starlette_orders())


def fastapi_app() -> Starlette:
    """FastAPI, bare."""
    return observe(fastapi_orders())


def _wrapped(app: Any, policy: Policy = Policy.standard()) -> Any:  # noqa: B008 - Immutable.
    app.add_middleware(
        TwoPhaseMiddleware,
        service="orders",
        store=os.environ["BENCH_STORE"],
        identify=anonymous,
        policies=policy,
        allow_insecure=True,
        outgoing=_to_the_receiver(),
    )
    return app


def _to_the_receiver() -> Outgoing:
    """Callbacks may go to loopback, where ``bench.receiver`` is if it runs, and trust its certificate."""
    if not (pem := os.environ.get("BENCH_RECEIVER")):
        return Outgoing()
    trusted = ssl.create_default_context(cafile=pem)
    return Outgoing(rules=Rules(allow_insecure_loopback=True), ssl_context=trusted)


def starlette_twophp() -> Any:
    """Starlette behind the middleware."""
    return _wrapped(starlette_app())


def fastapi_twophp() -> Any:
    """FastAPI behind the middleware."""
    return _wrapped(fastapi_app())


def fastapi_keyed() -> Any:
    """FastAPI behind the middleware, for clients that send an Idempotency-Key."""
    return _wrapped(fastapi_app(), Policy.standard(idempotency_key="accept"))


def speaking() -> App:
    """Both phases on the wire and nothing behind them: what a client's own work is measured against."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["path"].endswith("/confirm"):
            headers = final_answer(phase=Phase.COMMITTED, resource_id="42")
        else:
            deadline_at = system_clock() + 30_000
            headers = phase_one_answer(server_correlation_id=mint_uuid(), ttl_ms=30_000, deadline_at=deadline_at)
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, (b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    return app
