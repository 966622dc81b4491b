"""An answer may break off anywhere: it is asked for again with the same ids, or a PhaseError says so.

A retry on the errors of an HTTP library makes no second call.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import requests
import stamina
import tenacity
from urllib3 import Retry

from tests.client.callers import Caller, HandTime, Said, caller, settings
from tests.client.cutting import GREETING, Answer, Origin, Step, origin
from tests.client.shop import pair
from tests.patience import PATIENCE_S
from twophp.client import Advice, AsyncTwoPhaseTransport, PhaseError, TwoPhaseTransport, calling
from twophp.client.requests import TwoPhaseAdapter
from twophp.stores.clock import system_clock

RETRIED = (httpx.HTTPError, httpx2.HTTPError, requests.RequestException, OSError)
"""What people retry on: every library's widest error, and what Python's own sockets raise."""
EVERYTHING = Retry(total=3, allowed_methods=None, status_forcelist=[500, 502, 503, 504], backoff_factor=0)
FRAMES = {"Content-Length": Answer(), "chunked": Answer(chunked=True)}


@contextmanager
def retrying(kind: str, folder: Path, **changes: Any) -> Iterator[Callable[..., Said]]:
    """A client that retries in every way there is: within the transport, and twice around it."""
    library: Any = {"httpx": httpx, "httpx2": httpx2}.get(kind.partition(" ")[0])
    if library is not None:
        inner = library.AsyncHTTPTransport if kind.endswith("async") else library.HTTPTransport
        changes["transport"] = inner(retries=3)
    with caller(kind, folder, pause=lambda _seconds: None, **changes) as http:
        if kind == "requests":
            adapter_of(http).max_retries = EVERYTHING
        again = stamina.retry(on=RETRIED, attempts=2, timeout=None, wait_initial=0, wait_jitter=0, wait_max=0)(
            http.post
        )
        yield tenacity.retry(
            retry=tenacity.retry_if_exception_type(RETRIED), stop=tenacity.stop_after_attempt(2), reraise=True
        )(again)


def adapter_of(http: Caller) -> TwoPhaseAdapter:
    adapter = http._send.__self__.get_adapter("http://")  # type: ignore[attr-defined]
    assert isinstance(adapter, TwoPhaseAdapter)
    return adapter


def after_each_byte(server: Origin, step: Step, post: Callable[..., Said]) -> Iterator[tuple[int, Said | PhaseError]]:
    """Make a call for every byte of an answer, and break it off there. Both frames have one head: once is enough."""
    post(f"{server.url}/orders", json={"warm": step})
    answer = server.sent[step]
    for at in range(answer.find(b"chunked") + 1, len(answer)):
        server.cuts = {step: [at]}
        try:
            yield at, post(f"{server.url}/orders", json={step: at})
        except PhaseError as error:
            yield at, error
        assert server.cuts[step] == [], "it was broken off"


@pytest.mark.req("A-42", "P-8.1-a", "T2-1")
@pytest.mark.parametrize("frame", FRAMES)
def test_an_answer_that_breaks_off_after_any_byte_is_asked_for_again(kind: str, frame: str, tmp_path: Path) -> None:
    with origin(FRAMES[frame]) as server, retrying(kind, tmp_path) as post:
        for step in ("phase_1", "phase_2"):
            for at, said in after_each_byte(server, step, post):
                assert isinstance(said, Said), (at, said)
                assert (said.status, said.text, said.info["phase"]) == (200, GREETING.decode(), "COMMITTED"), at
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-06", "A-28")
@pytest.mark.parametrize("frame", FRAMES)
def test_a_plain_servers_answer_that_breaks_off_is_never_a_reason_to_send_again(
    kind: str, frame: str, tmp_path: Path
) -> None:
    with origin(FRAMES[frame], plain=True) as server, retrying(kind, tmp_path) as post:
        whole = len(FRAMES[frame].bytes("201 Created", "")) - (len(b"0\r\n\r\n") - 1 if frame == "chunked" else 0)
        for at, said in after_each_byte(server, "phase_1", post):
            if isinstance(said, Said):  # The last chunk has come, and only the end of the end is missing.
                assert at >= whole, at
                assert (said.status, said.text) == (201, GREETING.decode())
            else:
                assert (said.code, said.advice) == ("answer_lost", Advice.CHECK), at
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42")
@pytest.mark.parametrize(("missing", "expected"), [(10, "answer_gone"), (20, "no_answer")])
def test_an_answer_that_never_comes_whole_is_a_phase_error(
    missing: int, expected: str, kind: str, tmp_path: Path
) -> None:
    """Without its body the answer is gone, and its head has told the outcome; without its head nothing is known."""
    with origin() as server, retrying(kind, tmp_path, patience_s=0) as post:
        post(f"{server.url}/orders", json={"warm": 1})
        server.cuts = {"phase_2": [len(server.sent["phase_2"]) - missing] * 50}
        with pytest.raises(PhaseError) as raised:
            post(f"{server.url}/orders")
    error = raised.value
    assert not isinstance(error, RETRIED)
    assert (error.code, error.advice, error.phase) == {
        "answer_gone": ("answer_gone", Advice.DONE, "COMMITTED"),
        "no_answer": ("no_answer", Advice.WAIT, "WAITING_CONFIRM"),
    }[expected]
    assert pair(tmp_path / "checkout.db", error.client_correlation_id or "").phase.value == error.phase
    assert set(server.runs.values()) == {1}


PACKED = gzip.compress(GREETING)
ROTTEN = PACKED[:12] + bytes([PACKED[12] ^ 0xFF]) + PACKED[13:]


def zipped(body: bytes, *, chunked: bool = False) -> Answer:
    return Answer(body, chunked=chunked, more="Content-Encoding: gzip\r\n")


@pytest.mark.req("A-42")
@pytest.mark.parametrize("chunked", [True, False])
def test_a_compressed_answer_arrives_as_the_server_sent_it(kind: str, tmp_path: Path, *, chunked: bool) -> None:
    with origin(zipped(PACKED, chunked=chunked)) as server, retrying(kind, tmp_path) as post:
        server.cuts = {"phase_2": [len(zipped(PACKED, chunked=chunked).bytes("200 OK", "")) - 9]}
        assert post(f"{server.url}/orders").text == GREETING.decode()
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-42", "A-06")
@pytest.mark.parametrize("plain", [True, False])
def test_an_answer_that_cannot_be_decoded_is_a_phase_error(kind: str, tmp_path: Path, *, plain: bool) -> None:
    bad = zipped(ROTTEN)
    with (
        origin(bad, plain=plain) as server,
        retrying(kind, tmp_path, patience_s=0) as post,
        pytest.raises(PhaseError),
    ):
        post(f"{server.url}/orders")
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-06")
def test_an_answer_that_contradicts_its_own_length_is_a_phase_error(kind: str, tmp_path: Path) -> None:
    twice = Answer(more="Content-Length: 3\r\n")
    with origin(twice, plain=True) as server, retrying(kind, tmp_path) as post, pytest.raises(PhaseError):
        post(f"{server.url}/orders")
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-28")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_retry_of_urllib3_sends_nothing_twice(method: str, tmp_path: Path) -> None:
    class Busy(Answer):
        def bytes(self, status: str, fields: str) -> bytes:
            return super().bytes("503 Busy" if status.startswith("201") else status, f"{fields}Retry-After: 0\r\n")

    with origin(Busy(), plain=True) as server, caller("requests", tmp_path) as http:
        adapter_of(http).max_retries = EVERYTHING
        assert http.request(method, f"{server.url}/orders", data=b"x").status == 503
        server.cuts = {"phase_1": [0]}
        with pytest.raises(PhaseError):
            http.request(method, f"{server.url}/orders", data=b"y")
    assert server.runs == {b"x": 1, b"y": 1}


@pytest.mark.req("A-42")
def test_a_named_call_may_be_retried_on_any_error_there_is(kind: str, tmp_path: Path) -> None:
    """Tenacity's bare ``retry`` repeats on every exception, a PhaseError too; with a name it is the same call."""
    time = HandTime()
    began = system_clock()
    moved = {"steady": time, "pause": time.pause, "clock": lambda: began + time.now}
    with origin() as server, caller(kind, tmp_path, patience_s=2, require_2php=True, **moved) as http:
        post = tenacity.retry(stop=tenacity.stop_after_attempt(9))(http.post)
        for number, at in enumerate((0, 40, 100, 115)):
            server.cuts = {"phase_1": [at], "phase_2": [at] * 8}  # More than one call's patience bears.
            with calling(client_correlation_id=f"order-{number}"):
                assert post(f"{server.url}/orders", json={"item": number}).text == GREETING.decode()
            assert server.cuts["phase_2"] == []
    assert set(server.runs.values()) == {1}


LONG = b"0123456789" * 20_000


@pytest.mark.req("A-42")
@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_that_is_longer_than_the_bound_is_streamed(kind: str, tmp_path: Path, *, chunked: bool) -> None:
    with origin(Answer(LONG, chunked=chunked)) as server, retrying(kind, tmp_path, max_body_bytes=1_000) as post:
        assert post(f"{server.url}/orders").text == LONG.decode()
        server.cuts = {"phase_2": [150_000]}
        with pytest.raises(PhaseError) as raised:
            post(f"{server.url}/orders", json={"item": 2})
    assert (raised.value.code, raised.value.advice, raised.value.phase) == ("answer_gone", Advice.DONE, "COMMITTED")
    assert set(server.runs.values()) == {1}


@pytest.mark.req("A-06")
def test_a_caller_that_streams_hears_of_a_break_where_it_reads(tmp_path: Path) -> None:
    with origin(Answer(LONG), plain=True) as server:
        with caller("requests", tmp_path) as http:
            server.cuts = {"phase_1": [100_000] * 3}
            url = f"{server.url}/orders"
            with pytest.raises(PhaseError, match="broke off"):
                b"".join(http._send("POST", url, data=b"1", stream=True).iter_content(1_000))
            with pytest.raises(PhaseError, match="broke off"):
                http._send("POST", url, data=b"2", stream=True).raw.read()
            with pytest.raises(PhaseError, match="broke off"):
                list(http._send("POST", url, data=b"3", stream=True).raw)
        server.cuts = {"phase_1": [100_000]}
        with (
            httpx2.Client(transport=transport(tmp_path), timeout=PATIENCE_S) as client,
            client.stream("POST", url, content=b"4") as said,
        ):
            assert said.status_code == 201
            with pytest.raises(PhaseError, match="broke off"):
                b"".join(said.iter_raw())


@pytest.mark.req("A-06")
def test_a_plain_servers_stream_is_read_as_it_comes(tmp_path: Path) -> None:
    """An event stream has no end: the transport must not wait for it."""
    with answering(one_event) as url:
        with caller("requests", tmp_path) as http:
            said = http._send("POST", url, data=b"1", stream=True)
            assert next(said.iter_lines()) == b"data: 1"
            said.close()
        with (
            httpx2.Client(transport=transport(tmp_path), timeout=PATIENCE_S) as client,
            client.stream("POST", url) as answer,
        ):
            assert next(answer.iter_lines()) == "data: 1"
        asyncio.run(first_line(url, tmp_path))


async def first_line(url: str, folder: Path) -> None:
    made = AsyncTwoPhaseTransport(**settings(folder))
    async with httpx.AsyncClient(transport=made, timeout=PATIENCE_S) as client, client.stream("POST", url) as answer:
        assert await anext(answer.aiter_lines()) == "data: 1"


def transport(folder: Path, **changes: Any) -> TwoPhaseTransport:
    return TwoPhaseTransport(**settings(folder, **changes))


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request, calls ``answer``, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _address = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def one_event(connection: socket.socket) -> None:
    """One chunk, and then nothing until the reader has left."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
    while connection.recv(65_536):
        continue


def half_a_head(connection: socket.socket) -> None:
    """It breaks off before the last line of its head."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")


def test_a_read_that_breaks_off_fails_as_it_does_without_us(tmp_path: Path) -> None:
    with answering(half_a_head) as url, requests.Session() as plain, caller("requests", tmp_path) as http:
        with pytest.raises(requests.RequestException) as expected:
            plain.get(url)
        with pytest.raises(requests.RequestException) as found:
            http.get(url)
        with pytest.raises(PhaseError):
            http.post(url)
    assert type(found.value) is type(expected.value) is requests.exceptions.ChunkedEncodingError
