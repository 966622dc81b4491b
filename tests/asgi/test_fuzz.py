"""Anything at all through the middleware: never an error of ours, never a stored half."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.asgi.driver import CLIENT, SERVER, Orders, Seen, Service, a_scope, answer, serving
from tests.core.profile import STEADY
from twophp import Policy
from twophp.asgi.messages import Send
from twophp.core.intent import by_pair
from twophp.wire.fields import FIELDS

OURS = [field.name.lower().encode() for field in FIELDS]
VALUES = st.sampled_from(
    [
        b"true",
        b"TRUE ",
        b"false",
        b"true,false",
        b"c-1",
        b"c-2",
        b"c-1, c-1",
        b"",
        b"60000",
        b"-1",
        b"x" * 200,
        b"\xff\x00",
    ]
)
NAMES = st.sampled_from(
    [*OURS, b"content-length", b"content-type", b"expect", b"x-forwarded-proto", b"DTT-2PHP-Enabled"]
)
HEADERS = st.lists(st.tuples(NAMES, st.one_of(VALUES, st.binary(max_size=40))), max_size=8)
PATHS = st.one_of(
    st.sampled_from(["/", "/orders", "/orders/", "/orders/confirm", "/confirm", "//confirm", "/_2php/intents/x", ""]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30).map("/".__add__),
    st.text(max_size=20).map("/".__add__),
)
METHODS = st.sampled_from(["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "PURGE"])
REQUESTS = st.tuples(METHODS, PATHS, HEADERS, st.binary(max_size=300), st.booleans())
ANSWERS = st.tuples(
    st.sampled_from([200, 201, 204, 304, 400, 404, 422, 500, 503]),
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"location", b"Location", b"dtt-2php-resource-id", b"dtt-2php-phase-state", b"date", b"x"]
            ),
            st.binary(max_size=40),
        ),
        max_size=4,
    ),
    st.one_of(
        st.binary(max_size=60), st.sampled_from([b'{"id": 1}', b'{"id": "\xed\xa0\x80"}', b'{"id": 1e999}', b"{" * 60])
    ),
)
ENABLED = (b"dtt-2php-enabled", b"true")


async def agree(service: Service) -> None:
    """Record, ledger row and journal tell the same story, for every intent there is."""
    for row in await service.rows():
        intent = await service.intent(row.server_correlation_id, row.client_correlation_id)
        assert intent is not None
        assert (intent.phase, intent.version) == (row.phase, row.version)
        lines = await service.server.store.history(by_pair(row.client_correlation_id, row.server_correlation_id))
        assert lines[-1].event.after == row.phase
        assert await service.server.intents.payload(intent) is not None
        settled = row.phase in ("COMMITTED", "FAILED")
        assert (await service.server.intents.response(intent) is not None) == settled


async def try_all(requests: list[tuple[Any, ...]], said: tuple[Any, ...]) -> None:
    status, headers, body = said

    async def say(_app: Orders, _seen: Seen, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    policies = {"*": Policy.standard(), "PUT /orders": Policy.standard(transparent=True)}
    async with serving(Orders(say), policies=policies, max_body_bytes=250) as service:
        registered: str | None = None
        for method, path, raw, payload, confirms in requests:
            fields = [ENABLED, *raw]
            if confirms and registered:
                fields = [ENABLED, (CLIENT.lower().encode(), b"c-1"), (SERVER.lower().encode(), registered.encode())]
            runs = service.orders.runs
            reply = await service.send(a_scope(method, path, fields), payload)
            if service.orders.runs == runs:
                assert reply.status < 500 or reply.get("DTT-2PHP-Phase-State") == "FAILED", reply
                assert all(value.decode("ascii").isprintable() for name, value in reply.raw if name in OURS)
            found = reply.get(SERVER) if reply.status == 200 else None
            registered = found or registered
        await service.rows()  # Opens the ledger, if none of them has.
        await service.server.executions.drain(5)
        await agree(service)


@pytest.mark.req("A-12", "A-16", "P-9.5-a")
@settings(STEADY, max_examples=300)
@given(st.lists(REQUESTS, min_size=1, max_size=5), ANSWERS)
def test_whatever_comes_nothing_breaks_and_nothing_is_half_stored(
    requests: list[tuple[Any, ...]], said: tuple[Any, ...]
) -> None:
    asyncio.run(try_all(requests, said))


LIKELY = st.tuples(
    st.just("POST"),
    st.sampled_from(["/orders", "/orders/confirm"]),
    st.lists(st.tuples(st.sampled_from(OURS[:6]), VALUES), max_size=2).map(
        lambda more: [(CLIENT.lower().encode(), b"c-1"), *more]
    ),
    st.binary(max_size=20),
    st.booleans(),
)


@pytest.mark.req("A-12", "A-16", "P-8.1-b")
@settings(STEADY, max_examples=300)
@given(st.lists(LIKELY, min_size=2, max_size=8), ANSWERS)
def test_handshakes_out_of_order_and_out_of_shape(requests: list[tuple[Any, ...]], said: tuple[Any, ...]) -> None:
    asyncio.run(try_all(requests, said))


@settings(STEADY, max_examples=100)
@given(ANSWERS)
def test_whatever_an_application_answers_is_stored_once_and_repeated(said: tuple[Any, ...]) -> None:
    async def walk() -> None:
        async def say(_app: Orders, _seen: Seen, send: Send) -> None:
            await answer(send, said[0], {}, said[2])

        async with serving(Orders(say)) as service:
            registered, first = await service.both()
            assert await service.confirm(registered) == first
            await agree(service)

    asyncio.run(walk())
