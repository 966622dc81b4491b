"""What one caller can do to the others, and what a changed database can make a service do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from tests.asgi.driver import AUTO, CLIENT, ENABLED, SERVER, STATE, Exchange, a_scope, by_header
from tests.asgi.driver import serving as a_service
from tests.asgi_frameworks.serving import served
from tests.patience import PATIENCE_S
from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.asgi.messages import Message, Receive, Scope, Send
from twophp.core.errors import ConfigError
from twophp.core.quota import DEFAULT_QUOTA, Quota

pytestmark = pytest.mark.anyio

CALLED = {**AUTO, "DTT-2PHP-Callback": "https://client.example/cb"}


class Drip(Exchange):
    """A body of which one byte comes, and then nothing more."""

    def __init__(self) -> None:
        super().__init__((b"{", b"}"))
        self.is_waiting = asyncio.Event()

    async def receive(self) -> Message:
        if self.read == 1:
            self.is_waiting.set()
            await asyncio.Event().wait()
        return await super().receive()


@pytest.mark.req("A-16")
@pytest.mark.parametrize("path", ["/orders", "/orders/confirm"])
async def test_a_body_that_arrives_too_slowly_is_ended_and_nothing_is_stored(path: str) -> None:
    async with a_service(body_timeout_s=0.01) as service:
        headers = {**ENABLED, CLIENT: "c-1"} | ({SERVER: "s-1"} if path.endswith("confirm") else {})
        drip = Drip()
        async with asyncio.timeout(PATIENCE_S):
            await service.app(a_scope("POST", path, headers), drip.receive, drip.send)
        reply = drip.reply()
        assert (reply.status, reply.get(STATE), reply.get("connection")) == (408, None, "close")
        assert b"body_too_slow" in reply.body
        assert (service.orders.runs, await service.rows()) == (0, [])


@pytest.mark.req("A-16")
async def test_http_2_is_told_nothing_about_connections() -> None:
    async with a_service(body_timeout_s=0.01) as service:
        drip, scope = Drip(), {**a_scope("POST", "/orders", {**ENABLED, CLIENT: "c-1"}), "http_version": "2"}
        async with asyncio.timeout(PATIENCE_S):
            await service.app(scope, drip.receive, drip.send)
        assert (drip.reply().status, drip.reply().get("connection")) == (408, None)


async def _created(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.req("A-16")
async def test_a_real_server_closes_the_connection_of_a_slow_body(tmp_path: Path) -> None:
    app = TwoPhaseMiddleware(
        _created,
        service="shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        identify=anonymous,
        policies={"*": Policy.standard()},
        allow_insecure=True,
        body_timeout_s=0.05,
    )
    with served(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = b"POST /orders HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ndtt-2php-enabled: true\r\n"
        writer.write(head + b"dtt-2php-client-correlation-id: c-1\r\n\r\n{")
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()  # To the end: the server closes.
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.req("A-16")
async def test_a_body_time_out_must_be_a_time() -> None:
    with pytest.raises(ConfigError, match="body_timeout_s"):
        TwoPhaseMiddleware(
            _created,
            service="shop",
            store="memory:",
            identify=anonymous,
            policies={"*": Policy.standard()},
            body_timeout_s=0.0,
        )


async def test_each_principal_has_a_quota_unless_the_service_says_otherwise() -> None:
    async with a_service(identify=by_header) as service:
        await service.request("POST", "/orders", {**ENABLED, CLIENT: "c-1", "x-user": "u-1"}, b"{}")
        assert service.server.settings.quota == DEFAULT_QUOTA == Quota(open_intents=10_000, open_bytes=256 << 20)
    async with a_service(quota=None) as service:
        await service.request("POST", "/orders", {**ENABLED, CLIENT: "c-1"}, b"{}")
        assert service.server.settings.quota is None
    async with a_service(max_body_bytes=1 << 30) as service:
        await service.request("POST", "/orders", {**ENABLED, CLIENT: "c-1"}, b"{}")
        assert service.server.settings.quota == Quota(open_bytes=1 << 30), "the largest body has room"


@pytest.mark.req("A-62")
async def test_an_intent_that_was_set_back_in_the_file_does_not_run_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/shop.db"
    async with a_service(store=store) as service:
        done = await service.request("POST", "/orders", {**CALLED, CLIENT: "c-1"}, b"{}")
        first = await service.request("POST", "/orders", {**ENABLED, CLIENT: "c-2"}, b"{}")
        ids = {**ENABLED, CLIENT: "c-2", SERVER: first.get(SERVER) or ""}
        assert (await service.request("POST", "/orders/confirm", ids)).get(STATE) == done.get(STATE) == "COMMITTED"
        assert service.orders.runs == 2
    connection = apsw.Connection(str(tmp_path / "shop.db"))
    connection.execute(
        "UPDATE intent SET phase = 'WAITING_CONFIRM', settled_at = NULL, status = NULL, confirmed_at = NULL,"
        " owner = NULL, lease_until = NULL, fence = 0"
    )
    connection.close()
    async with a_service(store=store) as service:
        refused = await service.request("POST", "/orders/confirm", ids)
        assert (refused.status, refused.get(STATE), b"record_tampered" in refused.body) == (500, None, True)
        again = await service.request("POST", "/orders", {**CALLED, CLIENT: "c-1"}, b"{}")
        assert (again.status, b"record_tampered" in again.body) == (500, True)
        assert service.orders.runs == 0
        new = await service.request("POST", "/orders", {**CALLED, CLIENT: "c-3"}, b"{}")
        assert (new.get(STATE), service.orders.runs) == ("COMMITTED", 1)
