"""A central ledger full of made-up traffic on a loopback port, and a browser: for tests and for pictures."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

import msgspec
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Playwright

from tools import traffic
from tools.telling import telling as a_service_that_tells
from twophp.central.app import create_app
from twophp.central.ports import Role
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.core.policy import HOUR_MS
from twophp.core.records import Instant
from twophp.ports import Clock, MintId
from twophp.stores.clock import mint_uuid

T = TypeVar("T")

KEY: Final = b"a key of thirty-two bytes or more"
READY_S: Final = 120.0
PULLABLE: Final = ("orders", "payments", "stock")
BEHIND: Final = frozenset({"labels", "stock"})
"""All others have said that they have sent everything."""


class Served:
    """An application that runs in a thread of its own. ``run`` lets something happen on its loop."""

    def __init__(self, make: Callable[[], Awaitable[FastAPI]]) -> None:
        self._make = make
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.app: FastAPI | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(READY_S):
            raise TimeoutError("the central ledger did not start")
        return self

    def __exit__(self, *_exc_info: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(READY_S)

    def run(self, doing: Awaitable[T]) -> T:
        """Do something where the application does its own work, and wait for it."""
        assert self._loop is not None

        async def done() -> T:
            return await doing

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(READY_S)

    @property
    def store(self) -> CentralStore:
        """Its database."""
        assert self.app is not None
        store: CentralStore = self.app.state.central.store
        return store

    def token(self, name: str, *roles: Role) -> str:
        """The secret of a new token."""
        assert self.app is not None
        return str(self.run(self.app.state.central.access.create_token(name, roles))[1])

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.app = await self._make()
        listening = socket.create_server(("127.0.0.1", 0))  # Listens from now on, so the caller need not poll.
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
        self._server = uvicorn.Server(config)
        self._started.set()
        await self._server.serve(sockets=[listening])


def central(calls: Sequence[traffic.Call], clock: Clock, mint: MintId = mint_uuid) -> Served:
    """A central ledger with these calls in it."""

    async def make() -> FastAPI:
        store = await open_central("memory:", mint=mint)
        await fill(store, calls, clock())
        app = create_app(store, clock=clock, mint=mint, management_key=KEY, allow_insecure=True)
        for service in await store.services():
            if service.name not in BEHIND:
                app.state.central.heard.drained(service.service_ledger_id, clock())
        return app

    return Served(make)


def telling(clock: Clock, began: Instant) -> Served:
    """A service that can be asked about any call."""

    async def make() -> FastAPI:
        return a_service_that_tells(clock, began)

    return Served(make)


async def fill(store: CentralStore, calls: Sequence[traffic.Call], now: Instant) -> None:
    """Put the calls in; some services say where they can be pulled from, and one sends a row that it has changed."""
    services = await traffic.fill(store, calls, now)
    if "orders" in services:
        changed = next(row for call in reversed(calls) for row in call.rows() if row.source == "orders")
        owned = {"service_ledger_id": services["orders"].service_ledger_id}
        await store.ingest(
            services["orders"], [msgspec.structs.replace(changed, ttl_ms=60_000, **owned)], now - HOUR_MS
        )
    for name in PULLABLE:
        if name in services:
            await store.register(name, None, f"token of {name}", now, pull_url="https://127.0.0.1:1/_2php/ledger")


def chromium() -> str | None:
    """Debian's browser, if it is here."""
    return shutil.which("chromium")


@contextmanager
def browser_of(playwright: Playwright) -> Iterator[Browser]:
    """The system's own browser; as root it has no sandbox to go into."""
    options: dict[str, Any] = {"args": ["--no-sandbox"] if os.geteuid() == 0 else []}
    browser = playwright.chromium.launch(executable_path=chromium(), **options)
    try:
        yield browser
    finally:
        browser.close()
