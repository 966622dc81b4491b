"""Table T2: Phase 1 with an id that is already known, row by row, both columns."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi.driver import (
    AUTO,
    CLIENT,
    DEADLINE,
    RESOURCE,
    SERVER,
    STATE,
    TTL,
    Orders,
    Reply,
    Seen,
    Service,
    answer,
    by_header,
    held,
    serving,
)
from twophp import Head, Policy
from twophp.asgi.messages import Send

pytestmark = pytest.mark.anyio

CALLBACK = {"DTT-2PHP-Callback": "https://client.example/cb"}


async def auto(service: Service, client_id: str = "c-1", body: bytes = b"{}") -> Reply:
    """A transparent request with an id: confirmed by the server, found again by its id (A-35)."""
    return await service.request("POST", "/orders", {**AUTO, CLIENT: client_id}, body)


async def other_fingerprints(service: Service) -> set[int]:
    """The same id with another body, type, query, path and method."""
    replies = [
        await service.register(body=b"other"),
        await service.register(more={"content-type": "text/plain"}),
        await service.register(query="a=1"),
        await service.register(path="/orders/7"),
        await service.register(method="PUT"),
    ]
    assert all(reply.get(STATE) is None and reply.get(SERVER) is None for reply in replies)
    return {reply.status for reply in replies}


@pytest.mark.req("T2-1", "A-32")
async def test_row_1_a_live_registration_again(store: str) -> None:
    async with serving(store=store, policies=Policy.standard()) as service:
        first = await service.register()
        service.clock.now += 10_000
        again = await service.register()
        assert again.status == 200
        assert again.get(STATE) == "WAITING_CONFIRM"
        assert (again.get(SERVER), again.get(DEADLINE)) == (first.get(SERVER), first.get(DEADLINE))
        assert (first.get(TTL), again.get(TTL)) == ("30000", "20000")
        assert await other_fingerprints(service) == {422}
        assert len(await service.rows()) == 1
        service.clock.now += 20_000  # The deadline was never extended.
        assert (await service.confirm(first)).status == 408


@pytest.mark.req("T2-2")
async def test_row_2_while_it_runs(store: str) -> None:
    async with serving(Orders(held), store=store, policies=Policy.standard()) as service:
        registered = await service.register()
        running = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        again = await service.register()
        assert (again.status, again.get(STATE)) == (200, "PROCESSING")
        assert again.get(SERVER) == registered.get(SERVER)
        assert again.ours().keys() == {STATE.lower(), SERVER.lower()}
        assert await other_fingerprints(service) == {422}
        service.orders.may_go_on.set()
        assert (await running).status == 200


@pytest.mark.req("T2-2", "A-35")
async def test_row_2_auto_confirm_waits_for_the_answer() -> None:
    async with serving(Orders(held)) as service:
        first = asyncio.create_task(auto(service))
        await service.orders.entered.wait()
        second = asyncio.create_task(auto(service))
        service.orders.may_go_on.set()
        assert await first == await second
        assert service.orders.runs == 1


@pytest.mark.req("T2-2")
async def test_row_2_auto_confirm_that_takes_too_long_is_409() -> None:
    async with serving(Orders(held), replay_wait_ms=1) as service:
        first = asyncio.create_task(auto(service))
        await service.orders.entered.wait()
        second = await auto(service)
        assert (second.status, second.get(STATE), second.get("retry-after")) == (409, "PROCESSING", "1")
        assert (await auto(service, body=b"other")).status == 422
        service.orders.may_go_on.set()
        assert (await first).status == 201


@pytest.mark.req("T2-3", "P-5.2.2-k")
@pytest.mark.parametrize(("status", "phase"), [(201, "COMMITTED"), (422, "FAILED")])
async def test_row_3_when_it_is_settled(status: int, phase: str, store: str) -> None:
    async def settles(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, status)

    async with serving(Orders(settles), store=store, policies=Policy.standard()) as service:
        registered, done = await service.both()
        again = await service.register()
        assert (again.status, again.get(STATE), again.get(RESOURCE)) == (200, phase, None)
        assert again.get(SERVER) == registered.get(SERVER)
        assert await service.confirm(again) == done
        assert await other_fingerprints(service) == {422}
        assert service.orders.runs == 1


@pytest.mark.req("T2-3")
async def test_row_3_auto_confirm_gets_the_stored_answer() -> None:
    async with serving() as service:
        first = await auto(service)
        assert await auto(service) == first
        assert (await auto(service, body=b"other")).status == 422
        assert service.orders.runs == 1


@pytest.mark.req("T2-4", "P-8.2-c")
@pytest.mark.parametrize("late_ms", [0, 4_999, 5_000, 100_000])
async def test_row_4_an_expired_id_is_used_up(late_ms: int, store: str) -> None:
    async with serving(store=store, policies=Policy.standard()) as service:
        await service.register()
        service.clock.now += 30_000 + late_ms
        again = await service.register()
        assert (again.status, again.get(STATE), again.get(SERVER)) == (408, "TTL_EXPIRED", None)
        assert await other_fingerprints(service) == {422}
        assert (await service.register("c-2")).status == 200


@pytest.mark.req("T2-5")
async def test_row_5_of_racing_registrations_one_is_made(store: str) -> None:
    async with serving(store=store) as service:
        same = [service.register() for _ in range(20)]
        other = [service.register(body=b"other") for _ in range(20)]
        replies = await asyncio.gather(*same, *other)
        assert {reply.status for reply in replies[:20]} == {200}
        assert {reply.status for reply in replies[20:]} == {422}
        assert len({reply.get(SERVER) for reply in replies[:20]}) == 1
        assert len(await service.rows()) == 1


@pytest.mark.req("T2-6")
async def test_row_6_another_mode_is_another_request() -> None:
    async with serving() as service:
        await service.register("c-1", body=b"{}")
        assert (await auto(service, "c-1")).status == 422
        await auto(service, "c-2")
        assert (await service.register("c-2", body=b"{}")).status == 422
        assert service.orders.runs == 1


@pytest.mark.req("A-32")
async def test_another_identity_has_its_own_ids() -> None:
    async with serving(identify=by_header) as service:
        ada = await service.register(more={"x-user": "ada"})
        eve = await service.register(body=b"other", more={"x-user": "eve"})
        assert (ada.status, eve.status) == (200, 200)
        assert ada.get(SERVER) != eve.get(SERVER)
        assert len(await service.rows()) == 2


@pytest.mark.req("A-07", "A-30", "A-32")
async def test_prevalidate_judges_what_is_new_and_not_what_is_known() -> None:
    """A client that lost the answer of a committed request and repeats it must not read that it was not registered."""
    sold_out = False

    def check(_head: Head, _body: bytes) -> None:
        if sold_out:
            raise ValueError("sold out")

    async with serving(prevalidate=check) as service:
        registered, done = await service.both()
        first = await auto(service, "c-2")
        sold_out = True
        again = await service.register()
        assert (again.status, again.get(STATE), again.get(SERVER)) == (200, "COMMITTED", registered.get(SERVER))
        assert await service.confirm(registered) == done
        assert await auto(service, "c-2") == first
        assert (await service.register("c-3")).status == 422
        assert (await auto(service, "c-4")).status == 422
        assert service.orders.runs == 2
