"""What the server confirms by itself (draft §5.5): transparent by header and by policy."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from tests.asgi.driver import (
    AUTO,
    CLIENT,
    SERVER,
    STATE,
    Exchange,
    Orders,
    Seen,
    Service,
    a_scope,
    answer,
    created,
    held,
    serving,
)
from twophp import Policy
from twophp.asgi.messages import Message, Receive, Scope, Send
from twophp.asgi.server import INDETERMINATE
from twophp.core.errors import StoreUnavailable
from twophp.core.intent_commands import Settle
from twophp.engine.exchange import encode
from twophp.identity.head import Head
from twophp.ports import Then
from twophp.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

FORCED = {"POST /orders": Policy.standard(transparent=True)}


async def bare(orders: Orders, scope: Scope, body: bytes) -> list[Message]:
    """What the application alone would have sent."""
    exchange = Exchange(body)
    await orders(scope, exchange.receive, exchange.send)
    return exchange.sent


@pytest.mark.req("P-5.5.1-a", "P-5.5.1-b", "P-5.5.1-c", "P-5.5.2-a", "P-5.5.2-c", "P-5.5.2-d", "P-5.5.6-a", "P-5.5.6-b")
@pytest.mark.req("P-5.5.6-c", "P-5.5.6-e", "P-5.5.7-a", "P-5.5.7-b", "P-5.5.7-e", "P-5.5.8-c", "A-08", "A-35", "A-44")
async def test_transparent_by_header_is_one_round_trip_and_one_row(store: str) -> None:
    async with serving(store=store) as service:
        reply = await service.request("POST", "/orders", AUTO, b"{}")
        assert (reply.status, reply.body, reply.ours()) == (201, b'{"id": "7"}', {})
        (row,) = await service.rows()
        assert (row.phase, row.mode, row.client_id_is_proxy) == ("COMMITTED", "transparent", True)
        assert UUID(row.client_correlation_id).version == 4
        assert (row.phase_2_timestamp, row.ttl_ms) == (None, 30_000)
        assert await service.journal(row.server_correlation_id, row.client_correlation_id) == [
            ("ABSENT", "WAITING_CONFIRM"),
            ("WAITING_CONFIRM", "PROCESSING"),
            ("PROCESSING", "COMMITTED"),
        ]


@pytest.mark.req("A-35")
async def test_an_id_that_was_sent_is_used_and_deduplicates() -> None:
    async with serving() as service:
        first = await service.request("POST", "/orders", {**AUTO, CLIENT: "mine"}, b"{}")
        assert await service.request("POST", "/orders", {**AUTO, CLIENT: "mine"}, b"{}") == first
        (row,) = await service.rows()
        assert (row.client_correlation_id, row.client_id_is_proxy, service.orders.runs) == ("mine", False, 1)


@pytest.mark.req("P-5.5.6-d")
async def test_the_server_id_may_be_shown() -> None:
    async with serving(expose_server_id=True) as service:
        reply = await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}")
        (row,) = await service.rows()
        assert reply.ours() == {SERVER.lower(): row.server_correlation_id}
        assert await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}") == reply


@pytest.mark.req("P-5.5.7-c", "A-08")
@pytest.mark.parametrize("status", [404, 422, 503])
async def test_a_failure_comes_back_as_it_is(status: int) -> None:
    async def fails(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, status, {}, b"no")

    async with serving(Orders(fails)) as service:
        reply = await service.request("POST", "/orders", AUTO, b"{}")
        assert (reply.status, reply.body, reply.ours()) == (status, b"no", {})
        (row,) = await service.rows()
        assert row.phase == "FAILED"


@pytest.mark.req("P-5.5.3-b", "P-5.5.7-d", "P-5.5.1-b", "P-9.2-a")
async def test_nobody_ever_sees_it_waiting(store: str) -> None:
    async with serving(Orders(held), store=store) as service:
        running = asyncio.create_task(service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}"))
        await service.orders.entered.wait()
        (row,) = await service.rows()  # The row is there before the handler, and never WAITING_CONFIRM.
        assert row.phase == "PROCESSING"
        service.orders.may_go_on.set()
        await running


@pytest.mark.req("A-36")
async def test_an_async_endpoint_runs_inline_when_the_server_confirms() -> None:
    async with serving(policies=Policy.standard(mode="async")) as service:
        assert (await service.request("POST", "/orders", AUTO, b"{}")).status == 201


async def odd(_app: Orders, _seen: Seen, send: Send) -> None:
    headers = [(b"X-Odd", b"1"), (b"date", b"yesterday"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    await send({"type": "http.response.start", "status": 203, "headers": headers})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b", "more_body": False})


async def empty(_app: Orders, _seen: Seen, send: Send) -> None:
    await answer(send, 204, {}, b"")


@pytest.mark.req("P-5.5.1-f", "P-5.5.6-e", "P-11-a", "A-37")
@pytest.mark.parametrize("behave", [created, odd, empty])
async def test_forced_by_policy_a_plain_client_sees_no_change(behave: Any, store: str) -> None:
    headers = {"content-type": "text/plain", "cookie": "c", "x-b": "1", "accept": "*/*", "content-length": "4"}
    plain = Orders(behave)
    expected = await bare(plain, a_scope("POST", "/orders", headers, query="q=1"), b"body")
    async with serving(Orders(behave), policies=FORCED, store=store) as service:
        exchange = Exchange(b"body")
        await service.app(a_scope("POST", "/orders", headers, query="q=1"), exchange.receive, exchange.send)
        assert exchange.sent[0] == {
            "type": "http.response.start",
            **expected[0],
            "headers": exchange.sent[0]["headers"],
        }
        assert list(exchange.sent[0]["headers"]) == list(expected[0]["headers"])
        assert exchange.reply().body == b"".join(part["body"] for part in expected[1:])
        (saw,), (would_see,) = service.orders.seen, plain.seen
        assert (saw.body, saw.scope["headers"]) == (would_see.body, would_see.scope["headers"])
        for key in ("method", "path", "raw_path", "query_string", "client", "scheme"):
            assert saw.scope[key] == would_see.scope[key]
        (row,) = await service.rows()
        assert (row.mode, row.phase, row.client_id_is_proxy) == ("transparent", "COMMITTED", True)


@pytest.mark.req("A-37", "P-11-a")
@pytest.mark.asgi_only
async def test_forced_by_policy_an_error_is_raised_as_it_was_and_recorded() -> None:
    async def breaks(_app: Orders, _seen: Seen, _send: Send) -> None:
        raise ZeroDivisionError("mine")

    async with serving(Orders(breaks), policies=FORCED) as service:
        with pytest.raises(ZeroDivisionError, match="mine"):
            await service.request("POST", "/orders", {}, b"x")
        assert service.orders.runs == 1
        (row,) = await service.rows()
        assert row.phase == "FAILED"


@pytest.mark.req("A-37")
async def test_plain_http_and_unknown_callers_are_the_applications_business() -> None:
    def nobody(_head: Head) -> str:
        raise PermissionError

    def refuse(_head: Head, _body: bytes) -> None:
        raise ValueError

    async with serving(policies=FORCED, identify=nobody, prevalidate=refuse) as service:
        assert (await service.request("POST", "/orders", {}, b"x", scheme="http")).status == 201
        assert len(await service.rows()) == 1
        assert (await service.request("PUT", "/orders", {}, b"x")).status == 201
        assert (await service.request("GET", "/orders", {})).status == 201
        assert len(await service.rows()) == 1


@pytest.mark.req("A-37", "A-16")
async def test_a_plain_body_too_large_to_record_is_served_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    async with serving(policies=FORCED, max_body_bytes=10, metrics=registry) as service:
        reply = await service.request("POST", "/orders", {}, (b"123456", b"789", b"0123456"))
        assert (reply.status, service.orders.seen[0].body) == (201, b"1234567890123456")
        assert await service.rows() == []
        assert "without being recorded" in caplog.text
        labels = {"service": "shop", "endpoint": "POST /orders"}
        assert registry.get_sample_value("twophp_unrecorded_total", labels) == 1


async def failing_from(service: Service, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """From the given number of writes on, the store is away."""
    transact, submit, count = MemoryStore.transact, MemoryStore.submit, 0

    async def away(self: MemoryStore, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count > writes:
            raise StoreUnavailable("the disk is gone")
        return await transact(self, *args)

    def away_later(self: MemoryStore, command: Any, then: Then) -> None:
        nonlocal count
        count += 1
        if count > writes:
            asyncio.get_running_loop().call_soon(then, None, StoreUnavailable("the disk is gone"))
        else:
            submit(self, command, then)

    await service.rows()
    monkeypatch.setattr(MemoryStore, "transact", away)
    monkeypatch.setattr(MemoryStore, "submit", away_later)
    monkeypatch.setattr("twophp.engine.persistence.SHORT_PATIENCE_S", 0)


@pytest.mark.req("A-37")
@pytest.mark.parametrize("writes", [0, 1])
async def test_a_store_that_is_away_is_no_plain_clients_trouble(
    writes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(policies=FORCED) as service:
        await failing_from(service, monkeypatch, writes)
        with caplog.at_level(logging.ERROR, "twophp.server"):
            reply = await service.request("POST", "/orders", {}, b"x")
        assert (reply.status, reply.body, service.orders.runs) == (201, b'{"id": "7"}', 1)
        assert "recorded" in caplog.text
        monkeypatch.undo()


@pytest.mark.req("A-37", "P-9.2-a")
async def test_a_store_that_never_opens_serves_the_plain_and_refuses_the_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = f"sqlite:///{tmp_path}/missing/shop.db"
    async with serving(policies=FORCED, store=nowhere) as service:
        assert (await service.request("POST", "/orders", {}, b"x")).status == 201
        assert "without being recorded" in caplog.text
        assert (await service.register()).status == 503
        assert service.orders.runs == 1


@pytest.mark.req("P-9.2-a", "A-37", "P-4-d")
async def test_without_a_store_nothing_is_registered_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as service:
        waiting = await service.register("c-0")
        await failing_from(service, monkeypatch, 0)
        for reply in (
            await service.register("c-1"),
            await service.request("POST", "/orders", AUTO, b"{}"),
            await service.confirm(waiting, "c-0"),
        ):
            assert (reply.status, reply.get(STATE), reply.get("retry-after")) == (503, None, "1")
        assert service.orders.runs == 0
        monkeypatch.undo()
        assert [row.client_correlation_id for row in await service.rows()] == ["c-0"]
        assert (await service.confirm(waiting, "c-0")).status == 200


@pytest.mark.req("A-108")
async def test_an_outcome_that_cannot_be_written_is_500_for_now_and_true_as_soon_as_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(replay_wait_ms=0) as service:
        registered = await service.register()
        await failing_from(service, monkeypatch, 1)
        reply = await service.confirm(registered)
        assert (reply.status, reply.get(STATE), service.orders.runs) == (500, "PROCESSING", 1)
        monkeypatch.undo()
        await service.server.executions.drain(30)
        again = await service.confirm(registered)
        assert (again.status, again.get(STATE), service.orders.runs) == (200, "COMMITTED", 1)


@pytest.mark.req("A-108", "A-34")
async def test_an_outcome_is_tried_no_longer_once_another_has_the_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(replay_wait_ms=0) as service:
        registered = await service.register()
        await failing_from(service, monkeypatch, 1)
        monkeypatch.setattr("twophp.engine.persistence.FIRST_PAUSE_S", 0.2)  # The other one comes before the next try.
        assert (await service.confirm(registered)).status == 500
        monkeypatch.undo()
        server, service.clock.now = service.server, service.clock.now + 30_001
        (taken,) = await server.intents.sweep(server.policy_of, "another", before=service.clock.now + 1)
        assert taken.intent is not None
        failed = Settle(fence=taken.intent.fence, succeeded=False, status=INDETERMINATE.status)
        await server.intents.settle(taken.intent, failed, encode(INDETERMINATE), server.policy_of)
        assert await server.executions.drain(30) == []
        again = await service.confirm(registered)
        assert (again.status, again.get(STATE), service.orders.runs) == (500, "FAILED", 1)
        assert again.get("DTT-2PHP-Message") == "Outcome indeterminate."


@pytest.mark.req("P-5.1-b", "P-1-b", "P-11-b")
async def test_an_application_without_the_middleware_ignores_the_fields() -> None:
    orders = Orders()
    sent = await bare(orders, a_scope("POST", "/orders", {**AUTO, CLIENT: "c-1"}), b"{}")
    assert (sent[0]["status"], orders.runs) == (201, 1)


@pytest.mark.req("P-11-a", "P-1-b", "P-11-e")
async def test_without_the_opt_in_the_application_gets_the_very_same_objects() -> None:
    got: list[tuple[Scope, Receive, Send]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got.append((scope, receive, send))

    async with serving(app=app) as service:
        exchange = Exchange(b"")
        receive, send = exchange.receive, exchange.send
        for scope in (a_scope("POST", "/orders"), {"type": "websocket", "path": "/ws", "headers": []}):
            await service.app(scope, receive, send)
            assert got.pop() == (scope, receive, send)


@pytest.mark.req("A-44")
async def test_what_the_server_confirms_has_the_endpoints_own_ttl() -> None:
    async with serving(policies=Policy.low_latency()) as service:
        await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1", "DTT-2PHP-Requested-TTL": "15000"}, b"x")
        (row,) = await service.rows()
        assert row.ttl_ms == 5_000
