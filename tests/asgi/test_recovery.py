"""What a service does about executions that another process left behind, and how long it keeps what it executed."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any
from uuid import UUID

import pytest

from tests.asgi.crashed import POLICY, confirmed_by_the_dead, left_by_a_crash, swept
from tests.asgi.driver import MESSAGE, RESOURCE, SERVER, STATE, serving
from tests.patience import PATIENCE_S
from twophp import Policy
from twophp.asgi.settings import Reconciled
from twophp.core.intent import Intent

pytestmark = pytest.mark.anyio


@pytest.mark.req("A-34")
async def test_a_slow_answer_about_a_crash_keeps_its_lease(store: str) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        asked.set()
        await may_answer.wait()
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await service.register()
        server_id = registered.get(SERVER)
        assert server_id is not None
        await confirmed_by_the_dead(service, server_id)
        service.clock.now += POLICY.lease_ms
        await service.server.sweep()
        await asked.wait()
        try:
            for _beat in range(3):  # The heartbeat comes by three times in a lease; a lease and a half go by.
                service.clock.now += POLICY.lease_ms // 2
                await service.server.executions.renew()
            intent = await service.intent(server_id)
            assert intent is not None
            assert intent.lease_until == service.clock.now + POLICY.lease_ms
            assert (
                await service.server.intents.sweep(lambda _intent: POLICY, "another", before=service.clock.now + 1)
                == []
            )
        finally:
            may_answer.set()
        assert (await service.confirm(registered)).get("DTT-2PHP-Resource-ID") == "order-7"
        assert service.orders.runs == 0


@pytest.mark.req("A-34")
@pytest.mark.parametrize("away", [2, 50])
async def test_a_business_side_that_is_away_is_asked_again_and_not_for_ever(away: int, store: str) -> None:
    asked = 0

    def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        nonlocal asked
        asked += 1
        if asked <= away:
            raise ConnectionError("the shop is away")
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await service.register()
        await confirmed_by_the_dead(service, registered.get(SERVER) or "")
        for _lease in range(8):
            service.clock.now += POLICY.lease_ms
            await swept(service)
        ended = await service.confirm(registered)
        assert asked == (3 if away == 2 else 5)
        assert (ended.status, ended.get("DTT-2PHP-Phase-State")) == (
            (200, "COMMITTED") if away == 2 else (500, "FAILED")
        )
        assert service.orders.runs == 0


@pytest.mark.req("A-34")
async def test_a_second_process_does_not_keep_the_first_from_asking_again(tmp_path: object) -> None:
    """The first lives and has given its recovery up for a lease's time; the sweep of the other comes by earlier."""
    asked = 0

    def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("the shop is away")
        return "COMMITTED", "order-7"

    told: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/shop.db", "policies": {"POST /orders": POLICY}}
    async with serving(reconcile=reconcile, **told) as first, serving(**told) as second:
        await second.middleware.start()
        registered = await first.register()
        await confirmed_by_the_dead(first, registered.get(SERVER) or "")
        for sweeper in (first, second):
            for service in (first, second):
                service.clock.now += POLICY.lease_ms
            await swept(sweeper)
        assert asked == 1
        await swept(first)
        assert (asked, await first.phase(registered.get(SERVER))) == (2, "COMMITTED")


@pytest.mark.req("A-34")
@pytest.mark.parametrize("answer", ["COMMITTED", None, ("DONE", None), ("COMMITTED",), (), {"COMMITTED": "order-7"}])
async def test_an_answer_without_the_form_counts_as_none(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    def reconcile(_intent: Intent) -> Any:
        nonlocal asked
        asked += 1
        return answer

    async with serving(policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await left_by_a_crash(service)
        for _lease in range(8):
            await swept(service)
            service.clock.now += POLICY.lease_ms
        ended = await service.confirm(registered)
    assert asked == 5
    assert (ended.status, ended.get(STATE), ended.get(MESSAGE)) == (500, "FAILED", "Outcome indeterminate.")
    assert "reconcile must answer" in caplog.text


@pytest.mark.req("A-34", "A-05")
@pytest.mark.parametrize(
    ("named", "sent"),
    [
        ("order-7", "order-7"),
        (42, "42"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (None, None),
        ("a b", None),
        ("größe", None),
        ("x" * 257, None),
        (b"order-7", None),
        (["order-7"], None),
    ],
)
async def test_a_name_that_no_header_can_carry_leaves_the_call_committed(named: Any, sent: str | None) -> None:
    def reconcile(_intent: Intent) -> Any:
        return "COMMITTED", named

    async with serving(policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        server_id = registered.get(SERVER) or ""
        for told in (await service.confirm(registered), await service.read(server_id)):
            assert (told.status, told.get(STATE), told.get(RESOURCE)) == (200, "COMMITTED", sent or server_id)


@pytest.mark.req("A-34")
async def test_who_never_answers_about_one_call_keeps_no_other_from_its_time(store: str) -> None:
    asked, may_answer, questions = asyncio.Event(), asyncio.Event(), 0

    async def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        nonlocal questions
        questions += 1
        asked.set()
        await may_answer.wait()
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await left_by_a_crash(service)
        other = await service.register("c-2")
        async with asyncio.timeout(PATIENCE_S):
            await service.server.sweep()
            await asked.wait()
            for _lease in range(3):
                service.clock.now += POLICY.lease_ms
                await service.server.sweep()
        assert await service.phase(other.get(SERVER), "c-2") == "ABANDONED"
        assert (await service.phase(registered.get(SERVER)), questions) == ("PROCESSING", 1)
        may_answer.set()
        assert (await service.confirm(registered)).get(RESOURCE) == "order-7"


@pytest.mark.req("A-34")
async def test_a_function_that_does_not_come_back_stops_nobody_else(store: str) -> None:
    may_answer, asked = threading.Event(), threading.Semaphore(0)

    def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        asked.release()
        assert may_answer.wait(PATIENCE_S)
        return "COMMITTED", "order-7"

    async with serving(store=store, policies={"POST /orders": POLICY}, reconcile=reconcile) as service:
        registered = await left_by_a_crash(service)
        await service.server.sweep()
        assert await asyncio.to_thread(asked.acquire, timeout=PATIENCE_S)
        assert (await service.both("c-2"))[1].get(STATE) == "COMMITTED"
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"
        may_answer.set()
        assert (await service.confirm(registered)).get(RESOURCE) == "order-7"


@pytest.mark.req("A-34")
async def test_an_exit_in_place_of_an_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(policies={"POST /orders": POLICY}, reconcile=sys.exit) as service:
        registered = await left_by_a_crash(service)
        await swept(service)
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"
    assert "reconcile failed" in caplog.text


@pytest.mark.req("A-34")
async def test_who_takes_too_long_to_answer_is_asked_again_and_not_for_ever(store: str) -> None:
    asked = 0

    async def reconcile(_intent: Intent) -> tuple[Reconciled, str | None]:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    brief = Policy.standard(lease_ms=POLICY.lease_ms, processing_timeout_ms=1)
    async with serving(store=store, policies={"POST /orders": brief}, reconcile=reconcile) as service:
        registered = await left_by_a_crash(service)
        phases = []
        for _lease in range(8):
            async with asyncio.timeout(PATIENCE_S):
                await swept(service)
            phases.append(await service.phase(registered.get(SERVER)))
            service.clock.now += POLICY.lease_ms
    assert phases == ["PROCESSING"] * 4 + ["FAILED"] * 4
    assert asked == 5


@pytest.mark.req("P-9.5-e", "A-62")
async def test_a_less_critical_service_keeps_the_payload_for_the_two_phases_only(store: str) -> None:
    brief = Policy.standard(payload_retention_ms=0)
    async with serving(store=store, policies={"POST /orders": brief}) as service:
        registered = await service.register()
        waiting = await service.intent(registered.get(SERVER))
        assert waiting is not None
        assert await service.server.intents.payload(waiting) is not None
        done = await service.confirm(registered)
        await service.server.sweep()
        ended = await service.intent(registered.get(SERVER))
        assert ended is not None
        assert not ended.has_payload
        assert await service.server.intents.payload(ended) is None
        assert await service.confirm(registered) == done  # The outcome outlives what was asked for.
