"""Two-phase calls to a small service in this process, for tests that look at what is said beside the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from tests.patience import PATIENCE_S
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

POLICIES = {"POST /orders": Policy.standard(), "PUT /orders/{id}": Policy.standard()}
log = logging.getLogger("shop")


async def shop(scope: Any, _receive: Any, send: Any) -> None:
    """Says yes, except to /orders/bad; logs a line while it works."""
    log.info("making it")
    status = 409 if scope["path"] == "/orders/bad" else 201
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b'{"id":"7"}'})


class Caller:
    """A client that walks both phases, with ids that say which call it is."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self._calls = 0

    def ids(self) -> dict[str, str]:
        self._calls += 1
        return {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": str(UUID(int=self._calls, version=4))}

    async def register(self, method: str, path: str) -> dict[str, str]:
        """The headers of the confirm."""
        ids = self.ids()
        registered = await self.http.request(method, path, headers=ids)
        assert registered.status_code == 200, registered.text
        return ids | {"DTT-2PHP-Server-Correlation-ID": registered.headers["DTT-2PHP-Server-Correlation-ID"]}

    async def call(self, method: str, path: str) -> httpx.Response:
        return await self.confirm(path, await self.register(method, path))

    async def confirm(self, path: str, ids: dict[str, str]) -> httpx.Response:
        return await self.http.post(f"{path}/confirm", headers=ids)


def calling(
    folder: Path, scenario: Callable[[Caller, TwoPhaseMiddleware], Awaitable[None]], *, app: Any = shop, **more: Any
) -> None:
    """Run ``scenario`` against the service, from its start to its end."""

    async def run() -> None:
        settings: dict[str, Any] = {"policies": POLICIES, "allow_insecure": True, "identify": anonymous} | more
        two_phase = TwoPhaseMiddleware(app, service="shop", store=f"sqlite:///{folder}/shop.db", **settings)
        transport = httpx.ASGITransport(two_phase)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test", timeout=PATIENCE_S) as http:
            await scenario(Caller(http), two_phase)
        await two_phase.stop()

    asyncio.run(run())
