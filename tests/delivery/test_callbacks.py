"""Callbacks as a receiver sees them: signed, the same bytes every time, and never to where they must not go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.delivery.outbound import guarded
from tests.delivery.outboxes import GUARD_S, Desk, Site
from tests.delivery.tls_server import Authority, serving
from twophp.core.job import State
from twophp.delivery.callbacks import callback_deliverer, signed_post
from twophp.delivery.egress import Lookups, Resolver, Rules, default_tls
from twophp.delivery.webhooks import Secret, verify
from twophp.wire.callback import decode

pytestmark = pytest.mark.anyio

NAME = "hooks.example.com"
SECRETS = (Secret(bytes(range(32))), Secret(bytes(32)))
LOCAL = Rules(allow_insecure_loopback=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server_tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return authority.server(tmp_path, NAME)


async def loopback(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def desk_to(authority: Authority, resolver: Resolver = loopback, secrets: Sequence[Secret] = SECRETS) -> Desk:
    return Desk(
        callback_deliverer(signed_post(LOCAL, secrets, authority.trusted(), Lookups(resolver), timeout_s=GUARD_S))
    )


@pytest.mark.req("A-39", "A-66", "P-5.5.4-e")
async def test_a_redelivery_is_the_same_body_under_the_same_id_with_a_fresh_signature(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    site = Site(503, 302, 204)
    desk = desk_to(authority)
    async with serving(site.behaviour(), server_tls) as port:
        decision, owed = await desk.owe(url=f"https://{NAME}:{port}/c?token=t")
        await owed.start(decision)
        await desk.idle()
        attempts = [desk.clock.now]
        for error in ("status_503", "status_302"):
            assert (await desk.job()).last_error == error
            await desk.next_due()
            attempts.append(desk.clock.now)
    assert (await desk.job()).state is State.DELIVERED
    assert len(site.requests) == 3
    assert len({body for _, body in site.requests}) == 1
    assert decode(site.requests[0][1]).server_correlation_id == "server-1"
    for (fields, body), now in zip(site.requests, attempts, strict=True):
        assert fields["content-type"] == "application/json"
        for secret in SECRETS:
            assert verify(fields, body, secrets=(secret,), now=now) == "server-1"


@pytest.mark.req("A-66")
async def test_without_secrets_it_is_not_signed(authority: Authority, server_tls: ssl.SSLContext) -> None:
    site = Site()
    desk = desk_to(authority, secrets=())
    async with serving(site.behaviour(), server_tls) as port:
        decision, owed = await desk.owe(url=f"https://{NAME}:{port}/")
        await owed.start(decision)
        await desk.idle()
    assert [name for name in site.requests[0][0] if name.startswith("webhook")] == []


@pytest.mark.req("P-5.5.3-e", "A-38")
async def test_a_name_that_is_never_resolved_holds_no_request(authority: Authority) -> None:
    """The handler runs to its end while the attempt waits: only the handler's end releases it."""
    asked, handled = asyncio.Event(), asyncio.Event()

    async def silent(_host: str, _port: int) -> Sequence[str]:
        asked.set()
        await handled.wait()
        return []

    desk = desk_to(authority, silent)
    async with asyncio.timeout(GUARD_S):
        decision, owed = await desk.owe()
        assert await owed.start(decision)
        await asked.wait()  # The attempt comes as far as the network by itself.
        handled.set()
        await desk.idle()
    assert (await desk.job()).last_error == "unresolved"


@pytest.mark.req("P-5.5.3-e", "A-38")
async def test_a_host_that_never_answers_holds_no_request(authority: Authority, server_tls: ssl.SSLContext) -> None:
    handled = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await handled.wait()

    desk = desk_to(authority)
    async with asyncio.timeout(GUARD_S), serving(mute, server_tls) as port:
        decision, owed = await desk.owe(url=f"https://{NAME}:{port}/")
        assert await owed.start(decision)
        assert desk.outbox.attempts_count == 1
        handled.set()
        await desk.idle()
    assert (await desk.job()).last_error == "bad_answer"


@pytest.mark.req("A-38")
async def test_the_barrier_sent_waits_for_the_bytes_and_not_for_the_answer(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    handled, arrived = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await handled.wait()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()

    desk = desk_to(authority)
    async with asyncio.timeout(GUARD_S), serving(slow, server_tls) as port:
        decision, owed = await desk.owe(url=f"https://{NAME}:{port}/")
        assert await owed.start(decision, barrier="sent", within_s=GUARD_S)
        await arrived.wait()
        handled.set()
        await desk.idle()
    assert (await desk.job()).state is State.DELIVERED


@pytest.mark.req("A-38")
async def test_the_barrier_sent_is_bounded_and_ends_with_the_attempt(authority: Authority) -> None:
    never = asyncio.Event()

    async def silent(_host: str, _port: int) -> Sequence[str]:
        await never.wait()
        return []

    desk = desk_to(authority, silent)
    decision, owed = await desk.owe()
    assert not await owed.start(decision, barrier="sent", within_s=0.001)
    never.set()
    await desk.idle()
    async with asyncio.timeout(GUARD_S):
        decision, owed = await desk.owe("2")
        assert not await owed.start(decision, barrier="sent", within_s=2 * GUARD_S)


@pytest.mark.req("A-65")
async def test_every_attempt_goes_through_the_gate() -> None:
    async def inwards(_host: str, _port: int) -> Sequence[str]:
        return ["10.0.0.1"]

    desk = Desk(callback_deliverer(signed_post(Rules(), SECRETS, default_tls(), Lookups(inwards))))
    with guarded() as guard:
        for name, url in (("1", f"https://{NAME}/"), ("2", "https://127.0.0.1/"), ("3", f"http://{NAME}/")):
            decision, owed = await desk.owe(name, url)
            await owed.start(decision)
            await desk.idle()
        assert (guard.left, guard.stopped) == ([], [])
    found = [(await desk.job(f"server-{name}")).last_error for name in "123"]
    assert found == ["address", "address", "scheme"]
