"""Code of others that runs in the middle of a handshake: observers that raise, an ``identify`` that edits headers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.asgi.driver import AUTO, STATE, serving
from twophp.core.intent import Phase
from twophp.identity.head import Head
from twophp.observability.observe import SILENT

pytestmark = pytest.mark.anyio


class Breaking:
    """An observer whose exporter breaks at every decision that starts a handler."""

    def decided(self, decision: Any) -> None:
        if decision.intent is not None and decision.intent.phase is Phase.PROCESSING:
            raise RuntimeError("the exporter is away")

    def __getattr__(self, name: str) -> Any:
        return getattr(SILENT, name)


@pytest.mark.req("A-107", "A-68")
async def test_an_observer_that_raises_keeps_no_confirmed_handler_from_its_start(store: str) -> None:
    async with serving(store=store) as service:
        await service.middleware.start()
        service.server.intents._observer = Breaking()
        registered = await service.register()
        assert (await service.confirm(registered)).get(STATE) == "COMMITTED"
        assert (await service.register("c-2", more=AUTO)).status == 201
        assert service.orders.runs == 2


@pytest.mark.req("A-03")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
async def test_headers_that_identify_takes_away_move_no_other_field(store: str, last: bool) -> None:
    def identify(head: Head) -> str:
        headers = head.scope["headers"]
        headers[:] = [pair for pair in headers if pair[0] != b"x-taken"]
        return "alice"

    cookie, taken = {"Cookie": "session=phase-1"}, {"X-Taken": "1", "Content-Type": "application/json"}
    sent = {**cookie, **taken} if last else {**taken, **cookie}
    async with serving(store=store, identify=identify) as service:
        registered = await service.register(more=sent)
        assert (await service.confirm(registered, more=taken)).get(STATE) == "COMMITTED"
        seen = dict(service.orders.seen[-1].scope["headers"])
        assert b"cookie" not in seen
        assert seen[b"content-type"] == b"application/json"
