"""Asynchronous endpoints and the status read (draft §5.3.3, A-04, A-40)."""

from __future__ import annotations

import asyncio
import json
import logging
from uuid import UUID

import pytest

from tests.asgi.driver import (
    AUTO,
    CLIENT,
    ENABLED,
    RESOURCE,
    SERVER,
    STATE,
    Exchange,
    Orders,
    Reply,
    Seen,
    a_scope,
    answer,
    by_header,
    held,
    serving,
)
from twophp import Policy, current_intent
from twophp.asgi.messages import Send

pytestmark = pytest.mark.anyio

ASYNC = {"POST /orders": Policy.standard(mode="async")}


def server_id(reply: Reply) -> str:
    found = reply.get(SERVER)
    assert found is not None
    return found


@pytest.mark.req("P-5.3.3-a", "P-5.3.3-b", "P-5.3.3-c", "P-5.3.3-d", "P-5.3.3-e", "P-5.3.3-g", "A-04", "A-05", "A-40")
async def test_async_is_accepted_polled_and_done(store: str) -> None:
    async with serving(Orders(held), policies=ASYNC, store=store) as service:
        registered = await service.register()
        accepted = await service.confirm(registered)
        assert (accepted.status, accepted.get(STATE), accepted.body) == (202, "PROCESSING", b"")
        assert UUID(accepted.get(RESOURCE) or "").version == 4
        location = accepted.get("location")
        assert location == f"/_2php/intents/{server_id(registered)}"
        poll = await service.read(server_id(registered), path=location)
        assert poll == accepted
        assert (poll.get("retry-after"), poll.get("cache-control")) == ("1", "no-store")
        service.orders.may_go_on.set()
        await service.server.executions.drain(5)
        done = await service.read(server_id(registered), path=location)
        assert (done.status, done.get(STATE), done.get(RESOURCE)) == (200, "COMMITTED", "7")
        assert done.body == b'{"id": "7"}'
        assert await service.confirm(registered) == done


@pytest.mark.req("P-5.3.3-f")
async def test_async_and_sync_leave_the_same_journal() -> None:
    journals = []
    for policy in (Policy.standard(), Policy.standard(mode="async")):
        async with serving(policies=policy) as service:
            registered, _reply = await service.both()
            await service.server.executions.drain(5)
            journals.append(await service.journal(server_id(registered)))
    assert journals[0] == journals[1]
    assert journals[0][-1] == ("PROCESSING", "COMMITTED")


@pytest.mark.req("A-05", "P-5.3.3-d")
async def test_an_async_handler_may_keep_the_provisional_id() -> None:
    async def keeps(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        intent.created(intent.provisional_resource_id)
        await answer(send)

    async with serving(Orders(keeps), policies=ASYNC) as service:
        registered, accepted = await service.both()
        await service.server.executions.drain(5)
        assert (await service.read(server_id(registered))).get(RESOURCE) == accepted.get(RESOURCE)


@pytest.mark.req("P-5.3.3-b", "A-107")
async def test_async_work_outlives_its_connection() -> None:
    async with serving(Orders(held), policies=ASYNC) as service:
        registered = await service.register()
        headers = {**ENABLED, CLIENT: "c-1", SERVER: server_id(registered)}
        exchange = Exchange(b"")
        await service.app(a_scope("POST", "/orders/confirm", headers), exchange.receive, exchange.send)
        exchange.hang_up()
        service.orders.may_go_on.set()
        await service.server.executions.drain(5)
        assert await service.phase(server_id(registered)) == "COMMITTED"


@pytest.mark.req("A-04", "P-5.3.3-e")
@pytest.mark.parametrize("status", [422, 503])
async def test_a_failure_is_a_successful_read_of_a_failure(status: int) -> None:
    async def fails(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, status, {}, b"no such sku")

    async with serving(Orders(fails), policies=ASYNC) as service:
        registered, _accepted = await service.both()
        await service.server.executions.drain(5)
        read = await service.read(server_id(registered))
        assert (read.status, read.get(STATE), read.get(RESOURCE)) == (200, "FAILED", None)
        assert json.loads(read.body) == {"phase": "FAILED", "status": status, "body": "no such sku"}


@pytest.mark.req("A-04", "A-27")
async def test_a_read_tells_the_state_of_this_very_moment() -> None:
    async with serving() as service:
        registered = await service.register()
        assert (await service.read(server_id(registered))).get(STATE) == "WAITING_CONFIRM"
        service.clock.now += 30_000
        for _ in range(2):
            read = await service.read(server_id(registered))
            assert (read.status, read.get(STATE), read.body) == (200, "TTL_EXPIRED", b"")
            service.clock.now += 10_000
            await service.server.sweep()


@pytest.mark.req("A-04", "A-40", "P-5.5.3-g")
async def test_a_read_of_what_the_server_confirmed_names_its_phase() -> None:
    async with serving(expose_server_id=True) as service:
        done = await service.request("POST", "/orders", {**AUTO, CLIENT: "c-1"}, b"{}")
        read = await service.read(server_id(done))
        assert (read.status, read.get(STATE), read.get(RESOURCE)) == (200, "COMMITTED", "7")
        assert read.body == done.body


@pytest.mark.req("A-04")
async def test_head_tells_the_same_without_a_body_and_any_path_will_do() -> None:
    async with serving() as service:
        registered, _done = await service.both()
        get = await service.read(server_id(registered), path="/orders/7")
        head = await service.read(server_id(registered), path="/orders/7", method="HEAD")
        assert (head.status, head.raw, head.body) == (get.status, get.raw, b"")
        assert service.orders.runs == 1


@pytest.mark.req("A-04", "A-15")
async def test_a_get_without_both_ids_is_the_applications() -> None:
    async with serving() as service:
        registered, _done = await service.both()
        assert (await service.request("GET", "/orders/7", {**ENABLED, CLIENT: "c-1"})).status == 201
        assert (await service.request("GET", "/orders/7", {SERVER: server_id(registered), CLIENT: "c-1"})).status == 201


@pytest.mark.req("A-67", "P-13.2-b")
async def test_reads_by_others_learn_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(identify=by_header) as service:
        ada, eve = {"x-user": "ada"}, {"x-user": "eve"}
        registered = await service.register(more=ada)
        known = server_id(registered)
        unknown = [
            await service.read("unknown", more=ada),
            await service.read(known, "c-2", more=ada),
            await service.read(known, "c-2", more=eve),
        ]
        assert {reply.status for reply in unknown} == {404}
        assert len(set(unknown)) == 1
        with caplog.at_level(logging.WARNING, "twophp.audit"):
            before = await service.read(known, more=eve)
        assert (before.status, before.get(STATE)) == (403, None)
        assert len([record for record in caplog.records if record.name == "twophp.audit"]) == 1
        await service.confirm(registered, more=ada)
        assert await service.read(known, more=eve) == before
        assert (await service.read(known)).status == 401
        assert (await service.read(known, more=ada, scheme="http")).status == 403


@pytest.mark.req("P-5.3.3-a")
async def test_the_202_does_not_wait_for_the_handler() -> None:
    async with serving(Orders(held), policies=ASYNC) as service:
        replies = await asyncio.gather(*(service.both(f"c-{number}") for number in range(3)))
        assert [done.status for _registered, done in replies] == [202, 202, 202]
        assert not service.orders.may_go_on.is_set()


@pytest.mark.req("P-13.5-b", "A-60", "A-63")
async def test_a_pull_without_the_credential_is_refused_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(management_token="m-1", allow_insecure=True) as service:
        with caplog.at_level(logging.WARNING, "twophp.audit"):
            for sent in ({}, {"Authorization": "Bearer m-2"}):
                assert (await service.request("POST", "/_2php/ledger", sent, b"{}")).status == 401
            let_in = await service.request("POST", "/_2php/ledger", {"Authorization": "Bearer m-1"}, b"{}")
        assert let_in.status == 200
        lines = [record.getMessage() for record in caplog.records if record.name == "twophp.audit"]
        assert len(lines) == 2
        assert "a pull from" in lines[0]
        assert "m-2" not in "".join(lines)


@pytest.mark.req("A-04", "A-67")
async def test_our_own_address_names_the_intent_that_is_asked_for() -> None:
    async with serving() as service:
        registered, _done = await service.both()
        read = await service.read(server_id(registered), path="/_2php/intents/another")
        assert (read.status, read.get(STATE)) == (404, None)
        assert (await service.read(server_id(registered))).status == 200


@pytest.mark.req("T1-1", "A-12", "A-64")
async def test_a_status_read_in_clear_is_refused_before_its_fields_are_looked_at() -> None:
    async with serving() as service:
        fields = [*ENABLED.items(), (CLIENT, "c-1"), (CLIENT, "c-2"), (SERVER, "s-1")]
        raw = [(name.lower().encode(), value.encode()) for name, value in fields]
        for scheme, status in (("http", 403), ("https", 400)):
            exchange = Exchange(b"")
            await service.app(a_scope("GET", "/orders", raw, scheme=scheme), exchange.receive, exchange.send)
            assert exchange.reply().status == status
