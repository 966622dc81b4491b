"""Acknowledgements and compensation hooks, from the request to whoever is told."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest

from tests.asgi.driver import AUTO, CLIENT, SERVER, STATE, Orders, Seen, answer, created
from tests.asgi.driver import serving as a_service
from tests.engine.tls_server import Authority, read_request, serving
from twophp.asgi.messages import Send
from twophp.asgi.outgoing import Outgoing
from twophp.core.intent import Phase
from twophp.engine.egress import Rules
from twophp.engine.hooks import Hooks, PhaseEvent
from twophp.engine.webhooks import read_secret, verify
from twophp.wire.callback import decode

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
LOOPBACK = Rules(allow_insecure_loopback=True)


class Receiver:
    """A client's callback endpoint: notes what it is told, and answers when it may."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, bytes]] = []
        self.arrived = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.told.append(await read_request(reader))
        self.arrived.set()
        await self.may_answer.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()


def outgoing(trusted: ssl.SSLContext, hooks: Hooks | None = None) -> Outgoing:
    return Outgoing(rules=LOOPBACK, webhook_secrets=(SECRET,), ssl_context=trusted, hooks=hooks or Hooks())


@pytest.mark.req(
    "P-5.5.1-d", "P-5.5.1-e", "P-5.5.3-c", "P-5.5.3-e", "P-5.5.4-a", "P-5.5.4-b", "P-5.5.4-c", "P-5.5.4-d", "A-38"
)
async def test_an_acknowledgement_goes_out_and_nobody_waits_for_it(store: str, tmp_path: Path) -> None:
    authority, receiver = Authority(), Receiver()
    async with serving(receiver, authority.server(tmp_path, "localhost")) as port:
        callback = {"DTT-2PHP-Callback": f"https://localhost:{port}/told?token=t", CLIENT: "c-1"}
        async with a_service(store=store, outgoing=outgoing(authority.trusted())) as service:
            reply = await service.request("POST", "/orders", {**AUTO, **callback}, b"{}")
            assert (reply.status, reply.get(STATE)) == (201, "COMMITTED"), "the receiver has not answered yet"
            await receiver.arrived.wait()
            receiver.may_answer.set()
    head, body = receiver.told[0]
    told = decode(body)
    assert (told.client_correlation_id, told.server_correlation_id) == ("c-1", reply.get(SERVER))
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    signed = {name.decode().lower(): value.decode() for name, value in lines.items()}
    verify(signed, body, secrets=[read_secret(SECRET)], now=told.dispatched_at, tolerance_ms=60_000)
    assert len(receiver.told) == 1


@pytest.mark.req("P-5.5.2-b", "A-65")
@pytest.mark.parametrize("url", ["https://127.0.0.1/cb", "https://169.254.169.254/latest", "https://localhost/x"])
async def test_a_callback_that_may_not_be_called_is_refused_before_anything_is_stored(store: str, url: str) -> None:
    async with a_service(store=store, outgoing=Outgoing(hooks=Hooks())) as service:
        reply = await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": url}, b"{}")
        assert reply.status == 400
        assert b"bad_callback" in reply.body
        assert (service.orders.runs, await service.rows()) == (0, [])


@pytest.mark.req("P-9.3-c")
async def test_a_hook_hears_of_a_failure_and_not_of_a_success(store: str) -> None:
    hooks, heard, told = Hooks(), list[PhaseEvent](), asyncio.Event()

    @hooks.on_phase("FAILED", name="undo")
    async def undo(event: PhaseEvent) -> None:
        heard.append(event)
        told.set()

    async def fails_once(app: Orders, seen: Seen, send: Send) -> None:
        await (answer(send, 422) if app.runs == 1 else created(app, seen, send))

    async with a_service(Orders(fails_once), store=store, outgoing=Outgoing(hooks=hooks)) as service:
        for client_id in ("c-1", "c-2"):
            registered = await service.register(client_id)
            await service.confirm(registered, client_id)
        service.server.outbox.wake()
        await told.wait()
    assert [(event.client_correlation_id, event.phase) for event in heard] == [("c-1", Phase.FAILED)]
