"""The central ledger as an ASGI application: ``create_app(store)`` joins the API, the pages and the access log."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request

from twophp import __version__
from twophp.central.api import admin as api_admin
from twophp.central.api import export as api_export
from twophp.central.api import heads as api_heads
from twophp.central.api import live as api_live
from twophp.central.api import problems as api_problems
from twophp.central.api import proofs as api_proofs
from twophp.central.api import queries as api_queries
from twophp.central.api.problems import answer_to, problem_of
from twophp.central.api.routes import components
from twophp.central.api.state import Central
from twophp.central.auth import oidc_login
from twophp.central.auth.access import Access, Principal
from twophp.central.auth.oidc import Oidc
from twophp.central.ingest import api as api_ingest
from twophp.central.ingest.pull import Puller
from twophp.central.missing import Heard
from twophp.central.ports import Access as AccessLine
from twophp.central.questions import SILENT_MS
from twophp.central.stores.store import CentralStore
from twophp.core.errors import StoreError
from twophp.identity.notes import Signer
from twophp.ports import Clock, MintId
from twophp.stores.clock import mint_uuid, wall_clock
from twophp.stores.vault import mint_key

log: Final = logging.getLogger("twophp.central")

HEADS: Final = "twophp-central"
"""What the key that signs tree heads is derived for, and named after."""
PAGES: Final = "twophp.central.pages"
MOST_LOGGED_CHARS: Final = 1_000
INGEST: Final = ("POST", "/v1/entries")

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app(
    store: CentralStore,
    *,
    oidc: Oidc | None = None,
    management_key: bytes | None = None,
    signer: Signer | None = None,
    allow_insecure: bool = False,
    silent_ms: int = SILENT_MS,
    clock: Clock = wall_clock,
    mint: MintId = mint_uuid,
) -> FastAPI:
    """The application over an open store, which it closes when it stops.

    ``management_key`` lets it pull from services; each is given a credential derived from it. ``signer`` signs tree
    heads; without one its key follows from that key, too. ``allow_insecure`` lets pulls go over plain HTTP to other
    machines. What has been PROCESSING for ``silent_ms`` is listed as silent.
    """
    access = Access(store, oidc=oidc, clock=clock, mint=mint)
    puller = Puller(store, clock, Heard(), key=management_key, allow_insecure=allow_insecure)
    signer = signer or Signer.derived(management_key or mint_key()[1], HEADS)
    central = Central(store, access, puller, clock, api_live.Metrics.if_installed(), silent_ms, signer=signer)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        signing = asyncio.create_task(central.heads.run(central.stopping))
        yield
        central.stopping.set()
        central.arrived()
        await signing
        await store.close()

    # The interactive pages would load scripts from elsewhere; /openapi.json is for any tool that shows it.
    app = FastAPI(title="twophp central ledger", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.central = central
    api_problems.install(app)
    for module in (api_ingest, api_queries, api_export, api_proofs, api_heads, api_admin, api_live):
        app.include_router(module.router)
    if importlib.util.find_spec(PAGES) is not None:
        importlib.import_module(PAGES).install(app)
    if oidc is not None and oidc.has_login:
        oidc_login.install(app, oidc, access)
    app.add_middleware(AccessLog, central=central)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1, with schemas generated from the very types that are encoded."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, openapi_version="3.1.0", routes=app.routes)
        schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["components"] = {"schemas": components(), "securitySchemes": schemes}
        document["security"] = [{"bearer": []}]
        for name in ("/livez", "/readyz", "/v1/heads/key"):
            document["paths"][name]["get"]["security"] = []
        app.openapi_schema = document
    return app.openapi_schema


class AccessLog:
    """Logs who read what, before the answer: without a log line there is no answer (draft §13.5, A-63).

    Ingest is not logged: a batch is no read, and every row says who wrote it.
    """

    def __init__(self, app: App, *, central: Central) -> None:
        self._app = app
        self._central = central

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = _Started(scope, send, self._central)
        try:
            await self._app(scope, receive, started.send)
        except Exception as error:
            if started.answered:
                raise
            await answer_to(Request(scope), error)(scope, receive, started.send)


class _Started:
    """One answer on its way out."""

    def __init__(self, scope: Scope, send: Send, central: Central) -> None:
        self.answered = False
        self._scope = scope
        self._send = send
        self._central = central
        self._dropped = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif not self._dropped:
            await self._send(message)

    async def _begin(self, message: Message) -> None:
        self.answered = True
        try:
            await self._note(message["status"])
        except StoreError as error:
            log.warning("an access could not be logged, so nothing is answered: %s", error)
            self._dropped = True
            await problem_of(error)(self._scope, _nothing, self._send)
            return
        if self._central.metrics is not None:
            self._central.metrics.answered(self._scope["method"], message["status"])
        await self._send(message)

    async def _note(self, status: int) -> None:
        principal: Principal | None = self._scope.get("state", {}).get("principal")
        method, path = self._scope["method"], self._scope["path"]
        if principal is None or (method, path) == INGEST:
            return
        query = self._scope.get("query_string", b"").decode("latin-1")
        asked = f"{path}?{query}" if query else path
        line = AccessLine(
            at=self._central.clock(),
            who=f"{principal.name} ({principal.credential})",
            role=",".join(sorted(principal.roles)),
            method=method,
            path=asked[:MOST_LOGGED_CHARS].replace("\0", ""),
            status=status,
        )
        await self._central.store.log_access([line])


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
