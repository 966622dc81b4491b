"""The one gate through which every outgoing call of the server goes (A-65).

The URL of a callback is the client's to choose, and the server stands in a network the client does not. So a call
passes four steps, and there is no way to begin in the middle:

    check_url    the text: scheme, userinfo, host, port         egress_urls
    resolve      the name, asked once                            here
    judge        every address of the answer must be public      egress_addresses
    connect      to an address that was judged, by its number    egress_pool

The name is not asked again after the judgement, so an answer that changes in between (DNS rebinding) changes nothing.
TLS is still between us and the *name*: the certificate must be for it. Redirects are failures. All of it together
takes ``timeout_s`` at most.

A look-up in the system's resolver holds a thread until the resolver gives up, also after its caller has left. So a
principal has few look-ups at a time, and its further ones wait for those; look-ups of one name are made once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Final, TypeAlias

from twophp.core.errors import ConfigError, DeliveryFailed
from twophp.core.networks import Address
from twophp.delivery.egress_addresses import read_address
from twophp.delivery.egress_http import (
    END_OF_HEAD,
    MAX_INTERIM_ANSWERS,
    Headers,
    bytes_to_skip,
    check_success,
    is_interim,
    request_bytes,
    status_of,
)
from twophp.delivery.egress_pool import Line, Lines, open_line
from twophp.delivery.egress_urls import Rules, Target, check_address, check_url, refused

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to addresses as text, in the order to be tried; raises OSError."""

MOST_EACH: Final = 2
"""How many names of one principal are looked up at a time. The system's resolver has sixteen times as many threads."""


class _Share:
    """What one principal has of the look-ups."""

    def __init__(self, most: int) -> None:
        self.turns = asyncio.Semaphore(most)
        self.users = 0  # Look-ups that are under way, and callers that wait for their turn.


class Lookups:
    """The look-ups of one service that are under way, by principal."""

    def __init__(self, resolver: Resolver, most_each: int = MOST_EACH) -> None:
        self._resolver = resolver
        self._most_each = most_each
        self._under_way: dict[tuple[str, str, int], asyncio.Task[Sequence[str]]] = {}
        self._shares: dict[str, _Share] = {}

    def of(self, principal: str) -> Resolver:
        """A resolver that takes this principal's share and no more."""

        async def resolver(host: str, port: int) -> Sequence[str]:
            key = (principal, host, port)
            if key not in self._under_way:
                await self._turn(key)
            return await asyncio.shield(self._under_way[key])  # A caller that leaves ends no look-up.

        return resolver

    async def _turn(self, key: tuple[str, str, int]) -> None:
        """Wait for a turn and begin. A caller that stops waiting before its turn leaves nothing behind."""
        principal = key[0]
        share = self._shares.setdefault(principal, _Share(self._most_each))
        share.users += 1
        try:
            await share.turns.acquire()
        except asyncio.CancelledError:
            self._leave(principal, share)
            raise
        if key in self._under_way:  # Another caller has begun this look-up by now.
            share.turns.release()
            self._leave(principal, share)
            return
        task = self._under_way[key] = asyncio.create_task(self._look_up(*key[1:]))
        task.add_done_callback(lambda ended: self._ended(key, share, ended))

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        return await self._resolver(host, port)

    def _ended(self, key: tuple[str, str, int], share: _Share, task: asyncio.Task[Sequence[str]]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would log it: perhaps no caller waits any more.
        share.turns.release()
        self._leave(key[0], share)

    def _leave(self, principal: str, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[principal]


__all__ = ["Lines", "Resolver", "Rules", "Target", "check_url", "default_tls", "post", "resolve", "system_resolver"]

TIMEOUT_S: Final = 5.0
MAX_ADDRESSES: Final = 32
"""A name with more is refused: to try them all would only hold the caller."""
MAX_CONNECTS: Final = 3
"""How many addresses are tried, each for its share of the time."""

# Foreign errors, most special first: SSLError and TimeoutError are OSErrors too.
REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (TimeoutError, "timeout"),
    (ssl.SSLCertVerificationError, "certificate"),
    (ssl.SSLError, "tls"),
    (asyncio.IncompleteReadError, "bad_answer"),
    (asyncio.LimitOverrunError, "bad_answer"),
    (OSError, "unreachable"),
)

# A name server that never answers holds a thread until the system's resolver gives up. These threads are ours alone,
# so that it cannot hold threads that the application needs.
_RESOLVING: Final = ThreadPoolExecutor(max_workers=16 * MOST_EACH, thread_name_prefix="twophp-resolve")


@cache  # To read all the certificates takes long, and most services make no outgoing call.
def default_tls() -> ssl.SSLContext:
    """The system's certificate authorities, TLS 1.2 or newer, and no certificate of ours. One for the process."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Ask the operating system."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_RESOLVING, _getaddrinfo, host, port)
    return list(dict.fromkeys(found))


async def resolve(target: Target, *, resolver: Resolver = system_resolver) -> tuple[Address, ...]:
    """Every address of the target, all of them judged.

    Raises EgressRefused if a single one may not be called: a bad address among good ones is not there by accident, so
    it is not merely left out. Raises DeliveryFailed if there is none.
    """
    if target.address is not None:
        return (check_address(target, target.address),)
    found = await _ask(resolver, target)
    if len(found) > MAX_ADDRESSES:
        raise refused("too_many_addresses")
    return tuple(check_address(target, read_address(text)) for text in found)


async def post(
    target: Target,
    body: bytes,
    headers: Headers,
    *,
    ssl_context: ssl.SSLContext,
    timeout_s: float = TIMEOUT_S,
    resolver: Resolver = system_resolver,
    lines: Lines | None = None,
    on_started: Callable[[], None] | None = None,
    on_sent: Callable[[], None] | None = None,
) -> int:
    """Send the body once and return the 2xx status; raises EgressRefused or DeliveryFailed.

    ``lines`` are connections to use again, all of them made with this ``ssl_context``; else this call makes its own.
    A connection that the other end has closed is no failure: the call is made anew, and may arrive twice, as every
    delivery may. ``on_started`` is called before anything is waited for, also if the attempt fails then; ``on_sent``
    when the whole request is written. They are what the two barriers of A-38 wait for.
    """
    if on_started is not None:
        on_started()
    _check_tls(ssl_context)
    request = request_bytes(target, body, headers, keeps=lines is not None)
    try:
        async with asyncio.timeout(timeout_s):
            addresses = await resolve(target, resolver=resolver)
            kept = None if lines is None else lines.take(target, addresses)
            if kept is not None:
                with suppress(OSError, asyncio.IncompleteReadError):
                    return check_success(await _exchange(kept, request, on_sent, lines))
            line = await _connect(target, addresses[:MAX_CONNECTS], ssl_context, timeout_s)
            return check_success(await _exchange(line, request, on_sent, lines))
    except tuple(kind for kind, _ in REASONS) as error:
        raise _failed(next(reason for kind, reason in REASONS if isinstance(error, kind))) from error


def _failed(reason: str) -> DeliveryFailed:
    return DeliveryFailed(f"The call did not succeed: {reason}.", reason=reason)


async def _ask(resolver: Resolver, target: Target) -> Sequence[str]:
    """The only look-up of the name. An unknown name is no refusal: it may be known at the next try."""
    try:
        found = await resolver(target.host, target.port)
    except OSError as error:
        raise _failed("unresolved") from error
    if not found:
        raise _failed("unresolved")
    return found


def _getaddrinfo(host: str, port: int) -> list[str]:
    """A scope id in the answer is kept as ``%``, for the judge to see."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [f"{at[0]}%{at[3]}" if len(at) == 4 and at[3] else str(at[0]) for *_, at in found]  # noqa: PLR2004


def _check_tls(context: ssl.SSLContext) -> None:
    """Without a check of the certificate and its name, any server that answers at the address would do."""
    if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
        raise ConfigError("The TLS context of outgoing calls must verify certificates and names.", code="weak_tls")


async def _connect(
    target: Target, addresses: tuple[Address, ...], ssl_context: ssl.SSLContext, timeout_s: float
) -> Line:
    """A line to the first address that answers. A silent one leaves the others their share of the time."""
    for address in addresses[:-1]:
        with suppress(OSError):
            async with asyncio.timeout(timeout_s / len(addresses)):
                return await open_line(target, address, ssl_context)
    return await open_line(target, addresses[-1], ssl_context)


async def _exchange(line: Line, request: bytes, on_sent: Callable[[], None] | None, lines: Lines | None) -> int:
    """Write all, read the status, and hang up, or keep the line if the answer is over and it may be kept."""
    writer = line.writer
    length: int | None = None
    try:
        writer.transport.set_write_buffer_limits(high=0)  # So that ``drain`` waits for the last byte.
        writer.write(request)
        await writer.drain()
        if on_sent is not None:
            on_sent()
        head = await _read_head(line)
        length = None if lines is None else bytes_to_skip(head)
        return status_of(head)
    finally:
        if length is None or lines is None:
            await line.hang_up()
        else:
            await lines.keep(line, after=length)


async def _read_head(line: Line) -> bytes:
    for _ in range(MAX_INTERIM_ANSWERS + 1):
        head = await line.read_until(END_OF_HEAD)
        if not is_interim(status_of(head)):
            return head
    raise _failed("bad_answer")
