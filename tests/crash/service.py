"""The service that is killed: a Starlette application behind the middleware, and what can be seen of its effects."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.crash.fate import Fate
from tests.crash.life import DELTA_MS, LEASE_MS, TTL_MS, Life
from twophp import Policy, anonymous, current_intent
from twophp.asgi import Outgoing, TwoPhaseMiddleware
from twophp.asgi.messages import App
from twophp.asgi.settings import Reconciled
from twophp.core.intent import Intent
from twophp.delivery.egress import default_tls
from twophp.engine.current import RunningIntent
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Statement
from twophp.stores.clock import system_clock

MAKE_TABLE: Final = "CREATE TABLE IF NOT EXISTS orders (server_correlation_id TEXT, run TEXT)"
ADD_ROW: Final = "INSERT INTO orders VALUES (?, ?)"


async def unknown_name(_host: str, _port: int) -> Sequence[str]:
    """No callback leaves the machine; each is owed, tried, and stays owed."""
    raise OSError


OUTGOING: Final = Outgoing(resolver=unknown_name, ssl_context=default_tls())  # Made once, before any server is.


class Service:
    """One life of it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._fate = Fate(life.dies_at)
        self._fate.await_all()
        routes = [Route("/orders", self.create, methods=["POST"])]
        self._middleware = TwoPhaseMiddleware(
            Starlette(routes=routes, lifespan=self._lifespan),
            service="orders",
            store=f"sqlite:///{life.database}",
            identify=anonymous,
            policies={"POST /orders": policy(life)},
            allow_insecure=True,
            clock=lambda: system_clock() + life.ahead_ms,
            reconcile=self.reconcile if life.reconciles else None,
            outgoing=OUTGOING,
        )
        self.app: App = self._fate.watching(self._middleware)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        if self._life.effect == "row":
            server = await self._middleware.open()
            change = Change(answer=None, statements=(Statement(sql=MAKE_TABLE, rows=[()]),))
            await server.store.transact(AdHocCommand((), lambda _records: change))
        yield

    async def create(self, request: Request) -> Response:
        """Every run draws a number of its own, so that two answers are equal only if they are of one run."""
        self._fate.at("handler entered")
        intent = current_intent()
        assert intent is not None
        sent = await request.json()
        run = secrets.token_hex(8)
        await self._act(intent, run)
        self._fate.at("handler acted")
        return JSONResponse({"id": f"order-{run}", "run": run, "sent": sent}, 201, {"x-run": run})

    async def _act(self, intent: RunningIntent, run: str) -> None:
        if self._life.gated:
            await asyncio.to_thread(Path(self._life.gate).read_bytes)
        if self._life.effect == "row":
            async with intent.transaction() as tx:
                tx.execute(ADD_ROW, (intent.server_correlation_id, run))
            return
        await asyncio.to_thread(self._mark, f"{intent.server_correlation_id} {run}\n")

    def _mark(self, line: str) -> None:
        """One write at the end of the file, on the disk before the handler goes on."""
        file = os.open(self._life.marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, line.encode())
        os.fsync(file)
        os.close(file)

    async def reconcile(self, intent: Intent) -> tuple[Reconciled, str | None]:
        """What the business side knows: its marks."""
        runs = marks(self._life.marks).get(intent.server_correlation_id)
        return ("COMMITTED", f"order-{runs[0]}") if runs else ("NOT_DONE", None)


def policy(life: Life) -> Policy:
    """Leases end between two lives and not within one, however slow the machine is."""
    return Policy.standard(
        ttl_ms=TTL_MS,
        delta_ms=DELTA_MS,
        lease_ms=life.lease_ms,
        processing_timeout_ms=LEASE_MS,
        on_crash=life.on_crash,
        effects=life.effects,
        mode=life.mode,
    )


def marks(file: str) -> dict[str, list[str]]:
    """The runs of the handler, by server correlation id."""
    found: dict[str, list[str]] = {}
    path = Path(file)
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else ():
        subject, run = line.split()
        found.setdefault(subject, []).append(run)
    return found
