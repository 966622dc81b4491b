"""Phase 2 (draft §5.3.2): the handler's outcome, its name, and the answer to the client."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from hashlib import sha256

import pytest

from tests.asgi.driver import (
    AUTO,
    CLIENT,
    ENABLED,
    MESSAGE,
    RESOURCE,
    SERVER,
    STATE,
    Exchange,
    Orders,
    Seen,
    a_scope,
    answer,
    by_header,
    held,
    serving,
)
from twophp import Policy, current_intent
from twophp.asgi.messages import Receive, Scope, Send
from twophp.engine.exchange import StoredResponse

pytestmark = pytest.mark.anyio


def saying(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Orders:
    async def say(_app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send, status, headers or {}, body)

    return Orders(say)


@pytest.mark.req("A-08", "P-5.3.2-b")
@pytest.mark.parametrize("said", [200, 201, 202, 204, 303])
async def test_success_is_200_whatever_the_application_calls_it(said: int) -> None:
    async with serving(saying(said, {"location": "/orders/9"}, b"" if said == 204 else b"done")) as service:
        registered, done = await service.both()
        assert (done.status, done.get(STATE)) == (200, "COMMITTED")
        assert (done.get("location"), done.body) == ("/orders/9", b"" if said == 204 else b"done")
        intent = await service.intent(registered.get(SERVER))
        assert intent is not None
        assert intent.status == said


@pytest.mark.req("A-08")
@pytest.mark.parametrize(("said", "status"), [(201, 201), (204, 204), (404, 404), (503, 500)])
async def test_passthrough_keeps_the_applications_success(said: int, status: int) -> None:
    async with serving(saying(said), success_status="passthrough") as service:
        registered, done = await service.both()
        assert done.status == status
        assert await service.confirm(registered) == done
        assert ("content-length" in done.names()) == (status != 204)


@pytest.mark.req("P-5.3.2-e", "P-7-d", "A-08")
@pytest.mark.parametrize("when", ["before", "after_start", "without_answer", "without_start"])
async def test_an_exception_is_500_failed_and_final(when: str, caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(_app: Orders, _seen: Seen, send: Send) -> None:
        if when == "without_answer":
            return
        if when == "after_start":
            await send({"type": "http.response.start", "status": 201, "headers": []})
        if when == "without_start":
            await send({"type": "http.response.body", "body": b"done"})
        raise ZeroDivisionError

    async with serving(Orders(breaks)) as service:
        registered, done = await service.both()
        assert (done.status, done.get(STATE), done.get(MESSAGE)) == (500, "FAILED", "Processing failed.")
        assert await service.phase(registered.get(SERVER)) == "FAILED"
        assert await service.confirm(registered) == done
        assert service.orders.runs == 1
    (line,) = [record for record in caplog.records if record.name == "twophp.execution"]
    assert line.__dict__["server_correlation_id"] == registered.get(SERVER)


@pytest.mark.req("A-05", "P-5.3.2-b", "P-14.1-j")
@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "resource_id"),
    [
        ("POST", "/orders", {"DTT-2PHP-Resource-ID": "own", "location": "/orders/9"}, b'{"id": 1}', "own"),
        ("POST", "/orders", {"location": "https://x.example/orders/9?a=/b"}, b'{"id": 1}', "9"),
        ("POST", "/orders", {"location": "/orders/9/"}, b"", "9"),
        ("POST", "/orders", {}, b'{"id": 1}', "1"),
        ("POST", "/orders", {}, b'{"id": "a b"}', None),
        ("POST", "/orders", {}, b'{"id": true}', None),
        ("POST", "/orders", {}, b'{"id": [', None),
        ("POST", "/orders", {}, b'\xff{"id": 1}', None),
        ("PUT", "/orders/42", {}, b"{}", "42"),
        ("PATCH", "/orders/a%20b/", {}, b"", "a%20b"),
        ("DELETE", "/", {}, b"", None),
    ],
)
async def test_where_a_resource_gets_its_id_from(
    method: str, path: str, headers: dict[str, str], body: bytes, resource_id: str | None
) -> None:
    async with serving(saying(200, headers, body), policies=Policy.standard()) as service:
        registered = await service.register(method=method, path=path)
        done = await service.confirm(registered, path=path.removesuffix("/") + "/confirm")
        assert done.get(RESOURCE) == (resource_id or registered.get(SERVER))


@pytest.mark.req("A-05")
async def test_the_handler_may_name_the_resource_itself() -> None:
    async def named(_app: Orders, _seen: Seen, send: Send) -> None:
        intent = current_intent()
        assert intent is not None
        intent.created("mine").transaction_reference = "tx-9"
        await answer(send)

    async with serving(Orders(named)) as service:
        _registered, done = await service.both()
        assert done.get(RESOURCE) == "mine"
        (row,) = await service.rows()
        assert row.transaction_reference == "tx-9"


@pytest.mark.req("A-31", "P-8.1-a")
async def test_a_replay_repeats_all_but_cookies_and_the_moment(store: str) -> None:
    async def rich(_app: Orders, _seen: Seen, send: Send) -> None:
        headers = [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"set-cookie", b"s=1"), (b"date", b"now")]
        await send({"type": "http.response.start", "status": 201, "headers": [*headers, (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async with serving(Orders(rich), store=store) as service:
        registered, first = await service.both()
        again = await service.confirm(registered)
        kept = [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")]
        assert [pair for pair in again.raw if pair[0].startswith(b"x-")] == kept
        assert [pair for pair in first.raw if pair[0] != b"set-cookie"] == list(again.raw)
        assert (first.get("set-cookie"), again.get("set-cookie"), again.get("date")) == ("s=1", None, None)
        assert first.body == again.body == b"one two"


@pytest.mark.req("A-16", "A-31")
async def test_an_answer_too_large_to_keep_is_sent_once_and_then_described(store: str) -> None:
    body = b'{"id": "7"}' + b" " * 100
    async with serving(
        saying(201, {"content-type": "text/x", "x-a": "1"}, body), max_result_bytes=100, store=store
    ) as shop:
        registered, first = await shop.both()
        again = await shop.confirm(registered)
        assert (first.body, first.get(RESOURCE)) == (body, "7")
        assert (again.status, again.get(STATE), again.get(RESOURCE), again.get("x-a")) == (200, "COMMITTED", "7", "1")
        told = json.loads(again.body)
        assert (told["omitted"], told["bytes"], told["sha256"]) == (True, 111, sha256(body).hexdigest())
        assert again.get("content-length") == str(len(again.body))


@pytest.mark.req("A-18")
async def test_no_cache_keeps_an_answer_of_the_handshake() -> None:
    cached = {"cache-control": "public, max-age=3600", "expires": "Thu, 01 Jan 2037 00:00:00 GMT", "etag": '"7"'}
    async with serving(saying(200, cached)) as service:
        registered, confirmed = await service.both()
        polled = await service.read(registered.get(SERVER) or "")
        for reply in (registered, confirmed, polled):
            assert (reply.get("cache-control"), reply.get("expires")) == ("no-store", None)
        assert confirmed.get("etag") == '"7"'  # What it names is the resource's, not the handshake's.


@pytest.mark.req("A-18")
async def test_what_looks_like_plain_http_is_cached_as_plain_http() -> None:
    async with serving(saying(200, {"cache-control": "private"})) as service:
        auto = await service.request("POST", "/orders", AUTO)
        assert auto.get("cache-control") == "private"


@pytest.mark.req("A-02")
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_confirm_by_another_method_is_refused(method: str) -> None:
    async with serving() as service:
        registered = await service.register()
        ids = {CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        refused = await service.request(method, "/orders/confirm", {**ENABLED, **ids})
        assert (refused.status, service.orders.runs) == (400, 0)


@pytest.mark.req("A-05")
async def test_a_service_says_how_its_answers_name_a_resource() -> None:
    def order_number(response: StoredResponse) -> str | None:
        number: str | None = json.loads(response.body).get("orderNumber")
        return number

    body = b'  {"id": "other", "orderNumber": "A-9"}'
    async with serving(saying(201, {}, body), resource_id=order_number) as service:
        assert (await service.both())[1].get(RESOURCE) == "A-9"
    async with serving(saying(201, {}, body)) as service:
        assert (await service.both())[1].get(RESOURCE) == "other"


@pytest.mark.req("A-09")
async def test_a_body_on_phase_two_is_thrown_away() -> None:
    async with serving() as service:
        registered = await service.register()
        assert (await service.confirm(registered, body=b"x" * 65_537)).status == 413
        assert await service.phase(registered.get(SERVER)) == "WAITING_CONFIRM"
        assert (await service.confirm(registered, body=b"x" * 65_536)).status == 200
        assert service.orders.seen[0].body == b'{"sku": 1}'


@pytest.mark.req("A-107")
async def test_before_the_point_of_no_return_a_disconnect_changes_nothing() -> None:
    async with serving() as service:
        registered = await service.register()
        headers = {**ENABLED, CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        exchange = Exchange(b"", truncated=True)
        await service.app(a_scope("POST", "/orders/confirm", headers), exchange.receive, exchange.send)
        assert await service.phase(registered.get(SERVER)) == "WAITING_CONFIRM"


@pytest.mark.req("A-107", "P-3.1-a", "P-5.3.2-a")
async def test_after_the_point_of_no_return_nobody_can_stop_it(store: str) -> None:
    async with serving(Orders(held), store=store) as service:
        registered = await service.register()
        gone = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        gone.cancel()  # What a server does to the task of a connection that is gone.
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await service.phase(registered.get(SERVER)) == "PROCESSING"
        again = asyncio.create_task(service.confirm(registered))
        service.orders.may_go_on.set()
        assert (await again).get(STATE) == "COMMITTED"
        assert service.orders.runs == 1


@pytest.mark.req("A-33")
async def test_repeats_that_have_given_up_are_not_kept() -> None:
    async with serving(Orders(held), replay_wait_ms=1) as service:
        registered = await service.register()
        first = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        assert [(await service.confirm(registered)).status for _repeat in range(5)] == [202] * 5
        (execution,) = service.server.executions._running.values()
        assert len(execution._waiting) == 1
        service.orders.may_go_on.set()
        assert (await first).status == 200


@pytest.mark.req("A-107")
async def test_a_handler_that_listens_hears_of_no_disconnect() -> None:
    heard: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())
        for _ in range(5):
            await asyncio.sleep(0)
        heard.append("hung up" if listening.done() else "still there")
        listening.cancel()
        await answer(send)

    async with serving(app=app) as service:
        registered = await service.register()
        headers = {**ENABLED, CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        exchange = Exchange(b"")
        exchange.hang_up()
        await service.app(a_scope("POST", "/orders/confirm", headers), exchange.receive, exchange.send)
        assert (heard, exchange.reply().status) == (["still there"], 200)


@pytest.mark.req("P-0-c", "A-51")
async def test_the_current_intent_follows_into_tasks_and_threads_and_nowhere_else() -> None:
    found: dict[str, str | None] = {}

    def look(where: str) -> None:
        intent = current_intent()
        found[where] = None if intent is None else intent.client_correlation_id

    async def looks(_app: Orders, _seen: Seen, send: Send) -> None:
        async def task() -> None:
            look("task")

        look("handler")
        await asyncio.create_task(task())
        await asyncio.to_thread(look, "thread")
        await answer(send)

    async with serving(Orders(looks)) as service:
        await service.both()
        look("outside")
        assert found == {"handler": "c-1", "task": "c-1", "thread": "c-1", "outside": None}
        await service.request("POST", "/orders")
        assert found["handler"] is None


@pytest.mark.req("P-9.3-a", "P-0-c")
async def test_a_handler_that_thinks_keeps_nobody_waiting(store: str) -> None:
    async def only_first_thinks(app: Orders, seen: Seen, send: Send) -> None:
        await (held(app, seen, send) if app.runs == 1 else answer(send))

    async with serving(Orders(only_first_thinks), store=store) as service:
        registered = await service.register()
        thinking = asyncio.create_task(service.confirm(registered))
        await service.orders.entered.wait()
        for number in range(2, 12):
            other = await service.register(f"c-{number}")
            assert (await service.confirm(other, f"c-{number}")).status == 200
        assert not thinking.done()
        service.orders.may_go_on.set()
        assert (await thinking).status == 200


@pytest.mark.req("P-13.2-b")
async def test_credentials_are_checked_anew_and_a_new_token_of_the_same_user_will_do() -> None:
    async with serving(identify=by_header) as service:
        registered = await service.register(more={"x-user": "ada", "authorization": "one"})
        assert (await service.confirm(registered, more={"x-user": "ada", "authorization": "two"})).status == 200


@pytest.mark.req("A-31")
async def test_an_answer_does_not_wait_for_background_work(caplog: pytest.LogCaptureFixture) -> None:
    async def lingers(app: Orders, _seen: Seen, send: Send) -> None:
        await answer(send)
        await app.may_go_on.wait()
        app.entered.set()
        raise ZeroDivisionError

    async with serving(Orders(lingers)) as service:
        service.handlers_go_on = True
        _registered, done = await service.both()
        assert done.status == 200
        with caplog.at_level(logging.ERROR, "twophp.execution"):
            service.orders.may_go_on.set()
            await asyncio.gather(*service.calls)
        assert service.orders.entered.is_set()
        assert "the handler of shop/orders raised after its answer was complete" in caplog.text
