"""The gate: what it refuses never leaves the process, and what it lets out goes where it was judged to go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from tests.delivery import ssrf_vectors
from tests.delivery.outbound import Guard, guarded
from tests.delivery.tls_server import Authority, Behaviour, read_request, serving
from twophp.core.errors import ConfigError, DeliveryFailed, EgressRefused
from twophp.delivery.egress import MAX_ADDRESSES, Resolver, Rules, Target, check_url, default_tls, post, resolve
from twophp.delivery.egress_http import MAX_REQUEST_BODY_BYTES, request_bytes
from twophp.wire.callback import Acknowledgement, decode, encode

pytestmark = pytest.mark.anyio

NAME = "hooks.example.com"
PUBLIC = "93.184.216.34"
STRICT = Rules()
WORLD = default_tls()
LOCAL = Rules(allow_insecure_loopback=True)
ACKNOWLEDGEMENT = Acknowledgement(server_correlation_id="s-1", client_correlation_id="c-1", dispatched_at=0)
JSON = [("Content-Type", "application/json")]
NEVER_S = 60.0
"""Longer than any test runs: where it is given, something else ends the call."""
SOON_S = 0.05
"""Where it is given, nothing else ends the call."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server_tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return authority.server(tmp_path, NAME, "127.0.0.1")


@pytest.fixture
def guard() -> Iterator[Guard]:
    with guarded() as guard:
        yield guard


class Names:
    """A resolver that gives each answer once, the last one for ever, and counts the questions."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def call(url: str, resolver: Resolver, tls: ssl.SSLContext, rules: Rules = STRICT, timeout_s: float = 9) -> int:
    """Everything a delivery does with a URL."""
    target = check_url(url, rules=rules)
    return await post(target, b"{}", JSON, ssl_context=tls, resolver=resolver, timeout_s=timeout_s)


def answering(answer: bytes) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    return behave


NO_CONTENT = answering(b"HTTP/1.1 204 No Content\r\n\r\n")


# What is refused.


def test_there_are_at_least_120_vectors() -> None:
    urls = {url for url, _ in ssrf_vectors.URLS}
    assert len(urls) == len(ssrf_vectors.URLS)
    assert len(urls) + len(ssrf_vectors.ANSWERS) >= 240


@pytest.mark.req("A-65")
@pytest.mark.parametrize(("url", "reason"), ssrf_vectors.URLS, ids=[ascii(url)[:60] for url, _ in ssrf_vectors.URLS])
async def test_a_bad_url_never_leaves_the_process(url: str, reason: str, guard: Guard) -> None:
    names = Names([PUBLIC])
    with pytest.raises(EgressRefused) as caught:
        await call(url, names, WORLD)
    assert (caught.value.code, caught.value.reason) == ("egress_refused", reason)
    assert (names.asked, guard.left, guard.stopped) == ([], [], [])


@pytest.mark.req("A-65")
@pytest.mark.parametrize(("note", "answer"), ssrf_vectors.ANSWERS, ids=[note for note, _ in ssrf_vectors.ANSWERS])
async def test_a_name_with_a_bad_address_never_leaves_the_process(note: str, answer: list[str], guard: Guard) -> None:
    names = Names(answer)
    with pytest.raises(EgressRefused) as caught:
        await call(f"https://{NAME}/{len(note)}", names, WORLD)
    assert caught.value.reason == "address"
    assert (names.asked, guard.left, guard.stopped) == ([(NAME, 443)], [], [])


@pytest.mark.req("A-65")
@pytest.mark.parametrize("bad", [*ssrf_vectors.V4, *ssrf_vectors.V6])
async def test_a_bad_address_in_the_url_never_leaves_the_process(bad: str, guard: Guard) -> None:
    with pytest.raises(EgressRefused, match="address"):
        await call(f"https://[{bad}]/" if ":" in bad else f"https://{bad}/", Names([PUBLIC]), WORLD)
    assert (guard.left, guard.stopped) == ([], [])


@pytest.mark.parametrize("rules", [LOCAL, Rules(networks=(IPv4Network("10.0.0.0/8"),))])
@pytest.mark.parametrize(
    "bad", ["169.254.169.254", "192.168.0.1", "::ffff:192.168.0.1", "::127.0.0.1", "fd00:ec2::254"]
)
async def test_an_allowance_is_for_what_it_names_alone(bad: str, rules: Rules, guard: Guard) -> None:
    with pytest.raises(EgressRefused, match="address"):
        await call(f"https://{NAME}/", Names([bad]), WORLD, rules)
    assert (guard.left, guard.stopped) == ([], [])


@pytest.mark.parametrize("url", [f"http://{NAME}/", f"https://{NAME}:6379/", "https://localhost/"])
async def test_what_only_loopback_allows_goes_nowhere_else(url: str, guard: Guard) -> None:
    with pytest.raises(EgressRefused, match="not_loopback"):
        await call(url, Names(["127.0.0.1", PUBLIC]), WORLD, LOCAL)
    assert (guard.left, guard.stopped) == ([], [])


async def test_a_name_with_very_many_addresses_is_refused() -> None:
    with pytest.raises(EgressRefused, match="too_many_addresses"):
        await resolve(check_url(f"https://{NAME}/", rules=STRICT), resolver=Names([PUBLIC] * (MAX_ADDRESSES + 1)))


@pytest.mark.req("A-65")
async def test_a_name_is_asked_once_and_the_call_goes_to_that_answer(guard: Guard) -> None:
    rebinding = Names([PUBLIC], ["127.0.0.1"])
    with pytest.raises(DeliveryFailed, match="unreachable"):  # The guard is in the way.
        await call(f"https://{NAME}/", rebinding, WORLD)
    assert rebinding.asked == [(NAME, 443)]
    assert guard.stopped == [("socket.connect", (PUBLIC, 443))]


async def test_the_guard_sees_the_systems_resolver_too(guard: Guard) -> None:
    with pytest.raises(DeliveryFailed, match="unresolved"):
        await post(target_of(), b"", [], ssl_context=WORLD)
    assert guard.stopped == [("socket.getaddrinfo", NAME)]


async def test_the_systems_resolver_is_behind_the_same_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", ("2606:4700:4700::1111", 443, 0, 2)), (0, 0, 0, "", (PUBLIC, 443))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    with pytest.raises(EgressRefused, match="address"):
        await resolve(check_url(f"https://{NAME}/", rules=STRICT))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found[1:] * 2)
    assert await resolve(check_url(f"https://{NAME}/", rules=STRICT)) == (IPv4Address(PUBLIC),)


# What is let through.


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://hooks.example.com", "hooks.example.com", "/"),
        ("HTTPS://Hooks.EXAMPLE.com:443/A?b=c", "hooks.example.com", "/A?b=c"),
        ("https://hooks.example.com?a=b/c@d:e", "hooks.example.com", "/?a=b/c@d:e"),
        ("https://hooks.example.com/%0d%0a%23/..//@127.0.0.1", "hooks.example.com", "/%0d%0a%23/..//@127.0.0.1"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", "/"),
        ("https://127.0.0.1.nip.io/", "127.0.0.1.nip.io", "/"),  # A name; where it leads is seen when it is resolved.
        ("https://localhost.example.com/", "localhost.example.com", "/"),
        ("https://93.184.216.34/", "93.184.216.34", "/"),
        ("https://[2606:4700:4700:0::1111]/", "[2606:4700:4700::1111]", "/"),
    ],
)
def test_a_good_url_is_read_as_it_is_written(url: str, authority: str, path: str) -> None:
    target = check_url(url, rules=STRICT)
    assert (target.authority, target.path, target.tls, target.port) == (authority, path, True, 443)


@pytest.mark.parametrize(
    ("host", "listed"),
    [
        ("hooks.example.com", True),
        ("a.partner.example", True),
        ("a.b.partner.example", True),
        ("partner.example", False),
        ("apartner.example", False),
        ("example.com", False),
        ("evil.hooks.example.com", False),
        ("orders.internal", True),  # The operator named it, so it is no longer a guess.
        ("billing.internal", False),
        (PUBLIC, False),
    ],
)
@pytest.mark.req("A-65")
def test_a_host_list_lets_through_what_it_names(host: str, listed: bool) -> None:
    rules = Rules(hosts=frozenset({NAME, "*.partner.example", "orders.internal"}))
    with nullcontext() if listed else pytest.raises(EgressRefused, match="host"):
        check_url(f"https://{host}/", rules=rules)


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_a_port_is_one_even_where_any_will_do(port: int) -> None:
    with pytest.raises(EgressRefused, match="port"):
        check_url(f"https://localhost:{port}/", rules=LOCAL)


@pytest.mark.req("A-65")
def test_a_port_list_lets_through_what_it_names() -> None:
    rules = Rules(ports=frozenset({8443}))
    assert check_url(f"https://{NAME}:8443/", rules=rules).authority == f"{NAME}:8443"
    with pytest.raises(EgressRefused, match="port"):
        check_url(f"https://{NAME}/", rules=rules)


async def test_a_network_of_the_operators_own_may_be_named() -> None:
    rules = Rules(networks=(IPv4Network("10.1.0.0/16"),))
    target = check_url(f"https://{NAME}/", rules=rules)
    assert await resolve(target, resolver=Names(["10.1.2.3"])) == (IPv4Address("10.1.2.3"),)
    with pytest.raises(EgressRefused):
        await resolve(target, resolver=Names(["10.2.2.3"]))


# What a request says.


def target_of(url: str = f"https://{NAME}/x") -> Target:
    return check_url(url, rules=STRICT)


def test_a_request_holds_what_was_given_and_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    assert request_bytes(target_of(), b"{}", JSON) == (
        b"POST /x HTTP/1.1\r\nHost: hooks.example.com\r\nUser-Agent: twophp\r\nConnection: close\r\n"
        b"Content-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nY: b"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "a\x00b"),
        ("X", "ä"),
        ("X", ""),
        ("X", " a"),
        ("X", "a "),
        ("X\r\nY", "a"),
        ("X:", "a"),
        ("X ", "a"),
        ("", "a"),
        ("Host", "127.0.0.1"),
        ("content-length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Cookie", "a=b"),
        ("Authorization", "Bearer a"),
        ("Proxy-Authorization", "Basic a"),
    ],
)
@pytest.mark.req("A-65")
def test_a_field_cannot_say_more_than_its_name(name: str, value: str) -> None:
    with pytest.raises(EgressRefused, match="header"):
        request_bytes(target_of(), b"", [(name, value)])


def test_a_request_is_bounded() -> None:
    with pytest.raises(EgressRefused, match="body_too_large"):
        request_bytes(target_of(), bytes(MAX_REQUEST_BODY_BYTES + 1), [])
    with pytest.raises(EgressRefused, match="too_many_headers"):
        request_bytes(target_of(), b"", [("X", "a")] * 33)


# Real connections.


@pytest.mark.req("P-5.5.2-b", "A-65")
async def test_an_https_url_gets_the_acknowledgement(
    guard: Guard, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    received: list[tuple[bytes, bytes]] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    names, order = Names(["127.0.0.1"]), list[str]()
    async with serving(behave, server_tls) as port:
        guard.own = {port}
        status = await post(
            check_url(f"https://{NAME}:{port}/ack?token=t", rules=LOCAL),
            encode(ACKNOWLEDGEMENT),
            JSON,
            ssl_context=authority.trusted(),
            resolver=names,
            on_started=lambda: order.append(f"started {names.asked} {guard.left}"),
            on_sent=lambda: order.append(f"sent {len(names.asked)} {len(guard.left)} {len(received)}"),
        )
    [(head, body)] = received
    assert (status, decode(body)) == (204, ACKNOWLEDGEMENT)
    assert head.startswith(f"POST /ack?token=t HTTP/1.1\r\nHost: {NAME}:{port}\r\n".encode())
    assert order == ["started [] []", "sent 1 1 0"]  # Started before anything is waited for, sent before it is read.
    assert (guard.left, guard.stopped) == ([("socket.connect", ("127.0.0.1", port))], [])


@pytest.mark.req("A-65")
async def test_an_address_is_verified_against_the_certificate_too(
    authority: Authority, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    async with serving(NO_CONTENT, server_tls) as port:
        assert await call(f"https://127.0.0.1:{port}/", Names([]), authority.trusted(), LOCAL) == 204
    async with serving(NO_CONTENT, authority.server(tmp_path, "name.example.com")) as port:
        with pytest.raises(DeliveryFailed, match="certificate"):
            await call(f"https://127.0.0.1:{port}/", Names([]), authority.trusted(), LOCAL)


@pytest.mark.req("A-65")
async def test_a_certificate_for_another_name_is_no_success(authority: Authority, server_tls: ssl.SSLContext) -> None:
    async with serving(NO_CONTENT, server_tls) as port:
        with pytest.raises(DeliveryFailed, match="certificate"):
            await call(f"https://other.example.com:{port}/", Names(["127.0.0.1"]), authority.trusted(), LOCAL)
        with pytest.raises(DeliveryFailed, match="certificate"):  # Nor is one that the world does not trust.
            await call(f"https://{NAME}:{port}/", Names(["127.0.0.1"]), WORLD, LOCAL)


@pytest.mark.req("A-65")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["https://169.254.169.254/", "http://127.0.0.1:6379/", "/again", "//localhost/"])
async def test_a_redirect_is_a_failure_and_not_followed(
    status: int, location: str, guard: Guard, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    behave = answering(f"HTTP/1.1 {status} Go there\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    names = Names(["127.0.0.1"])
    async with serving(behave, server_tls) as port:
        guard.own = {port}
        with pytest.raises(DeliveryFailed) as caught:
            await call(f"https://{NAME}:{port}/", names, authority.trusted(), LOCAL)
    assert (caught.value.reason, caught.value.status) == ("status", status)
    assert (len(guard.left), guard.stopped, len(names.asked)) == (1, [], 1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200),
        (b"HTTP/1.0 202\r\n\r\n", 202),
        (b"HTTP/1.1 299 \r\n\r\n", 299),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 4 + b"HTTP/1.1 201 Created\r\n\r\n", 201),
    ],
)
async def test_every_2xx_is_a_success(
    answer: bytes, status: int, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    async with serving(answering(answer), server_tls) as port:
        assert await call(f"https://{NAME}:{port}/", Names(["127.0.0.1"]), authority.trusted(), LOCAL) == status


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "status"),
        (b"HTTP/1.1 410 Gone\r\n\r\n", "status"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "status"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "status"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 5, "bad_answer"),
        (b"HTTP/2 200 OK\r\n\r\n", "bad_answer"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "bad_answer"),
        (b"HTTP/1.1 099 OK\r\n\r\n", "bad_answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "bad_answer"),
        (b"HTTP/1.1 200 OK\r\n", "bad_answer"),
        (b"", "bad_answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", "bad_answer"),
        (b"\x00" * 1_000_000, "bad_answer"),
    ],
)
async def test_everything_else_is_a_failure(
    answer: bytes, reason: str, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    async with serving(answering(answer), server_tls) as port:
        with pytest.raises(DeliveryFailed) as caught:
            await call(f"https://{NAME}:{port}/", Names(["127.0.0.1"]), authority.trusted(), LOCAL, NEVER_S)
    assert (caught.value.code, caught.value.reason) == ("delivery_failed", reason)


@pytest.mark.req("A-65")
async def test_a_body_is_not_read_however_long(authority: Authority, server_tls: ssl.SSLContext) -> None:
    sent, hung_up = 0, asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:  # Only the client's hanging up ends it.
                writer.write(bytes(65_536))
                await writer.drain()
                sent += 65_536
        finally:
            hung_up.set()

    async with serving(behave, server_tls) as port:
        assert await call(f"https://{NAME}:{port}/", Names(["127.0.0.1"]), authority.trusted(), LOCAL, NEVER_S) == 200
        await hung_up.wait()
    assert sent < 64 * 1024 * 1024  # What fits into the buffers of two kernels' sockets.


@pytest.mark.req("A-65")
@pytest.mark.parametrize("tls", [True, False], ids=["silent after the request", "silent in the handshake"])
async def test_a_silent_server_is_given_up(tls: bool, authority: Authority, server_tls: ssl.SSLContext) -> None:
    tested = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader, writer
        await tested.wait()

    async with serving(behave, server_tls if tls else None) as port:
        with pytest.raises(DeliveryFailed, match="timeout"):
            await call(f"https://{NAME}:{port}/", Names(["127.0.0.1"]), authority.trusted(), LOCAL, SOON_S)
        tested.set()


@pytest.mark.req("A-65")
async def test_a_silent_name_server_is_given_up_and_the_attempt_had_started() -> None:
    async def silent(host: str, port: int) -> Sequence[str]:
        del host, port
        await asyncio.Event().wait()
        return []

    started = asyncio.Event()
    calling = post(target_of(), b"", [], ssl_context=WORLD, resolver=silent, timeout_s=SOON_S, on_started=started.set)
    with pytest.raises(DeliveryFailed, match="timeout"):
        await calling
    assert started.is_set()


async def test_an_attempt_has_started_even_if_it_is_refused() -> None:
    started = asyncio.Event()
    with pytest.raises(EgressRefused):
        await post(target_of(), b"", [("Host", "x")], ssl_context=WORLD, on_started=started.set)
    assert started.is_set()


async def test_a_name_without_an_address_may_get_one_later() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(host, port)

    for resolver in (Names([]), unknown):
        with pytest.raises(DeliveryFailed, match="unresolved"):
            await call(f"https://{NAME}/", resolver, WORLD)


async def test_the_next_address_is_tried_when_one_is_dead(authority: Authority, server_tls: ssl.SSLContext) -> None:
    async with serving(NO_CONTENT, server_tls) as port:  # It listens on 127.0.0.1 alone.
        names = Names(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
        assert await call(f"https://{NAME}:{port}/", names, authority.trusted(), LOCAL) == 204
    with pytest.raises(DeliveryFailed, match="unreachable"):
        await call(f"https://{NAME}:{port}/", names, authority.trusted(), LOCAL)


async def test_plain_http_is_for_loopback_where_it_is_allowed(guard: Guard) -> None:
    async with serving(NO_CONTENT, None) as port:
        guard.own = {port}
        assert await call(f"http://localhost:{port}/", Names(["127.0.0.1"]), WORLD, LOCAL) == 204
        with pytest.raises(EgressRefused, match="scheme"):
            await call(f"http://localhost:{port}/", Names(["127.0.0.1"]), WORLD)


@pytest.mark.req("A-65")
async def test_a_context_that_verifies_nothing_is_not_used() -> None:
    weak = ssl.create_default_context()
    weak.check_hostname = False
    with pytest.raises(ConfigError):
        await call(f"https://{NAME}/", Names([PUBLIC]), weak)
    weak.verify_mode = ssl.CERT_NONE
    with pytest.raises(ConfigError):
        await call(f"https://{NAME}/", Names([PUBLIC]), weak)
