"""A call whose effects nobody knows is told apart from one that failed, wherever it is reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.asgi.crashed import POLICY, left_by_a_crash, swept
from tests.asgi.driver import AUTO, CLIENT, MESSAGE, SERVER, STATE, Orders, Reply, Seen, Service, answer, serving
from tests.patience import PATIENCE_S
from twophp import Policy
from twophp.asgi.messages import Send
from twophp.asgi.outgoing import Outgoing
from twophp.core.intent import by_pair
from twophp.delivery.egress import default_tls
from twophp.delivery.hooks import Hooks, PhaseEvent
from twophp.stores.sqlite.verify import verify

pytestmark = pytest.mark.anyio

INDETERMINATE = "Outcome indeterminate."
CRASHES = {"POST /orders": POLICY}


async def unwritable(_app: Orders, _seen: Seen, send: Send) -> None:
    """It says that it has done its work, with a status that no ledger can keep."""
    status: Any = "201"
    await answer(send, status)


async def raising(_app: Orders, _seen: Seen, _send: Send) -> None:
    raise RuntimeError("half-way")


async def refusing(_app: Orders, _seen: Seen, send: Send) -> None:
    await answer(send, 409)


def told(reply: Reply) -> tuple[int, str | None, str | None]:
    return reply.status, reply.get(STATE), reply.get(MESSAGE)


async def events(service: Service, server_id: str | None) -> list[str]:
    lines = await service.server.store.history(by_pair("c-1", server_id or ""))
    return [line.event.event for line in lines]


@pytest.mark.req("A-34", "A-45")
async def test_after_a_crash_the_row_the_journal_and_the_wire_say_it(store: str) -> None:
    async with serving(store=store, policies=CRASHES) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        done = await service.confirm(registered)
        assert told(done) == (500, "FAILED", INDETERMINATE)
        assert json.loads(done.body)["code"] == "outcome_indeterminate"
        [row] = await service.rows()
        assert (row.phase, row.outcome, row.indeterminate) == ("FAILED", "FAILED", True)
        assert (await events(service, registered.get(SERVER)))[-1] == "indeterminate"


@pytest.mark.req("A-34", "A-04")
async def test_a_status_read_says_it_in_the_same_words() -> None:
    async with serving(policies=CRASHES) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        read = await service.read(registered.get(SERVER) or "")
        assert told(read) == (200, "FAILED", INDETERMINATE)
        assert json.loads(json.loads(read.body)["body"])["code"] == "outcome_indeterminate"
    async with serving(Orders(refusing)) as service:
        registered, _failed = await service.both()
        assert told(await service.read(registered.get(SERVER) or "")) == (200, "FAILED", None)


@pytest.mark.req("A-34", "A-108")
@pytest.mark.parametrize("behave", [raising, refusing])
async def test_a_handler_that_fails_is_no_such_case(behave: Any) -> None:
    async with serving(Orders(behave)) as service:
        registered, failed = await service.both()
        assert (failed.get(STATE), failed.get(MESSAGE) == INDETERMINATE) == ("FAILED", False)
        [row] = await service.rows()
        assert (row.phase, row.indeterminate) == ("FAILED", False)
        assert (await events(service, registered.get(SERVER)))[-1] == "FAILED"


@pytest.mark.req("A-34")
@pytest.mark.parametrize(("found", "indeterminate"), [("NOT_DONE", False), ("UNKNOWN", True)])
async def test_what_the_business_side_knows_is_not_indeterminate(found: str, indeterminate: bool) -> None:
    async with serving(policies=CRASHES, reconcile=lambda _intent: (found, None)) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        assert ((await service.confirm(registered)).get(MESSAGE) == INDETERMINATE) is indeterminate
        [row] = await service.rows()
        assert (row.phase, row.indeterminate) == ("FAILED", indeterminate)


@pytest.mark.req("A-34")
async def test_a_second_run_decides_what_the_first_has_left() -> None:
    again = {"POST /orders": Policy.standard(lease_ms=30_000, on_crash="rerun")}
    async with serving(Orders(refusing), policies=again) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        assert told(await service.confirm(registered)) == (409, "FAILED", None)
        [row] = await service.rows()
        assert row.indeterminate is False


@pytest.mark.req("A-108", "A-34")
@pytest.mark.parametrize("more", [{}, AUTO])
async def test_an_outcome_that_cannot_be_written_is_indeterminate(more: dict[str, str], tmp_path: Path) -> None:
    """The handler said that it has done it, and no ledger can keep what it said. It may have acted outside."""
    async with serving(Orders(unwritable), store=f"sqlite:///{tmp_path}/shop.db") as service:
        done = await service.register(more=more)
        if not more:
            done = await service.confirm(done)
        assert told(done) == (500, "FAILED", INDETERMINATE)
        [row] = await service.rows()
        assert (row.indeterminate, service.orders.runs) == (True, 1)
    assert verify(f"{tmp_path}/shop.db").holds


@pytest.mark.req("A-34", "A-37")
async def test_a_plain_caller_is_told_too(store: str) -> None:
    policies = {"POST /orders": Policy.standard(transparent=True)}
    async with serving(Orders(unwritable), store=store, policies=policies) as service:
        done = await service.request("POST", "/orders", {CLIENT: "c-1"})
        assert (done.status, json.loads(done.body)["code"]) == (500, "outcome_indeterminate")
        [row] = await service.rows()
        assert row.indeterminate is True


@pytest.mark.req("P-9.3-c", "A-34")
async def test_a_hook_and_a_counter_tell_it_apart() -> None:
    hooks, registry, seen, both = Hooks(), CollectorRegistry(), list[PhaseEvent](), asyncio.Event()

    @hooks.on_phase("FAILED", name="note")
    async def note(event: PhaseEvent) -> None:
        seen.append(event)
        if len(seen) == 2:
            both.set()

    outgoing = Outgoing(ssl_context=default_tls(), hooks=hooks)
    async with serving(policies=CRASHES, metrics=registry, outgoing=outgoing) as service:
        await left_by_a_crash(service)
        await swept(service)
        service.orders.behave = refusing
        await service.both("c-2")
        async with asyncio.timeout(PATIENCE_S):
            await both.wait()
    found = sorted((event.client_correlation_id, event.indeterminate) for event in seen)
    assert found == [("c-1", True), ("c-2", False)]
    labels = {"service": "shop", "endpoint": "POST /orders", "mode": "standard"}
    assert registry.get_sample_value("twophp_indeterminate_total", labels) == 1
    assert registry.get_sample_value("twophp_phases_total", labels | {"phase": "FAILED"}) == 2
