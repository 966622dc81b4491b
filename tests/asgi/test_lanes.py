"""The fast lane of the edge and the full parser say the same, byte for byte.

Every request here is made of two services that differ in one thing: in the second no list of names is ever taken for
an ordinary one, so everything goes through the full parser. Ids and times are pinned, so equal means equal.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.asgi.driver import CLIENT, SERVER, Exchange, Service, a_scope, by_header, serving
from tests.wire import samples
from twophp import Policy
from twophp.asgi import shapes
from twophp.asgi.messages import Scope
from twophp.asgi.shapes import Shape, Shapes
from twophp.core.errors import WireError
from twophp.wire.parse import parse, parse_ordinary
from twophp.wire.paths import CONFIRM_SUFFIX

Pairs = list[tuple[bytes, bytes]]

pytestmark = pytest.mark.anyio

ON = (b"dtt-2php-enabled", b"true")
CLIENT_ID = (CLIENT.lower().encode(), b"c-1")
SERVER_ID = (SERVER.lower().encode(), b"00000000-0000-4000-8000-000000000001")
AUTO = (b"dtt-2php-auto-confirm", b"true")
TYPE = (b"content-type", b"application/json")
LENGTH = (b"content-length", b"10")

METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "PURGE")
PATHS = (
    "/orders",
    "/orders/",
    "/orders/confirm",
    "/orders/confirm/",
    "/orders/7",
    "/confirm",
    "/",
    "/orders%2Fconfirm",
)
VALUES = (
    b"true", b"TRUE", b" true\t", b"false", b"1", b"", b"true, true", b"true, false", b"c-1", b" c-1 ", b"c,1",
    b"c-1, c-2", b"c-1,c-1", b"x" * 255, b"x" * 256, "ü".encode("latin-1"), b"a b", b"\x00", b"30000", b"https://a.example/x",
)  # fmt: skip
NAMES = (
    ON[0], CLIENT_ID[0], SERVER_ID[0], AUTO[0], b"dtt-2php-callback", b"dtt-2php-requested-ttl", b"te",
    b"dtt-2php-phase-state", b"dtt-2php-client-corr-id", b"x-2php", b"content-type", b"content-length", b"accept",
    b"if-match", b"cookie",
    b"transfer-encoding", b"x-user", b"expect",
)  # fmt: skip


def one_by_one() -> Iterator[Pairs]:
    """Each list that a client, a proxy or an attacker could make of the fields of a handshake, one change at a time."""
    for base in ([ON, CLIENT_ID, TYPE, LENGTH], [TYPE, ON, CLIENT_ID, SERVER_ID], [ON, AUTO, CLIENT_ID, TYPE]):
        yield base
        yield [*reversed(base)]
        for at, (name, value) in enumerate(base):
            rest = base[:at] + base[at + 1 :]
            yield rest
            yield [*rest, (name.upper(), value)]
            yield [*rest, (name.title(), value)]
            yield [*base, (name, value)]  # Twice the same.
            yield [*base, (name.upper(), value)]
            yield [*base, (name, b"another")]
            for changed in VALUES:
                yield [*rest, (name, changed)]
        for name in NAMES:
            yield [*base, (name, b"v")]


def at_random(count: int) -> Iterator[Pairs]:
    dice = Random(2)  # noqa: S311 - the same every time.
    for _ in range(count):
        usual = [ON, CLIENT_ID, SERVER_ID, TYPE]
        more = [(dice.choice(NAMES), dice.choice(VALUES)) for _ in range(dice.randint(0, 3))]
        pairs = [pair for pair in usual if dice.random() < 0.8] + more
        dice.shuffle(pairs)
        yield [(name.upper() if dice.random() < 0.05 else name, value) for name, value in pairs]


class Careful(Shapes):
    """Takes nothing for ordinary."""

    def learn(self, headers: Any) -> Shape:
        return replace(super().learn(headers), asks="", content_length=shapes.SEVERAL, content_type=shapes.SEVERAL)


@asynccontextmanager
async def both_lanes(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> AsyncIterator[tuple[Service, Service]]:
    async with serving(**facts) as fast:
        await fast.middleware.start()
        with monkeypatch.context() as patched:
            patched.setattr("twophp.asgi.middleware.Shapes", Careful)
            async with serving(**facts) as full:
                full.middleware._shapes = _Forgetful()
                await full.middleware.start()
                for service in (fast, full):
                    service.server.mint = _ids(itertools.count(1))
                yield fast, full


class _Forgetful(dict[Any, Any]):
    """Knows no shape, so each is made by ``Careful``."""

    def get(self, _key: Any, _default: Any = None) -> Any:
        return None


def _ids(numbers: Iterator[int]) -> Callable[[], str]:
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012d}"


async def answered(service: Service, scope: Scope, body: bytes) -> tuple[Any, ...]:
    """All that a client and the application can see of one request."""
    exchange = Exchange(body)
    runs = service.orders.runs
    await service.app(scope, exchange.receive, exchange.send)
    seen = [
        (one.scope["method"], one.scope["path"], one.scope["headers"], one.body) for one in service.orders.seen[runs:]
    ]
    return exchange.sent, seen


async def compared(lanes: tuple[Service, Service], method: str, path: str, pairs: Pairs, **facts: Any) -> int:
    scopes = [a_scope(method, path, list(pairs), **facts) for _lane in lanes]
    body = b'{"sku": 1}' if method != "GET" else b""
    fast, full = [await answered(lane, scope, body) for lane, scope in zip(lanes, scopes, strict=True)]
    assert fast == full, (method, path, pairs)
    status: int = fast[0][0]["status"]
    return status


@pytest.mark.req("T1-3", "A-02", "A-11", "A-12", "A-13", "A-15")
async def test_both_lanes_answer_every_list_of_fields_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_lanes(monkeypatch, policies=Policy.standard()) as lanes:
        statuses = [
            await compared(lanes, method, path, pairs)
            for pairs in one_by_one()
            for method, path in [("POST", "/orders"), ("POST", "/orders/confirm")]
        ]
    assert {200, 201, 400, 404, 422} <= set(statuses), "the cases reach more than one end"


@pytest.mark.req("T1-3", "A-01", "A-15")
@pytest.mark.parametrize("strict_uuid", [False, True])
async def test_both_lanes_answer_every_method_and_path_alike(
    monkeypatch: pytest.MonkeyPatch, strict_uuid: bool
) -> None:
    dice = Random(3)  # noqa: S311 - the same every time.
    async with both_lanes(monkeypatch, policies=Policy.standard(), strict_uuid=strict_uuid) as lanes:
        for pairs in at_random(400):
            await compared(lanes, dice.choice(METHODS), dice.choice(PATHS), pairs)


@pytest.mark.req("A-64", "A-60", "A-61")
async def test_both_lanes_judge_tls_and_identity_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"identify": by_header, "trusted_proxies": ["192.0.2.7"]}
    async with both_lanes(monkeypatch, **facts) as lanes:
        statuses = [
            await compared(lanes, "POST", path, [ON, CLIENT_ID, *server, *user, *proto, TYPE], scheme=scheme)
            for path, server in (("/orders", []), ("/orders/confirm", [SERVER_ID]))
            for user in ([], [(b"x-user", b"ada")], [(b"x-user", b"ada"), (b"x-user", b"eve")], [(b"X-User", b"ada")])
            for proto in ([], [(b"x-forwarded-proto", b"https")], [(b"x-forwarded-proto", b"https, http")])
            for scheme in ("https", "http", "HTTPS")
        ]
    assert {200, 401, 403} <= set(statuses)


@pytest.mark.req("A-01")
async def test_both_lanes_see_a_mount_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_lanes(monkeypatch) as lanes:
        for path in ("/api/orders", "/api/orders/", "/orders", "/api/orders/confirm", "/%61pi/orders"):
            for server in ([], [SERVER_ID]):
                await compared(lanes, "POST", path, [ON, CLIENT_ID, *server, TYPE], root_path="/api")


@pytest.mark.req("A-16")
@pytest.mark.parametrize("length", [b"9", b"10", b"11", b"99", b"100", b"1" * 30, b"-1", b"x", b"010", b" 99", b""])
async def test_both_lanes_refuse_a_large_body_alike(monkeypatch: pytest.MonkeyPatch, length: bytes) -> None:
    async with both_lanes(monkeypatch, max_body_bytes=64) as lanes:
        for more in ([], [(b"content-length", b"65")], [(b"Content-Length", b"65")]):
            pairs = [ON, CLIENT_ID, (b"content-length", length), *more]
            await compared(lanes, "POST", "/orders", pairs)
            await compared(lanes, "POST", "/orders/confirm", [*pairs, SERVER_ID])


@pytest.mark.req("A-12", "A-13")
@given(
    method=st.sampled_from(METHODS),
    path=st.sampled_from(PATHS),
    client=st.sampled_from(VALUES) | st.binary(max_size=8),
    server=st.none() | st.sampled_from(VALUES) | st.binary(max_size=8),
    strict=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_what_the_fast_lane_reads_the_full_parser_reads_alike(
    method: str, path: str, client: bytes, server: bytes | None, strict: bool
) -> None:
    methods = frozenset({"POST", "PUT", "PATCH", "DELETE"})
    pairs = [ON, (CLIENT_ID[0], client), *([] if server is None else [(SERVER_ID[0], server)])]
    quick = parse_ordinary(method, path, client, server, suffix=CONFIRM_SUFFIX, methods=methods, strict_uuid=strict)
    if quick is not None:
        assert quick == parse(method, path, pairs, methods=methods, strict_uuid=strict)


@pytest.mark.req("P-5.2.1-a")
def test_the_fast_lane_reads_the_samples_of_the_wire() -> None:
    """Not vacuous: what the suite calls a Phase 1 and a Phase 2 is ordinary."""
    seen = Shapes(frozenset())
    assert [seen.of(pairs).asks for pairs in (samples.PHASE_ONE, samples.PHASE_TWO)] == ["register", "confirm"]
    client, server = dict(samples.PHASE_TWO)[CLIENT_ID[0]], dict(samples.PHASE_TWO)[SERVER_ID[0]]
    facts: dict[str, Any] = {"suffix": CONFIRM_SUFFIX, "methods": frozenset({"POST"}), "strict_uuid": False}
    assert parse_ordinary("POST", "/orders/confirm", client, server, **facts) is not None
    with pytest.raises(WireError):
        parse("POST", "/orders", samples.PHASE_TWO)


@pytest.mark.req("A-16")
async def test_what_is_known_of_names_is_bounded() -> None:
    seen = Shapes(frozenset())
    for number in range(3 * shapes.MOST):
        seen.of([(b"x-%d" % number, b"")])
    assert len(seen.known) <= shapes.MOST
    seen = Shapes(frozenset())
    seen.of([(b"x" * (shapes.LONGEST_BYTES + 1), b"")])
    seen.of([(b"x", b"")] * (shapes.MOST_NAMES + 1))
    assert not seen.known


@pytest.mark.req("A-16")
async def test_a_body_that_has_to_be_waited_for_is_read_and_its_wait_can_be_cancelled() -> None:
    """The first step of ``receive`` is taken without an await; here it has to wait."""
    async with serving(body_timeout_s=30.0) as service:
        arrived, heard = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            try:
                await arrived.wait()
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                heard.set()
                raise
            return {"type": "http.request", "body": b"{}", "more_body": False}

        scope = a_scope("POST", "/orders", [ON, CLIENT_ID])
        exchange = Exchange(b"")
        cut_off = asyncio.ensure_future(service.app(scope, receive, exchange.send))
        whole = asyncio.ensure_future(service.app(a_scope("POST", "/orders", [ON, CLIENT_ID]), receive, exchange.send))
        await asyncio.sleep(0)
        cut_off.cancel()
        await asyncio.wait([cut_off])
        assert heard.is_set()
        arrived.set()
        await whole
        assert exchange.reply().status == 200
