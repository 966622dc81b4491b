"""Lines that are kept: taken up again where they lead to the right place, and only if their last answer was over."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.delivery.test_egress import JSON, LOCAL, NAME, NEVER_S, Names
from tests.delivery.tls_server import Authority, read_request, serving
from twophp.core.errors import DeliveryFailed, EgressRefused
from twophp.delivery.egress import Lines, Rules, check_url, post
from twophp.delivery.egress_http import MAX_SKIPPED_BYTES, bytes_to_skip

pytestmark = pytest.mark.anyio

ANY_PORT = LOCAL
YES = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both: uvloop's transports are not asyncio's."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    return authority.trusted()


@pytest.fixture
def server_tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return authority.server(tmp_path, "localhost", "127.0.0.1")


class Receiver:
    """Answers one request after the other on each connection, and notes on which one each of them came."""

    def __init__(self, *answers: bytes, unasked: bytes = b"", hangs_up: bool = False) -> None:
        self._answers: Iterator[bytes] = iter(answers)
        self._unasked = unasked
        self._hangs_up = hangs_up
        self.connections = 0
        self.calls: list[int] = []
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                await read_request(reader)
                self.calls.append(number)
                writer.write(next(self._answers, YES) + self._unasked)
                await writer.drain()
                if self._hangs_up:
                    return
        finally:
            self.left.set()


async def call(port: int, tls: ssl.SSLContext, lines: Lines | None, *, host: str = "127.0.0.1", path: str = "/") -> int:
    target = check_url(f"https://{host}:{port}{path}", rules=ANY_PORT)
    return await post(target, b"{}", JSON, ssl_context=tls, timeout_s=NEVER_S, lines=lines)


async def test_the_loop_is_the_one_the_test_is_about(anyio_backend: tuple[str, dict[str, bool]]) -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop) is anyio_backend[1]["use_uvloop"]


async def test_one_line_carries_one_call_after_the_other(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    receiver, lines = Receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), Lines()
    async with serving(receiver, server_tls) as port:
        assert [await call(port, tls, lines, path=f"/{number}") for number in range(5)] == [200, 204, 204, 204, 204]
        assert receiver.calls == [1] * 5
        await lines.close()
        await receiver.left.wait()


async def test_calls_at_the_same_time_have_a_line_each_and_later_ones_share_them(
    tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    receiver, lines = Receiver(), Lines()
    async with serving(receiver, server_tls) as port:
        for _round in range(3):
            await asyncio.gather(*(call(port, tls, lines) for _ in range(4)))
        assert (receiver.connections, len(receiver.calls)) == (4, 12)
        await lines.close()


async def test_without_lines_every_call_has_its_own(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    receiver = Receiver()
    async with serving(receiver, server_tls) as port:
        for _ in range(3):
            await call(port, tls, None)
        assert receiver.calls == [1, 2, 3]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 0\r\n\r\nok",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_SKIPPED_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
async def test_an_answer_whose_end_is_in_doubt_is_the_last_of_its_line(
    tls: ssl.SSLContext, server_tls: ssl.SSLContext, answer: bytes
) -> None:
    receiver, lines = Receiver(answer), Lines()
    assert bytes_to_skip(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n") is None
    async with serving(receiver, server_tls) as port:
        await call(port, tls, lines)
        await call(port, tls, lines)
        assert receiver.calls == [1, 2]
        await lines.close()


async def test_a_status_counts_though_its_body_comes_late(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    """What was delivered would else be delivered again, and in the end be called dead."""
    goes_on = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await goes_on.wait()
        writer.write(b"ok")
        await read_request(reader)
        writer.write(YES)

    lines = Lines()
    async with serving(behave, server_tls) as port:
        assert await call(port, tls, lines) == 200
        goes_on.set()
        [skipping] = lines._skipping
        await skipping
        assert await call(port, tls, lines) == 204, "on the same line, once its answer was over"
        await lines.close()


async def test_a_body_that_does_not_come_is_not_waited_for(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    receiver, lines = Receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), Lines()
    async with serving(receiver, server_tls) as port:
        assert await call(port, tls, lines) == 200, "the status has said all there is to know"
        await receiver.left.wait()
        await call(port, tls, lines)
        assert receiver.calls == [1, 2]
        await lines.close()


@pytest.mark.req("A-65")
async def test_what_is_said_unasked_answers_nothing(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    """An answer sent ahead of the question would be taken for the next call's."""
    receiver, lines = Receiver(YES, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", unasked=YES), Lines(idle_s=NEVER_S)
    async with serving(receiver, server_tls) as port:
        assert await call(port, tls, lines) == 204
        await receiver.left.wait()
        with pytest.raises(DeliveryFailed):
            await call(port, tls, lines)
        assert receiver.calls == [1, 2]
        await lines.close()


async def test_a_line_that_speaks_while_it_rests_is_given_up(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(YES)
        await asked.wait()
        writer.write(YES)
        await reader.read()
        left.set()

    lines = Lines(idle_s=NEVER_S)
    async with serving(behave, server_tls) as port:
        assert await call(port, tls, lines) == 204
        asked.set()
        await left.wait()
        await lines.close()


async def test_a_line_that_was_let_go_of_at_the_other_end_costs_no_call(
    tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    receiver, lines = Receiver(hangs_up=True), Lines()
    async with serving(receiver, server_tls) as port:
        for _ in range(5):  # Whether the goodbye has arrived by the next call or not.
            assert await call(port, tls, lines) == 204
        assert receiver.connections == 5
        await lines.close()


@pytest.mark.req("A-65")
async def test_a_name_that_leads_elsewhere_by_now_is_judged_before_its_line_is_found(
    tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    receiver, lines = Receiver(), Lines()
    names = Names(["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"])
    async with serving(receiver, server_tls) as port:
        target = check_url(f"https://localhost:{port}/", rules=ANY_PORT)
        for _ in range(2):
            await post(target, b"{}", JSON, ssl_context=tls, resolver=names, lines=lines)
        with pytest.raises(EgressRefused):
            await post(target, b"{}", JSON, ssl_context=tls, resolver=names, lines=lines)
        assert (receiver.calls, len(names.asked)) == ([1, 1], 3)
        await lines.close()


@pytest.mark.req("A-65")
async def test_a_line_is_for_its_own_name_alone(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    """The certificate was for the name that was called."""
    receiver, lines = Receiver(), Lines()
    async with serving(receiver, server_tls) as port:
        await call(port, tls, lines)
        await call(port, tls, lines, host="localhost")
        assert receiver.calls == [1, 2]
        other = check_url(f"https://{NAME}/", rules=Rules())
        assert lines.take(other, []) is None
        await lines.close()


async def test_lines_are_bounded_in_number_and_in_time(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    receiver, few, brief = Receiver(), Lines(most=1), Lines(idle_s=0)
    async with serving(receiver, server_tls) as port:
        await asyncio.gather(*(call(port, tls, few) for _ in range(3)))
        await receiver.left.wait()
        receiver.left.clear()
        await call(port, tls, brief)
        await receiver.left.wait()
        await call(port, tls, few)
        assert (receiver.connections, len(receiver.calls)) == (4, 5), "one of three was kept, and the brief one was not"
        await few.close()
        await brief.close()


async def test_after_the_end_nothing_is_kept(tls: ssl.SSLContext, server_tls: ssl.SSLContext) -> None:
    receiver, lines = Receiver(), Lines()
    await lines.close()
    async with serving(receiver, server_tls) as port:
        await call(port, tls, lines)
        await receiver.left.wait()
        assert (receiver.calls, lines._idle) == ([1], [])
