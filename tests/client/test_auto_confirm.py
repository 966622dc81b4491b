"""Auto-confirm with a callback: one round trip, both sides in the ledger, whichever of the two answers gets lost."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.client.callers import HandTime, Losing, caller, settings
from tests.client.shop import Shop, committed, pair, served, shop
from tests.delivery.tls_server import Authority
from tests.patience import PATIENCE_S
from twophp.asgi import Outgoing
from twophp.client import Advice, CallbackReceiver, Evidence, PhaseError, classify
from twophp.client.ledger import CALLBACK
from twophp.client.outgoing import callback_token
from twophp.core.intent import Mode, Phase
from twophp.delivery.egress import Rules
from twophp.delivery.webhooks import read_secret, sign
from twophp.stores.clock import system_clock
from twophp.stores.urls import open_vault
from twophp.wire.callback import Acknowledgement, encode

SOMEWHERE = "https://checkout.example/2php/callback"


@pytest.mark.req("P-5.5.5-a", "P-5.5.5-b", "P-5.5.5-c", "P-5.5.5-d")
def test_the_four_rows() -> None:
    assert classify(callback=True, response=True) is Evidence.NORMAL
    assert classify(callback=True, response=False) is Evidence.RESPONSE_LOST
    assert classify(callback=False, response=True) is Evidence.CALLBACK_LOST
    assert classify(callback=False, response=False) is Evidence.UNKNOWN


def receiving(folder: Path, webhook_secrets: Sequence[str] = ()) -> CallbackReceiver:
    return CallbackReceiver(**settings(folder), webhook_secrets=webhook_secrets)


def evidence(folder: Path, client_correlation_id: str) -> Evidence | None:
    async def ask() -> Evidence | None:
        async with receiving(folder) as receiver:
            return await receiver.evidence(client_correlation_id)

    return asyncio.run(ask())


@contextmanager
def receiver_over_tls(folder: Path, heard: threading.Event) -> Iterator[tuple[str, Authority]]:
    """The receiver as a service would mount it, behind a certificate of our own."""
    authority = Authority()
    authority.server(folder, "localhost")
    receiver = receiving(folder)
    app = Starlette(routes=[Mount("/2php/callback", receiver)])

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        if scope["type"] == "http":
            await receiver.close()
            heard.set()

    certificate = str(folder / "localhost.pem")
    with served(noting, ssl_certfile=certificate, lifespan="off") as server:
        yield f"https://localhost:{server.port}/2php/callback", authority


@pytest.mark.req("P-5.5.3-a", "P-5.5.5-a", "P-5.5.8-b", "A-41", "A-66", "P-14.1-c", "P-14.1-d", "P-5.5.2-b")
def test_one_round_trip_and_two_rows(tmp_path: Path) -> None:
    heard = threading.Event()
    with receiver_over_tls(tmp_path, heard) as (url, authority):
        outgoing = Outgoing(rules=Rules(allow_insecure_loopback=True), ssl_context=authority.trusted())
        with shop(tmp_path, outgoing=outgoing) as orders, caller("httpx2", tmp_path, callback=url) as http:
            said = http.post(f"{orders.url}/orders")
            assert heard.wait(10)
            assert orders.lines() == ["POST /orders"]
            (one,) = orders.heard
    assert (said.status, said.info["phase"], said.info["mode"]) == (201, "COMMITTED", "auto_confirm")
    assert (one.dtt("enabled"), one.dtt("auto-confirm")) == ("true", "true")
    assert (one.dtt("callback") or "").startswith(f"{url}/")
    id_ = said.info["client_correlation_id"]
    client, server = pair(tmp_path / "checkout.db", id_), pair(tmp_path / "orders.db", id_)
    assert client.server_correlation_id == server.server_correlation_id
    assert (client.phase, client.mode, client.phase_2_timestamp) == (Phase.COMMITTED, Mode.AUTO_CONFIRM, None)
    assert evidence(tmp_path, id_) is Evidence.NORMAL


@pytest.fixture
def auto(tmp_path: Path) -> Iterator[Shop]:
    """A shop whose callbacks lead nowhere."""

    async def nowhere(_host: str, _port: int) -> list[str]:
        raise OSError

    with shop(tmp_path, outgoing=Outgoing(resolver=nowhere)) as orders:
        yield orders


@pytest.mark.req("P-5.5.5-c", "A-41")
def test_without_the_callback_the_answer_writes_the_row(kind: str, auto: Shop, tmp_path: Path) -> None:
    with caller(kind, tmp_path, callback=SOMEWHERE) as http:
        said = http.post(f"{auto.url}/orders")
    assert pair(tmp_path / "checkout.db", said.info["client_correlation_id"]).phase is Phase.COMMITTED
    assert evidence(tmp_path, said.info["client_correlation_id"]) is Evidence.CALLBACK_LOST


def acknowledge(folder: Path, orders: Shop, known: str = "", signed: str = "", **wrong: str) -> int:
    """Deliver the callback of the only call there is, as its server would, to a receiver that may know a secret."""
    (row,) = orders.rows()
    said = Acknowledgement(
        server_correlation_id=wrong.get("server_correlation_id", row.server_correlation_id),
        client_correlation_id=wrong.get("client_correlation_id", row.client_correlation_id),
        dispatched_at=row.phase_1_timestamp,
    )
    return delivered(folder, said, known, signed, **wrong)


def delivered(folder: Path, said: Acknowledgement, known: str = "", signed: str = "", **wrong: str) -> int:
    """What the receiver answers to a callback."""
    body = encode(said)

    async def deliver() -> int:
        (secret,) = open_vault(f"sqlite:///{folder}/checkout.db").derived(CALLBACK)
        token = wrong.get("token", callback_token(secret, said.client_correlation_id))
        headers = sign("w-1", body, secrets=[read_secret(signed)], now=system_clock()) if signed else ()
        async with receiving(folder, [known] if known else []) as receiver:
            transport = httpx2.ASGITransport(app=receiver)
            async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as http:
                answer = await http.post(
                    f"https://checkout.example/2php/callback/{token}",
                    content=wrong.get("body", body),
                    headers=dict(headers),
                )
                return answer.status_code

    return asyncio.run(deliver())


@pytest.mark.req("P-5.5.5-b", "P-5.5.3-g", "A-40")
def test_with_the_callback_alone_the_status_is_read(auto: Shop, tmp_path: Path) -> None:
    statuses: list[int] = []

    def after(kind: str) -> None:
        if kind == "phase_1":
            thread = threading.Thread(target=lambda: statuses.append(acknowledge(tmp_path, auto)))
            thread.start()
            thread.join()

    net, time = Losing(after, phase_1=1), HandTime()
    with caller("httpx2", tmp_path, callback=SOMEWHERE, transport=net, steady=time, pause=time.pause) as http:
        said = http.post(f"{auto.url}/orders")
    assert statuses == [204]
    assert net.sent == ["phase_1", "status"]
    assert (said.json["id"], said.info["phase"]) == ("order-1", "COMMITTED")
    assert auto.runs == ["POST /orders"]
    assert evidence(tmp_path, said.info["client_correlation_id"]) is Evidence.RESPONSE_LOST


@pytest.mark.req("A-66")
def test_a_receiver_that_knows_a_secret_takes_signed_callbacks_only(auto: Shop, tmp_path: Path) -> None:
    ours, other = (f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))
    with caller("httpx2", tmp_path, callback=SOMEWHERE) as http:
        http.post(f"{auto.url}/orders")
    assert [acknowledge(tmp_path, auto, ours, signed) for signed in ("", other, ours)] == [401, 401, 204]


@pytest.mark.req("P-5.5.5-d", "A-42")
def test_with_neither_the_same_id_finds_out(auto: Shop, tmp_path: Path) -> None:
    net, time = Losing(phase_1=2), HandTime()
    options = {"callback": SOMEWHERE, "transport": net, "steady": time, "pause": time.pause, "require_2php": True}
    with caller("httpx2", tmp_path, **options) as http:
        said = http.post(f"{auto.url}/orders")
    assert net.sent == ["phase_1", "status", "phase_1", "phase_1"], "it asks once who is there, and repeats"
    assert len({heard.dtt("client-correlation-id") for heard in auto.heard}) == 1
    assert len({heard.dtt("callback") for heard in auto.heard if heard.method == "POST"}) == 1
    assert sum(time.waits) >= 10, "each time, the callback is waited for before"
    assert auto.runs == ["POST /orders"], "both channels were lost after the point of no return"
    assert said.json["id"] == "order-1"


@pytest.mark.req("A-42", "A-06", "A-43", "P-13.4-a", "A-62")
def test_what_nobody_could_tell_is_found_out_later_with_the_sealed_request(auto: Shop, tmp_path: Path) -> None:
    net, time = Losing(phase_1=1), HandTime()
    options = {"callback": SOMEWHERE, "steady": time, "pause": time.pause}
    with caller("httpx2", tmp_path, transport=net, **options) as http, pytest.raises(PhaseError) as raised:
        http.post(f"{auto.url}/orders", json={"canary": "canary-4711"})
    error = raised.value
    assert (error.code, error.advice) == ("answer_lost", Advice.CHECK)
    assert committed(tmp_path / "checkout.db") == [], "a row needs both ids"
    assert evidence(tmp_path, error.client_correlation_id or "") is Evidence.UNKNOWN
    raw = b"".join(path.read_bytes() for path in tmp_path.glob("checkout.db*"))
    assert b"canary-4711" not in raw
    with caller("httpx2", tmp_path, require_2php=True, clock=_later, **options) as http:
        (settled,) = http.reconcile().settled
    assert (settled.phase, settled.client_correlation_id) == ("COMMITTED", error.client_correlation_id)
    assert auto.runs == ["POST /orders"]
    row = pair(tmp_path / "checkout.db", error.client_correlation_id or "")
    assert (row.phase, row.payload_ref) == (Phase.COMMITTED, None)


def _later() -> int:
    return system_clock() + 60_000


@pytest.mark.req("A-66")
def test_the_receiver_believes_only_what_it_can_check(auto: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path, callback=SOMEWHERE) as http:
        said = http.post(f"{auto.url}/orders")
    refused = {
        "token": "0" * 64,
        "client_correlation_id": "nobody-knows",
        "body": "no acknowledgement",
    }
    statuses = {name: acknowledge(tmp_path, auto, **{name: value}) for name, value in refused.items()}
    assert statuses == {"token": 404, "client_correlation_id": 404, "body": 400}
    assert acknowledge(tmp_path, auto, server_correlation_id="another") == 409
    assert evidence(tmp_path, said.info["client_correlation_id"]) is Evidence.CALLBACK_LOST
    before = pair(tmp_path / "checkout.db", said.info["client_correlation_id"])
    assert [acknowledge(tmp_path, auto) for _ in range(3)] == [204] * 3, "a repeated delivery is no news"
    after = pair(tmp_path / "checkout.db", said.info["client_correlation_id"])
    assert (after.phase, after.version) == (before.phase, before.version + 1)
    assert evidence(tmp_path, said.info["client_correlation_id"]) is Evidence.NORMAL


@pytest.mark.req("A-06", "A-43")
def test_a_plain_server_leaves_no_trace_of_it(kind: str, tmp_path: Path) -> None:
    with (
        served(Shop(tmp_path).app) as plain,
        caller(kind, tmp_path, callback=SOMEWHERE) as http,
    ):
        said = http.post(f"{plain.url}/orders")
    assert (said.status, said.info["mode"]) == (201, "plain")
    assert committed(tmp_path / "checkout.db") == []
    assert evidence(tmp_path, said.info["client_correlation_id"]) is None


def test_a_callback_that_the_server_refuses_is_an_answer(orders: Shop, tmp_path: Path) -> None:
    with caller("httpx2", tmp_path, callback="https://localhost/told") as http:
        said = http.post(f"{orders.url}/orders")
    assert (said.status, said.info["mode"], said.json["code"]) == (400, "refused", "bad_callback")
    assert orders.runs == []
