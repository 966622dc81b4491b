"""Phase 1 (draft §5.1, §5.2): what is registered, what is answered, and what never is."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from starlette.exceptions import HTTPException

from tests.asgi.driver import (
    CLIENT,
    DEADLINE,
    ENABLED,
    RESOURCE,
    SERVER,
    START_MS,
    STATE,
    TTL,
    Exchange,
    Orders,
    Seen,
    a_scope,
    answer,
    by_header,
    created,
    serving,
)
from twophp import Policy
from twophp.asgi.messages import Send
from twophp.core.errors import ConfigError, WireError
from twophp.identity.head import Head
from twophp.wire.instant import parse_instant

pytestmark = pytest.mark.anyio


@pytest.mark.req("P-5.2.2-a", "P-5.2.2-b", "P-5.2.2-c", "P-5.2.2-h", "P-5.2.2-j", "P-5.2.2-k", "P-6-a", "P-7-a")
@pytest.mark.req("P-2-a", "P-2-b", "P-4-d", "P-13.1-b", "P-14.1-f", "P-14.1-g", "P-14.1-h", "P-14.1-i", "A-10", "A-18")
async def test_the_answer_has_the_four_fields_and_no_body(store: str) -> None:
    async with serving(store=store) as service:
        registered = await service.register()
        assert (registered.status, registered.body) == (200, b"")
        assert set(registered.ours()) == {name.lower() for name in (SERVER, STATE, TTL, DEADLINE)}
        assert registered.get(STATE) == "WAITING_CONFIRM"
        assert registered.get(TTL) == "30000"
        assert UUID(registered.get(SERVER) or "").version == 4
        assert parse_instant((registered.get(DEADLINE) or "").encode()) == START_MS + 30_000
        assert registered.get(RESOURCE) is None
        assert registered.get("cache-control") == "no-store"
        (row,) = await service.rows()
        assert (row.phase, row.server_correlation_id) == ("WAITING_CONFIRM", registered.get(SERVER))
        assert (row.client_correlation_id, row.service_endpoint) == ("c-1", "shop/orders")
        assert service.orders.runs == 0


@pytest.mark.req("P-2-j", "P-5.2.2-c")
async def test_every_registration_has_an_id_of_its_own() -> None:
    async with serving() as service:
        ids = {(await service.register(f"c-{number}")).get(SERVER) for number in range(20)}
        assert len(ids) == 20
        assert not ids & {f"c-{number}" for number in range(20)}


@pytest.mark.req("P-5.2.2-m", "P-12.3-a", "P-12.3-b", "P-12.3-c", "P-12.3-d", "P-12.3-e")
@pytest.mark.parametrize(
    ("policy", "ttl_ms"),
    [(Policy.low_latency(), 5_000), (Policy.standard(), 30_000), (Policy.long_running(), 120_000)],
)
async def test_the_deadline_is_the_ttl_and_nothing_more(policy: Policy, ttl_ms: int) -> None:
    async with serving(policies=policy) as service:
        registered = await service.register()
        assert registered.get(TTL) == str(ttl_ms)
        assert parse_instant((registered.get(DEADLINE) or "").encode()) == START_MS + ttl_ms


@pytest.mark.req("P-5.2.1-d", "P-5.2.2-g", "A-23", "P-14.1-e")
@pytest.mark.parametrize(
    ("wish", "ttl"),
    [("60000", "60000"), ("99999999", "120000"), ("1", "30000"), ("0", "30000"), ("soon", "30000"), ("-5", "30000")],
)
async def test_a_wish_for_a_longer_ttl_may_be_granted(wish: str, ttl: str) -> None:
    async with serving() as service:
        registered = await service.register(more={"DTT-2PHP-Requested-TTL": wish})
        assert (registered.status, registered.get(TTL)) == (200, ttl)
        service.clock.now += int(ttl) - 1
        assert (await service.confirm(registered)).status == 200


@pytest.mark.req("P-1-a", "P-5.3.1-a", "P-11-d", "A-01", "A-03")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("path", "confirm"),
    [
        ("/orders", "/orders/confirm"),
        ("/orders/42/lines", "/orders/42/lines/confirm"),
        ("/orders/42/", "/orders/42/confirm"),
        ("/", "/confirm"),
        ("/confirm", "/confirm/confirm"),
        ("/a%2Fb", "/a%2Fb/confirm"),
    ],
)
async def test_every_mutation_is_confirmed_below_its_own_path(method: str, path: str, confirm: str) -> None:
    async with serving(policies=dict.fromkeys(("*", "/confirm"), Policy.standard())) as service:
        registered = await service.register(method=method, path=path, query="a=1&b=2")
        assert (registered.status, service.orders.runs) == (200, 0)
        done = await service.confirm(registered, path=confirm, query="ignored=1")
        assert (done.status, done.get(STATE)) == (200, "COMMITTED")
        (seen,) = service.orders.seen
        assert (seen.scope["method"], seen.scope["raw_path"]) == (method, path.encode())
        assert (seen.scope["query_string"], seen.body) == (b"a=1&b=2", b'{"sku": 1}')


@pytest.mark.req("A-03", "P-11-d", "P-12.1-a")
async def test_the_handler_sees_the_registered_content_and_the_confirmers_credentials() -> None:
    async with serving(stored_headers=["X-Tenant"]) as service:
        registered = await service.register(
            more={
                "content-type": "text/csv",
                "if-match": '"1"',
                "authorization": "old",
                "x-tenant": "t1",
                "cookie": "a",
            }
        )
        await service.confirm(
            registered,
            more={"content-type": "nonsense", "authorization": "new", "x-tenant": "t2", "traceparent": "00-1"},
            body=b"smuggled",
        )
        (seen,) = service.orders.seen
        assert seen.header("content-type") == ["text/csv"]
        assert seen.header("if-match") == ['"1"']
        assert seen.header("authorization") == ["new"]
        assert seen.header("x-tenant") == ["t1"]
        assert seen.header("traceparent") == ["00-1"]
        assert seen.header("cookie") == []
        assert seen.header("content-length") == ["10"]
        assert not [name for name, _value in seen.scope["headers"] if name.startswith(b"dtt-2php")]
        assert seen.scope["state"]["from"] == "lifespan"
        assert seen.scope["state"]["twophp"].server_correlation_id == registered.get(SERVER)


@pytest.mark.req("P-5.1-c", "A-11", "A-15", "P-11-a")
@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {}),
        ("POST", {"DTT-2PHP-Enabled": "false", CLIENT: "c-1"}),
        ("POST", {"DTT-2PHP-Enabled": "1", CLIENT: "c-1"}),
        ("POST", {"DTT-2PHP-Enabled": "", CLIENT: "c-1"}),
        ("GET", {**ENABLED, CLIENT: "c-1"}),
        ("HEAD", ENABLED),
        ("OPTIONS", {**ENABLED, CLIENT: "c-1"}),
        ("PURGE", {**ENABLED, CLIENT: "c-1"}),
    ],
)
async def test_what_is_not_for_us_goes_to_the_application(method: str, headers: dict[str, str]) -> None:
    def nobody(_head: Head) -> str:
        raise PermissionError

    async with serving(policies=Policy.standard(), identify=nobody) as service:
        reply = await service.request(method, "/orders", headers, b"x", scheme="http")
        assert (reply.status, reply.ours(), service.orders.runs) == (201, {}, 1)
        assert await service.rows() == []


@pytest.mark.req("A-15")
async def test_a_service_names_the_methods_that_can_be_registered() -> None:
    async with serving(policies=Policy.standard(), methods={"PURGE"}) as service:
        registered = await service.request("PURGE", "/cache", {**ENABLED, CLIENT: "c-1"})
        assert registered.get(STATE) == "WAITING_CONFIRM"
        ids = {CLIENT: "c-1", SERVER: registered.get(SERVER) or ""}
        confirmed = await service.request("POST", "/cache/confirm", {**ENABLED, **ids})
        assert (confirmed.get(STATE), service.orders.runs) == ("COMMITTED", 1)
        assert service.orders.seen[0].scope["method"] == "PURGE"
        posted = await service.request("POST", "/cache", {**ENABLED, CLIENT: "c-2"})
        assert (posted.ours(), service.orders.runs) == ({}, 2)


@pytest.mark.req("A-15")
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "purge", ""])
async def test_a_method_that_cannot_be_registered_is_refused_at_the_start(method: str) -> None:
    with pytest.raises(ConfigError, match="methods"):
        async with serving(methods={"POST", method}):
            pass


@pytest.mark.req("P-11-c", "A-07")
async def test_a_path_that_is_not_enrolled_is_the_applications_alone() -> None:
    async with serving(policies={"POST /orders": Policy.standard()}) as service:
        for method, path in [("POST", "/invoices"), ("PUT", "/orders")]:
            reply = await service.register(method=method, path=path)
            assert (reply.status, reply.ours()) == (201, {})
        assert (await service.register()).get(STATE) == "WAITING_CONFIRM"
        assert len(await service.rows()) == 1


@pytest.mark.req("P-5.2.1-b", "A-12", "A-13", "A-14", "A-36")
@pytest.mark.parametrize(
    "more",
    [
        {CLIENT: "no spaces"},
        {CLIENT: ""},
        {CLIENT: "x" * 256},
        {CLIENT: "one, two"},
        {"DTT-2PHP-Auto-Confirm": "true", "DTT-2PHP-Callback": "http://plain.example/"},
        {"DTT-2PHP-Auto-Confirm": "true", "DTT-2PHP-Callback": ""},
    ],
)
async def test_a_malformed_phase_one_is_400_and_stores_nothing(more: dict[str, str]) -> None:
    async with serving() as service:
        refused = await service.register(more=more)
        assert (refused.status, refused.get("content-type")) == (400, "application/problem+json")
        assert (await service.rows(), service.orders.runs) == ([], 0)


@pytest.mark.req("P-5.2.1-b", "A-14")
async def test_without_a_client_id_there_is_no_standard_mode() -> None:
    async with serving() as service:
        assert (await service.request("POST", "/orders", ENABLED, b"{}")).status == 400
        assert await service.rows() == []


@pytest.mark.req("A-13")
async def test_strict_ids() -> None:
    async with serving(strict_uuid=True) as service:
        assert (await service.register("not-a-uuid")).status == 400
        assert (await service.register("123e4567-e89b-42d3-a456-426614174000")).status == 200


@pytest.mark.req("P-13.6-a", "P-13.6-b", "A-64")
@pytest.mark.parametrize(
    ("facts", "forwarded", "status"),
    [
        ({"scheme": "http"}, {}, 403),
        ({"scheme": "http"}, {"x-forwarded-proto": "https"}, 403),
        ({"scheme": "http", "client": ("10.0.0.9", 1)}, {"x-forwarded-proto": "https"}, 200),
        ({"scheme": "http", "client": ("10.0.0.9", 1)}, {"forwarded": "for=192.0.2.1;proto=https"}, 200),
        ({"scheme": "https", "client": ("10.0.0.9", 1)}, {"x-forwarded-proto": "http"}, 403),
        ({"scheme": "https"}, {"x-forwarded-proto": "http"}, 200),
        ({"scheme": "https"}, {}, 200),
    ],
)
async def test_tls_counts_and_only_a_trusted_proxy_vouches_for_it(
    facts: dict[str, Any], forwarded: dict[str, str], status: int
) -> None:
    async with serving(trusted_proxies=["10.0.0.0/8"]) as service:
        reply = await service.register(more=forwarded, **facts)
        assert reply.status == status
        assert len(await service.rows()) == (status == 200)
        assert service.orders.runs == 0


@pytest.mark.req("P-13.6-b", "A-64")
async def test_plain_http_is_a_choice_that_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(allow_insecure=True) as service:
        assert "allow_insecure" in caplog.text
        assert (await service.register(scheme="http")).status == 200


@pytest.mark.req("P-13.2-a", "A-16")
async def test_checks_come_before_the_first_byte_of_the_body() -> None:
    async with serving(identify=by_header, max_body_bytes=100) as service:
        good = {**ENABLED, CLIENT: "c-1", "x-user": "ada"}
        bad: list[tuple[int, dict[str, str], str]] = [
            (403, good, "http"),
            (401, {**good, "x-user": ""}, "https"),
            (400, {**good, CLIENT: "no spaces"}, "https"),
            (413, {**good, "content-length": "101"}, "https"),
            (413, {**good, "content-length": "9" * 5_000}, "https"),
        ]
        for status, headers, scheme in bad:
            exchange = Exchange(b"x" * 101)
            await service.app(a_scope("POST", "/orders", headers, scheme=scheme), exchange.receive, exchange.send)
            assert (exchange.reply().status, exchange.read) == (status, 0)
        assert await service.rows() == []


@pytest.mark.req("A-16")
async def test_a_body_that_grows_too_large_is_413_and_nothing_is_stored() -> None:
    async with serving(max_body_bytes=100) as service:
        headers = {**ENABLED, CLIENT: "c-1"}
        assert (await service.request("POST", "/orders", headers, (b"x" * 60, b"x" * 41))).status == 413
        assert await service.rows() == []
        assert (await service.request("POST", "/orders", headers, (b"x" * 60, b"x" * 40))).status == 200


@pytest.mark.req("A-16")
async def test_a_client_that_leaves_in_the_middle_registers_nothing() -> None:
    async with serving() as service:
        exchange = Exchange(b"half of", truncated=True)
        await service.app(a_scope("POST", "/orders", {**ENABLED, CLIENT: "c-1"}), exchange.receive, exchange.send)
        assert exchange.sent == []
        assert (await service.rows(), service.orders.runs) == ([], 0)


@pytest.mark.req("A-07")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("sku"), 422),
        (WireError("no", code="bad_request"), 400),
        (HTTPException(409, detail="sku"), 409),
    ],
)
async def test_prevalidate_refuses_before_anything_is_stored(is_async: bool, error: Exception, status: int) -> None:
    def check(head: Head, body: bytes) -> None:
        if b"bad" in body and head.path == "/orders":
            raise error

    async def check_later(head: Head, body: bytes) -> None:
        check(head, body)

    async with serving(prevalidate=check_later if is_async else check) as service:
        refused = await service.register(body=b"bad")
        assert (refused.status, refused.get("content-type")) == (status, "application/problem+json")
        assert b"sku" not in refused.body
        assert await service.rows() == []
        assert (await service.register(body=b"good")).status == 200


@pytest.mark.req("P-4-e", "P-5.2.2-l", "P-5.3.2-c", "P-5.3.2-d")
async def test_the_resource_is_there_when_the_200_says_so_and_not_before() -> None:
    shop: dict[str, bytes] = {}

    async def handle(_app: Orders, seen: Seen, send: Send) -> None:
        if seen.scope["method"] == "POST":
            shop["7"] = seen.body
            await created(_app, seen, send)
        else:
            found = shop.get(seen.scope["path"].rpartition("/")[2])
            await answer(send, 404 if found is None else 200, {}, found or b"")

    async with serving(Orders(handle)) as service:
        registered = await service.register()
        assert (await service.request("GET", "/orders/7")).status == 404
        done = await service.confirm(registered)
        found = await service.request("GET", f"/orders/{done.get(RESOURCE)}")
        assert (found.status, found.body) == (200, b'{"sku": 1}')
