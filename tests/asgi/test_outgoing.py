"""Acknowledgements and compensation hooks, from the request to the receiver."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.asgi.driver import AUTO, CLIENT, OUTGOING, SERVER, STATE, Orders, Seen, answer, by_header, created
from tests.asgi.driver import serving as a_service
from tests.delivery.outbound import guarded
from tests.delivery.tls_server import Authority, read_request, serving
from twophp.asgi import EgressRules as Rules
from twophp.asgi import Outgoing, Tries
from twophp.asgi.messages import Send
from twophp.core.intent import Phase
from twophp.delivery.hooks import Hooks, PhaseEvent
from twophp.delivery.webhooks import read_secret, verify
from twophp.identity.head import Head
from twophp.wire.callback import decode

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
LOOPBACK = Rules(allow_insecure_loopback=True)


class Receiver:
    """A client's callback endpoint: notes what it receives, and answers when the test allows it."""

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
@pytest.mark.parametrize("url", ["https://localhost/x", "https://db.internal/x", "https://client.example:22/"])
async def test_a_callback_that_may_not_be_called_is_refused_before_anything_is_stored(store: str, url: str) -> None:
    async with a_service(store=store, outgoing=Outgoing(hooks=Hooks())) as service:
        reply = await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": url}, b"{}")
        assert reply.status == 400
        assert b"bad_callback" in reply.body
        assert (service.orders.runs, await service.rows()) == (0, [])


class Names:
    """A name server that changes its mind."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        assert (host, port) == ("client.example", 443)
        return self.answers


@pytest.mark.req("P-5.5.2-b", "A-65")
@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)  # A store on a server is called as well.
async def test_a_request_is_answered_alike_whatever_is_behind_its_callback(store: str) -> None:
    """Else an answer would tell which names and addresses the inner network has. Each attempt to call judges them."""
    told = {}
    inner = "https://10.0.0.7/cb", "https://169.254.169.254/latest", "https://127.0.0.1/cb"
    for number, (url, answers) in enumerate(
        [
            ("https://client.example/cb", ("93.184.216.34", "10.0.0.7")),
            ("https://client.example/cb", ()),
            *((url, ()) for url in inner),
        ]
    ):
        with guarded() as guard:
            async with a_service(store=store, outgoing=replace(OUTGOING, resolver=Names(*answers))) as service:
                asked = {**AUTO, CLIENT: f"c-{number}", "DTT-2PHP-Callback": url}
                reply = await service.request("POST", "/orders", asked, b"{}")
                told[number] = reply.status, reply.get(STATE), reply.body
        assert (guard.left, guard.stopped) == ([], []), "nothing is sent to an address that is not public"
    assert set(told.values()) == {(201, "COMMITTED", b'{"id": "7"}')}


@pytest.mark.req("P-5.5.2-b", "A-65", "A-30")
async def test_a_repeat_gets_its_outcome_though_the_rules_have_become_narrower(tmp_path: Path) -> None:
    """The rules are the operator's, and may change with any start; what was registered has its outcome (T2)."""
    store, elsewhere = f"sqlite:///{tmp_path}/shop.db", frozenset({"other.example"})
    narrower = replace(OUTGOING, rules=Rules(hosts=elsewhere)), replace(OUTGOING, hosts_of={"u-1": elsewhere})
    asked = {**AUTO, CLIENT: "c-1", "x-user": "u-1", "DTT-2PHP-Callback": "https://client.example/cb"}
    async with a_service(store=store, identify=by_header) as service:
        done = await service.request("POST", "/orders", asked, b"{}")
        assert (done.status, done.get(STATE)) == (201, "COMMITTED")
    for now in narrower:
        async with a_service(store=store, identify=by_header, outgoing=now) as service:
            again = await service.request("POST", "/orders", asked, b"{}")
            assert (again.status, again.get(SERVER), again.body) == (201, done.get(SERVER), done.body)
            new = await service.request("POST", "/orders", {**asked, CLIENT: "c-2"}, b"{}")
            assert (new.status, b"bad_callback" in new.body) == (400, True)
            assert (service.orders.runs, len(await service.rows())) == (0, 1)


@pytest.mark.req("A-38", "A-30")
async def test_a_full_outbox_refuses_who_is_new_and_tells_a_repeat_its_outcome(store: str) -> None:
    asked = {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": "https://client.example/cb"}
    async with a_service(store=store) as service:
        done = await service.request("POST", "/orders", asked, b"{}")
        service.server.outbox._capacity = 0
        assert await service.request("POST", "/orders", asked, b"{}") == done
        new = await service.request("POST", "/orders", {**asked, CLIENT: "c-2"}, b"{}")
        assert (new.status, new.get("retry-after")) == (503, "1")
        assert (service.orders.runs, len(await service.rows())) == (1, 1)


@pytest.mark.req("A-65")
async def test_what_its_text_rules_out_is_not_looked_up() -> None:
    async def asked_for(host: str, _port: int) -> list[str]:
        raise AssertionError(host)

    narrow = replace(OUTGOING, rules=Rules(hosts="other.example"), resolver=asked_for)
    asked = {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": "https://client.example/cb"}
    async with a_service(outgoing=narrow) as service:
        assert (await service.request("POST", "/orders", asked, b"{}")).status == 400


@pytest.mark.req("A-65")
async def test_an_identity_may_be_held_to_its_own_hosts() -> None:
    def by_key(head: Head) -> str:
        return head.headers["x-api-key"]

    own = {"checkout": frozenset({"*.checkout.example"})}
    async with a_service(identify=by_key, outgoing=replace(OUTGOING, hosts_of=own)) as service:
        for key, host, status in (
            ("checkout", "elsewhere.example", 400),
            ("checkout", "cb.checkout.example", 201),
            ("reports", "elsewhere.example", 201),
        ):
            asked = {**AUTO, CLIENT: f"{key}-{host}", "x-api-key": key, "DTT-2PHP-Callback": f"https://{host}/cb"}
            assert (await service.request("POST", "/orders", asked, b"{}")).status == status
        assert len(await service.rows()) == 2


@pytest.mark.req("A-39")
async def test_how_often_a_callback_is_tried_is_the_services_to_say(caplog: pytest.LogCaptureFixture) -> None:
    once = replace(OUTGOING, tries=Tries(attempts=1))
    asked = {**AUTO, CLIENT: "c-1", "DTT-2PHP-Callback": "https://client.example/cb"}
    async with a_service(outgoing=once) as service:
        done = await service.request("POST", "/orders", asked, b"{}")
        assert done.status == 201
        await service.server.outbox.close(5.0)
        lines = await service.server.store.journal(0, 100)
    assert [line.event.after for line in lines if line.event.kind == "job"] == ["RUNNING", "DEAD"]
    said = [vars(record) for record in caplog.records if record.name == "twophp.outbox"]
    ids = [(line["client_correlation_id"], line["server_correlation_id"]) for line in said]
    assert ids == [("c-1", done.get(SERVER))] * 2, "it failed, and it is dead"


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
