"""Clients that know no 2PHP and send an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header, ADR 48)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.asgi.driver import (
    CLIENT,
    ENABLED,
    STATE,
    Exchange,
    Orders,
    Reply,
    Seen,
    Service,
    a_scope,
    answer,
    by_header,
    held,
    serving,
)
from twophp import Policy, Quota
from twophp.asgi.messages import Send
from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

ACCEPTS = {"POST /orders": Policy.standard(idempotency_key="accept"), "PUT /orders/{id}": Policy.standard()}
REQUIRES = {"POST /orders": Policy.standard(idempotency_key="require")}


async def keyed(
    service: Service, key: str = '"k-1"', body: bytes = b'{"sku": 1}', more: Mapping[str, str] = {}, **facts: Any
) -> Reply:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json", **more}
    return await service.request("POST", "/orders", headers, body, **facts)


def code_of(reply: Reply) -> str:
    """The code of a problem document that has no field of 2PHP in its head."""
    assert (reply.get("content-type"), reply.ours()) == ("application/problem+json", {})
    assert reply.get("cache-control") == "no-store"
    found = msgspec.json.decode(reply.body)
    assert found["status"] == reply.status
    assert found["title"]
    assert found["detail"]
    return str(found["code"])


async def test_a_key_runs_once_and_repeats_get_the_stored_answer(store: str) -> None:
    async with serving(store=store, policies=ACCEPTS) as service:
        first = await keyed(service)
        again = await keyed(service)
        assert (first.status, first.body, first.ours()) == (201, b'{"id": "7"}', {})
        assert first.get("idempotent-replayed") is None
        assert (again.status, again.body, again.ours()) == (first.status, first.body, {})
        assert again.raw == (*first.raw, (b"idempotent-replayed", b"true"))
        assert service.orders.runs == 1
        (row,) = await service.rows()
        assert (row.client_correlation_id, row.client_id_is_proxy) == ("k-1", False)
        assert (row.phase, row.mode) == ("COMMITTED", "transparent")


async def test_a_quoted_and_a_bare_key_are_the_same() -> None:
    async with serving(policies=ACCEPTS) as service:
        await keyed(service, '"k-1"')
        assert (await keyed(service, "k-1")).get("idempotent-replayed") == "true"
        assert service.orders.runs == 1


async def test_the_application_gets_the_request_as_it_came() -> None:
    async with serving(policies=ACCEPTS) as service:
        await keyed(service, more={"Authorization": "Bearer t", "X-Trace": "1"}, query="a=1")
        (seen,) = service.orders.seen
        assert seen.body == b'{"sku": 1}'
        assert seen.header("idempotency-key") == ['"k-1"']
        assert (seen.header("authorization"), seen.scope["query_string"]) == (["Bearer t"], b"a=1")


@pytest.mark.parametrize("facts", [{"body": b'{"sku": 2}'}, {"query": "a=1"}, {"more": {"Content-Type": "text/plain"}}])
async def test_another_request_under_the_same_key_is_refused_with_422(facts: dict[str, Any]) -> None:
    async with serving(policies=ACCEPTS) as service:
        await keyed(service)
        other = await keyed(service, **facts)
        assert (other.status, code_of(other)) == (422, "idempotency_key_reused")
        assert service.orders.runs == 1


async def test_a_key_that_was_the_id_of_a_handshake_is_refused_with_422() -> None:
    async with serving(policies=ACCEPTS) as service:
        await service.register("k-1", more={"Content-Type": "application/json"})
        assert code_of(await keyed(service)) == "idempotency_key_reused"
        assert service.orders.runs == 0


async def test_a_repeat_in_flight_waits_for_the_answer() -> None:
    async with serving(Orders(held), policies=ACCEPTS) as service:
        first = asyncio.create_task(keyed(service))
        await service.orders.entered.wait()
        second = asyncio.create_task(keyed(service))
        service.orders.may_go_on.set()
        assert (await first).body == (await second).body
        assert service.orders.runs == 1


async def test_a_repeat_that_has_waited_long_enough_gets_409_and_a_time() -> None:
    async with serving(Orders(held), policies=ACCEPTS, replay_wait_ms=1) as service:
        first = asyncio.create_task(keyed(service))
        await service.orders.entered.wait()
        second = await keyed(service)
        assert (second.status, code_of(second), second.get("retry-after")) == (409, "idempotency_key_in_use", "1")
        service.orders.may_go_on.set()
        assert (await first).status == 201


async def test_a_client_that_hangs_up_changes_nothing() -> None:
    async with serving(Orders(held), policies=ACCEPTS) as service:
        scope = a_scope("POST", "/orders", {"Idempotency-Key": "k-1"})
        exchange = Exchange(b"{}")
        call = asyncio.ensure_future(service.middleware(scope, exchange.receive, exchange.send))
        await service.orders.entered.wait()
        call.cancel()
        await asyncio.wait([call])
        service.orders.may_go_on.set()
        again = await service.request("POST", "/orders", {"Idempotency-Key": "k-1"}, b"{}")
        assert (again.status, again.get("idempotent-replayed"), service.orders.runs) == (201, "true", 1)


@pytest.mark.parametrize("status", [404, 422, 503])
async def test_a_failure_is_stored_like_any_answer(status: int) -> None:
    async def fails(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, status, {}, b"no")

    async with serving(Orders(fails), policies=ACCEPTS) as service:
        assert [(reply.status, reply.body) for reply in (await keyed(service), await keyed(service))] == [
            (status, b"no"),
            (status, b"no"),
        ]
        assert service.orders.runs == 1


@pytest.mark.parametrize("key", ["", '""', '"a', "a, b", "x" * 256])
async def test_a_malformed_key_is_refused_with_400_and_runs_nothing(key: str) -> None:
    async with serving(policies=ACCEPTS) as service:
        reply = await keyed(service, key)
        assert (reply.status, code_of(reply), service.orders.runs) == (400, "idempotency_key_malformed", 0)


async def test_a_request_without_a_key_is_the_applications_where_keys_are_accepted() -> None:
    async with serving(policies=ACCEPTS) as service:
        reply = await service.request("POST", "/orders", {}, b"{}")
        assert (reply.status, service.orders.runs, await service.rows()) == (201, 1, [])


async def test_a_request_without_a_key_is_refused_with_400_where_keys_are_required() -> None:
    async with serving(policies=REQUIRES) as service:
        reply = await service.request("POST", "/orders", {}, b"{}")
        assert (reply.status, code_of(reply), service.orders.runs) == (400, "idempotency_key_missing", 0)
        assert (await keyed(service)).status == 201


async def test_a_handshake_needs_no_key_where_keys_are_required() -> None:
    async with serving(policies=REQUIRES) as service:
        registered, final = await service.both("c-1")
        assert (registered.get(STATE), final.get(STATE)) == ("WAITING_CONFIRM", "COMMITTED")


async def test_the_fields_of_2php_come_before_a_key() -> None:
    async with serving(policies=ACCEPTS) as service:
        reply = await keyed(service, more={**ENABLED, CLIENT: "c-1"})
        assert reply.get(STATE) == "WAITING_CONFIRM"
        assert service.orders.runs == 0


async def test_a_key_means_nothing_where_it_is_not_accepted() -> None:
    async with serving(policies=ACCEPTS) as service:
        for _time in range(2):
            await service.request("PUT", "/orders/7", {"Idempotency-Key": "k-1"}, b"{}")
        assert (service.orders.runs, await service.rows()) == (2, [])


async def test_a_key_satisfies_an_endpoint_that_records_or_refuses_plain_requests() -> None:
    for more in ({"transparent": True}, {"require": True}):
        policies = {"POST /orders": Policy.standard(idempotency_key="accept", **more)}  # type: ignore[arg-type]
        async with serving(policies=policies) as service:
            assert [(await keyed(service)).status for _time in range(2)] == [201, 201]
            assert service.orders.runs == 1


async def test_a_key_belongs_to_its_principal() -> None:
    async with serving(policies=ACCEPTS, identify=by_header) as service:
        for user in ("alice", "bob", "alice"):
            assert (await keyed(service, more={"X-User": user})).status == 201
        assert service.orders.runs == 2


async def test_a_client_without_an_identity_is_refused_with_401() -> None:
    async with serving(policies=ACCEPTS, identify=by_header) as service:
        assert ((await keyed(service)).status, service.orders.runs) == (401, 0)


async def test_a_request_without_tls_is_refused() -> None:
    async with serving(policies=ACCEPTS) as service:
        assert ((await keyed(service, scheme="http")).status, service.orders.runs) == (403, 0)


async def test_a_full_quota_refuses_a_new_key() -> None:
    async with serving(Orders(held), policies=ACCEPTS, quota=Quota(open_intents=1)) as service:
        first = asyncio.create_task(keyed(service, "k-1"))
        await service.orders.entered.wait()
        assert (await keyed(service, "k-2")).status == 429
        service.orders.may_go_on.set()
        assert (await first).status == 201


async def test_what_cannot_be_registered_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_asked: object) -> None:
        raise StoreUnavailable("the disk is away")

    async with serving(policies=ACCEPTS) as service:
        await service.middleware.start()
        monkeypatch.setattr(MemoryStore, "transact", away)
        reply = await keyed(service)
        assert (reply.status, reply.get("retry-after"), service.orders.runs) == (503, "1", 0)


async def test_a_key_is_forgotten_after_the_horizon() -> None:
    async with serving(policies=ACCEPTS) as service:
        await keyed(service)
        service.clock.now += Policy.standard().horizon_ms + 1
        for _time in range(3):  # The payload goes first, then the tombstone.
            await service.server.sweep()
        await keyed(service)
        assert service.orders.runs == 2


@pytest.mark.parametrize("more", [{"require": True}, {"transparent": True}])
def test_require_excludes_the_other_ways_with_plain_requests(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="idempotency_key"):
        Policy.standard(idempotency_key="require", **more)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="ignore, accept, require"):
        Policy.standard(idempotency_key="yes")  # type: ignore[arg-type]
