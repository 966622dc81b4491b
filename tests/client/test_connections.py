"""An answer that no caller receives gives its connection back: a transport does not run out of connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
import trio

from tests.client.callers import Losing, caller, settings
from tests.client.shop import served
from tests.patience import PATIENCE_S
from twophp.client import AsyncTwoPhaseTransport, PhaseError, TwoPhaseTransport
from twophp.client.ledger import Ledger
from twophp.core.call_commands import ServerReply
from twophp.core.errors import ConfigError
from twophp.stores.clock import system_clock

ONE = httpx2.Limits(max_connections=1)
LEASE_OVER_MS = 6_000
TIMEOUT = httpx2.Timeout(PATIENCE_S, pool=1)


async def contradicting(scope: Any, receive: Any, send: Any) -> None:
    """Confirms an intent that it never told of; what is confirmed by itself is committed at once."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        continue
    asked = dict(scope["headers"])
    is_confirm = scope["path"].endswith("/confirm")
    is_over = is_confirm or b"dtt-2php-auto-confirm" in asked
    headers = [
        (b"content-length", b"2"),
        (b"dtt-2php-server-correlation-id", b"another" if is_confirm else b"one"),
        (b"dtt-2php-phase-state", b"COMMITTED" if is_over else b"WAITING_CONFIRM"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize("kind", ["httpx2", "httpx2 async"])
def test_a_contradiction_costs_no_connection(kind: str, tmp_path: Path) -> None:
    net: Any = httpx2.HTTPTransport(limits=ONE) if kind == "httpx2" else httpx2.AsyncHTTPTransport(limits=ONE)
    with served(contradicting) as server, caller(kind, tmp_path, transport=net) as http:
        for number in range(3):  # Three calls: a repeat of the first would wait until its lease is over.
            with pytest.raises(PhaseError) as raised:
                http.post(f"{server.url}/orders", json={"n": number}, timeout=TIMEOUT)
            assert raised.value.code == "other_intent"


def test_the_reconciler_gives_back_what_it_cannot_read(tmp_path: Path) -> None:
    net = httpx2.HTTPTransport(limits=ONE)
    lost = Losing(phase_2=99, status=99)
    with served(contradicting) as server:
        with caller("httpx2", tmp_path, transport=lost, patience_s=0.0) as http:
            for number in range(3):
                with pytest.raises(PhaseError):
                    http.post(f"{server.url}/orders", json={"n": number})
        with caller("httpx2", tmp_path, transport=net, clock=lambda: system_clock() + LEASE_OVER_MS) as http:
            done = http.reconcile()
    assert [call.code for call in done.left] == ["other_intent"] * 3


def test_a_cancelled_call_costs_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has come, and is being written down."""
    record = Ledger.record

    async def cancelled(ledger: Ledger, id_: str, command: Any, request: bytes | None = None) -> Any:
        if isinstance(command, ServerReply):
            raise asyncio.CancelledError
        return await record(ledger, id_, command, request)

    monkeypatch.setattr(Ledger, "record", cancelled)

    async def calls(url: str) -> None:
        net = httpx2.AsyncHTTPTransport(limits=ONE)
        options = settings(tmp_path, transport=net, callback="https://checkout.example/told")
        async with httpx2.AsyncClient(transport=AsyncTwoPhaseTransport(**options), timeout=TIMEOUT) as http:
            for number in range(3):
                with pytest.raises(asyncio.CancelledError):
                    await http.post(url, json={"n": number})

    with served(contradicting) as server:
        asyncio.run(calls(f"{server.url}/orders"))


class Noting(httpx2.BaseTransport):
    """A transport of the caller's own that notes how it is used."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __enter__(self) -> Self:
        self.events.append("enter")
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.events.append("exit")

    def close(self) -> None:
        self.events.append("close")


class AsyncNoting(httpx2.AsyncBaseTransport):
    """The same, awaited."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def __aenter__(self) -> Self:
        self.events.append("enter")
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self.events.append("exit")

    async def aclose(self) -> None:
        self.events.append("close")


def test_a_given_transport_is_entered_and_left_with_ours(tmp_path: Path) -> None:
    one, other, awaited = Noting(), Noting(), AsyncNoting()
    with httpx2.Client(transport=TwoPhaseTransport(**settings(tmp_path, transport=one)), timeout=PATIENCE_S):
        assert one.events == ["enter"]
    httpx2.Client(transport=TwoPhaseTransport(**settings(tmp_path, transport=other)), timeout=PATIENCE_S).close()

    async def enter() -> None:
        async with httpx2.AsyncClient(
            transport=AsyncTwoPhaseTransport(**settings(tmp_path, transport=awaited)), timeout=PATIENCE_S
        ):
            assert awaited.events == ["enter"]

    asyncio.run(enter())
    assert (one.events, other.events, awaited.events) == (["enter", "exit"], ["close"], ["enter", "exit"])


def test_under_trio_a_two_phase_call_is_a_clear_error(tmp_path: Path) -> None:
    async def call() -> None:
        transport = AsyncTwoPhaseTransport(**settings(tmp_path))
        http = httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S)
        await http.post("http://127.0.0.1:9/orders")

    with pytest.raises(ConfigError) as raised:
        trio.run(call)
    assert raised.value.code == "asyncio_only"
