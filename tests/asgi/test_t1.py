"""Table T1: what Phase 2 is answered, row by row, and what becomes of the intent."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.asgi.driver import (
    CLIENT,
    ENABLED,
    MESSAGE,
    RESOURCE,
    SERVER,
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
from twophp import Policy
from twophp.asgi.messages import Message, Send
from twophp.core.intent import Intent
from twophp.core.policy import DAY_MS
from twophp.identity.head import Head

pytestmark = pytest.mark.anyio

EXPIRED = "Request TTL exceeded. Re-submit as new request."


async def untouched(service: Service, registered: Reply) -> None:
    """The intent still waits, nothing ran, and its owner can confirm it."""
    assert await service.phase(registered.get(SERVER)) == "WAITING_CONFIRM"
    assert service.orders.runs == 0


@pytest.mark.req("T1-1", "P-13.6-a", "A-64")
async def test_row_1_without_tls_nothing_is_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as service:
        registered = await service.register()
        refused = await service.confirm(registered, scheme="http")
        assert await service.confirm(registered, scheme="http") == refused
        assert caplog.text.count("trusted_proxies=") == 1, "the operator hears of it, once"
        assert (refused.status, refused.get(STATE)) == (403, None)
        assert b'"tls_required"' in refused.body
        await untouched(service, registered)
        assert (await service.confirm(registered)).status == 200


@pytest.mark.req("T1-2", "P-13.2-a")
async def test_row_2_without_credentials_nothing_is_confirmed() -> None:
    async with serving(identify=by_header) as service:
        registered = await service.register(more={"x-user": "ada"})
        refused = await service.confirm(registered)
        assert (refused.status, refused.get(STATE)) == (401, None)
        await untouched(service, registered)
        assert (await service.confirm(registered, more={"x-user": "ada"})).status == 200


@pytest.mark.req("T1-3", "P-5.3.1-b", "A-02", "A-12")
@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("POST", "/orders/confirm", {SERVER: "no spaces please"}),
        ("POST", "/orders/confirm", {CLIENT: "ü"}),
        ("POST", "/orders/confirm", {SERVER: "one, two"}),
        ("POST", "/orders/confirm", {"DTT-2PHP-Auto-Confirm": "true"}),
        ("PUT", "/orders/confirm", {}),
        ("POST", "/orders", {}),
    ],
)
async def test_row_3_a_malformed_confirm_changes_nothing(method: str, path: str, more: dict[str, str]) -> None:
    async with serving(policies=Policy.standard()) as service:
        registered = await service.register()
        headers = {**ENABLED, CLIENT: "c-1", SERVER: registered.get(SERVER) or "", **more}
        refused = await service.request(method, path, headers)
        assert (refused.status, refused.get(STATE)) == (400, None)
        assert refused.get("content-type") == "application/problem+json"
        await untouched(service, registered)


@pytest.mark.req("T1-3", "P-5.3.1-b")
@pytest.mark.parametrize("dropped", [CLIENT, SERVER, "DTT-2PHP-Enabled"])
async def test_row_3_a_confirm_without_one_of_its_fields_runs_nothing_registered(dropped: str) -> None:
    async with serving() as service:
        registered = await service.register()
        headers = {**ENABLED, CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        del headers[dropped]
        await service.request("POST", "/orders/confirm", headers)
        assert await service.phase(registered.get(SERVER)) == "WAITING_CONFIRM"
        assert [seen.scope["path"] for seen in service.orders.seen] in ([], ["/orders/confirm"])


@pytest.mark.req("T1-4", "A-01", "A-67")
async def test_row_4_unknown_pair_and_wrong_path_cannot_be_told_apart() -> None:
    async with serving(policies=Policy.standard()) as service:
        registered = await service.register()
        replies = [
            await service.confirm("nobody-knows-it"),
            await service.confirm(registered, "c-2"),
            await service.confirm(registered, path="/invoices/confirm"),
            await service.confirm(registered, path="/orders/7/confirm"),
        ]
        assert {reply.status for reply in replies} == {404}
        assert len(set(replies)) == 1
        assert replies[0].get(STATE) is None
        await untouched(service, registered)


@pytest.mark.req("T1-4", "A-83")
async def test_row_4_past_the_horizon_the_intent_is_unknown() -> None:
    async with serving() as service:
        registered, _done = await service.both()
        service.clock.now += 8 * DAY_MS
        await service.server.sweep()
        await service.server.sweep()
        assert (await service.confirm(registered)).status == 404


@pytest.mark.req("T1-5", "P-13.2-b", "A-60", "A-67")
async def test_row_5_another_identity_is_refused_audited_and_learns_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(identify=by_header) as service:
        registered = await service.register(more={"x-user": "ada"})
        with caplog.at_level(logging.WARNING, "twophp.audit"):
            refused = await service.confirm(registered, more={"x-user": "eve"})
        assert (refused.status, set(refused.ours())) == (403, {MESSAGE.lower()})
        (line,) = [record for record in caplog.records if record.name == "twophp.audit"]
        assert line.__dict__["server_correlation_id"] == registered.get(SERVER)
        await untouched(service, registered)
        waiting = refused
        assert (await service.confirm(registered, more={"x-user": "ada"})).status == 200
        assert await service.confirm(registered, more={"x-user": "eve"}) == waiting  # Settled or not: the same bytes.


@pytest.mark.req("T1-6", "P-5.3.2-b", "P-8.1-a", "P-8.1-b", "A-30", "A-31")
async def test_row_6_a_replay_of_a_committed_intent_is_its_answer(store: str) -> None:
    async with serving(store=store) as service:
        registered, first = await service.both()
        assert (first.status, first.get(STATE), first.get(RESOURCE)) == (200, "COMMITTED", "7")
        service.clock.now += DAY_MS  # Long past the TTL: what is settled stays so.
        assert await service.confirm(registered) == first
        assert service.orders.runs == 1


@pytest.mark.req("T1-6", "T1-7", "P-8.1-a", "A-31")
async def test_rows_6_and_7_hold_for_another_process_on_the_same_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/shop.db"

    async def invalid(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, 422, {"x-why": "sku"}, b"no such sku")

    async with serving(store=store) as service:
        good, committed = await service.both("c-1")
        service.orders.behave = invalid
        bad = await service.register("c-2")
        failed = await service.confirm(bad, "c-2")
    async with serving(store=store) as again:
        assert await again.confirm(good, "c-1") == committed
        assert await again.confirm(bad, "c-2") == failed
        assert again.orders.runs == 0


@pytest.mark.req("T1-7", "P-5.3.2-e", "P-5.3.2-f", "P-6-d", "A-08")
@pytest.mark.parametrize(("said", "status"), [(500, 500), (503, 500), (422, 422), (404, 404), (409, 409)])
async def test_row_7_a_replay_of_a_failed_intent_is_its_answer(said: int, status: int) -> None:
    async def fails(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, said, {}, b"no")

    async with serving(Orders(fails)) as service:
        registered, first = await service.both()
        assert (first.status, first.get(STATE), first.get(RESOURCE), first.body) == (status, "FAILED", None, b"no")
        assert await service.confirm(registered) == first
        assert service.orders.runs == 1


@pytest.mark.req("T1-8", "P-8.1-a", "P-8.1-b", "A-33")
async def test_row_8_fifty_concurrent_confirms_are_one_run_and_one_answer(store: str) -> None:
    async with serving(Orders(held), store=store) as service:
        registered = await service.register()
        confirms = [asyncio.create_task(service.confirm(registered)) for _ in range(50)]
        await service.orders.entered.wait()
        service.orders.may_go_on.set()
        replies = await asyncio.gather(*confirms)
        assert len(set(replies)) == 1
        assert (replies[0].status, service.orders.runs) == (200, 1)


@pytest.mark.req("T1-8", "A-33")
async def test_row_8_a_confirm_that_waited_long_enough_is_told_to_look_again() -> None:
    async with serving(Orders(held), replay_wait_ms=1) as service:
        registered = await service.register()
        first = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        second = await service.confirm(registered)
        assert (second.status, second.get(STATE), second.get("retry-after")) == (202, "PROCESSING", "1")
        assert (second.get("location") or "").endswith(registered.get(SERVER) or "-")
        service.orders.may_go_on.set()
        assert (await first).status == 200
        assert service.orders.runs == 1


@pytest.mark.req("T1-8", "T1-9", "P-5.3.3-a", "P-5.3.3-c")
async def test_row_8_async_says_202_until_it_is_done() -> None:
    async with serving(Orders(held), policies={"POST /orders": Policy.standard(mode="async")}) as service:
        registered = await service.register()
        first = await service.confirm(registered)
        assert (first.status, first.get(STATE)) == (202, "PROCESSING")
        assert await service.confirm(registered) == first
        service.orders.may_go_on.set()
        await service.server.executions.drain(5)
        done = await service.confirm(registered)
        assert (done.status, done.get(STATE), service.orders.runs) == (200, "COMMITTED", 1)


@pytest.mark.req("T1-9", "P-6-b", "P-6-c", "P-5.2.2-e", "A-20", "A-26")
async def test_row_9_up_to_the_last_millisecond() -> None:
    async with serving() as service:
        registered = await service.register()
        service.clock.now += 29_999
        assert (await service.confirm(registered)).status == 200
        assert await service.journal(registered.get(SERVER) or "") == [
            ("ABSENT", "WAITING_CONFIRM"),
            ("WAITING_CONFIRM", "PROCESSING"),
            ("PROCESSING", "COMMITTED"),
        ]


@pytest.mark.req("T1-9", "P-5.4-c", "A-20")
async def test_row_9_in_time_by_arrival_though_the_body_took_its_time() -> None:
    async with serving() as service:
        registered = await service.register()
        service.clock.now += 29_999
        headers = {**ENABLED, CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        exchange = Exchange(b"")

        async def slow() -> Message:
            service.clock.now += 5_000
            return await exchange.receive()

        await service.app(a_scope("POST", "/orders/confirm", headers), slow, exchange.send)
        assert exchange.reply().status == 200


@pytest.mark.req("T1-10", "P-8.2-d", "P-13.3-a", "A-22", "A-24")
async def test_row_10_reuse_accepts_inside_the_grace_and_not_after() -> None:
    policy = Policy.standard(replay="REUSE")
    async with serving(policies=policy, identify=by_header, headers={"x-user": "u-1"}) as service:
        inside, after = await service.register("c-1"), await service.register("c-2")
        service.clock.now += 34_999
        assert (await service.confirm(inside)).status == 200
        assert ("TTL_EXPIRED", "PROCESSING") in await service.journal(inside.get(SERVER) or "")
        service.clock.now += 1
        assert (await service.confirm(after, "c-2")).status == 408


@pytest.mark.req("T1-10", "T1-11", "P-13.3-a", "A-24")
async def test_row_10_the_guard_has_the_last_word() -> None:
    def signed(head: Head, intent: Intent) -> bool:
        return "x-signed" in head.headers and intent.path == "/orders"

    policy = Policy.standard(replay="REUSE")
    async with serving(policies=policy, late_confirm_guard=signed) as service:
        registered = await service.register()
        service.clock.now += 31_000
        assert (await service.confirm(registered)).status == 408
        assert service.orders.runs == 0
        assert (await service.confirm(registered, more={"x-signed": "yes"})).status == 200


@pytest.mark.req("T1-10", "A-24")
async def test_row_10_a_guard_that_breaks_lets_nobody_in() -> None:
    def broken(_head: object, _intent: object) -> bool:
        raise KeyError("signature")

    async with serving(policies=Policy.standard(replay="REUSE"), late_confirm_guard=broken) as service:
        registered = await service.register()
        service.clock.now += 31_000
        assert (await service.confirm(registered)).status == 408


@pytest.mark.req("T1-10", "A-24")
@pytest.mark.parametrize("says", [True, False, None, "yes"])
async def test_row_10_a_guard_may_be_async_and_only_true_lets_in(says: object) -> None:
    async def asks_elsewhere(_head: object, _intent: object) -> object:
        return says

    async with serving(policies=Policy.standard(replay="REUSE"), late_confirm_guard=asks_elsewhere) as service:
        registered = await service.register()
        service.clock.now += 31_000
        assert (await service.confirm(registered)).status == (200 if says is True else 408)


@pytest.mark.req("T1-10", "A-24")
async def test_row_10_where_nobody_is_known_nobody_is_authenticated_again() -> None:
    async with serving(policies=Policy.standard(replay="REUSE")) as service:
        registered = await service.register()
        service.clock.now += 31_000
        assert ((await service.confirm(registered)).status, service.orders.runs) == (408, 0)


@pytest.mark.req("P-13.3-a", "A-24")
async def test_reuse_without_a_guard_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(policies=Policy.standard(replay="REUSE")):
        assert "REUSE" in caplog.text


@pytest.mark.req("T1-11", "P-5.4-a", "P-5.4-b", "P-8.2-b", "P-6-e", "A-26", "A-18")
@pytest.mark.parametrize("late_ms", [0, 1, 4_999, 5_000, DAY_MS])
async def test_row_11_late_is_408_in_the_drafts_own_words(late_ms: int, store: str) -> None:
    async with serving(store=store) as service:
        registered = await service.register()
        service.clock.now += 30_000 + late_ms
        refused = await service.confirm(registered)
        assert refused.status == 408
        assert refused.ours() == {STATE.lower(): "TTL_EXPIRED", MESSAGE.lower(): EXPIRED}
        assert refused.get("cache-control") == "no-store"
        assert service.orders.runs == 0
        expected = "TTL_EXPIRED" if late_ms < 5_000 else "ABANDONED"
        assert await service.phase(registered.get(SERVER)) == expected
        assert await service.confirm(registered) == refused


@pytest.mark.req("P-5.4-d", "P-2-e", "P-12.3-e", "A-21")
async def test_the_grace_shows_in_no_byte() -> None:
    moments = [0, 29_999, 30_000, 31_000, 39_999, 40_000, 40_001, DAY_MS]
    transcripts = []
    for delta_ms in (0, 10_000):
        async with serving(policies=Policy.standard(delta_ms=delta_ms)) as service:
            transcript: list[object] = []
            for moment in moments:
                registered = await service.register(f"c-{moment}")
                server_id = registered.get(SERVER) or ""
                service.clock.now += moment
                replies = [
                    registered,
                    await service.read(server_id, f"c-{moment}"),
                    await service.confirm(registered, f"c-{moment}"),
                    await service.register(f"c-{moment}"),
                ]
                transcript += [
                    (reply.status, reply.raw[1:] if reply.get(SERVER) else reply.raw, reply.body) for reply in replies
                ]
            transcripts.append(transcript)
    assert transcripts[0] == transcripts[1]
