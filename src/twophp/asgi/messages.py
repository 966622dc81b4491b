"""ASGI's messages: reading a request, sending an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping, Sequence
from types import CoroutineType, coroutine
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from twophp.core.errors import WireError
from twophp.core.records import Instant
from twophp.engine.running import Execution
from twophp.identity.head import Head, Headers, tls_facts

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH_SAFE: Final = "/:@!$&'()*+,;=~-._"
WITHOUT_CONTENT: Final = frozenset({204, 304})  # RFC 9110 §8.6: these say nothing about a length.
LONGEST_LENGTH: Final = 18  # Digits of a Content-Length that is worth reading as a number.


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete response. A ``framed`` one has its own length field, or leaves the length to the server.

    ``run`` is the execution that made it, for the request that waited for it: the application may not have returned.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    framed: bool = False
    run: Execution | None = None


Answering: TypeAlias = Coroutine[Any, Any, Answer | None]
"""An answer on its way. None: the request is the application's alone."""


class Disconnected(Exception):
    """The client left before the end of its request, so there is no client to answer (A-16)."""


def raw_path(scope: Scope) -> str:
    """The path as it came over the wire, still percent-encoded (A-01). Servers that drop it get it re-encoded."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"], safe=PATH_SAFE)
    path = raw.decode("latin-1")
    return path if "?" not in path else path.partition("?")[0]


def route_path(scope: Scope, path: str) -> str:
    """The raw path without the prefix that the application is mounted under (A-01): what an intent is bound to."""
    root = scope.get("root_path")
    if not root:
        return path
    quoted = quote(root, safe=PATH_SAFE).removesuffix("/")
    if quoted and (path == quoted or path.startswith(quoted + "/")):
        return path[len(quoted) :] or "/"
    root = root.removesuffix("/")
    prefix = "/".join(path.split("/")[: root.count("/") + 1])
    if root and unquote(prefix) == root:  # The same, spelled with other escapes.
        return path[len(prefix) :] or "/"
    return path


def seen_path(scope: Scope) -> str:
    """The path as the application's own router sees it: decoded, without the prefix it is mounted under."""
    path: str = scope["path"]
    root = scope.get("root_path")
    if not root:
        return path
    root = root.removesuffix("/")
    if path == root or path.startswith(root + "/"):
        return path[len(root) :] or "/"
    return path


def head_of(scope: Scope, now: Instant, wall_ahead_ms: int) -> Head:
    """What ``identify``, the guards and the hooks see of a request."""
    extensions, client = scope.get("extensions"), scope.get("client")
    tls = extensions.get("tls") if extensions else None
    return Head(
        method=scope["method"],
        path=raw_path(scope),
        headers=Headers(scope["headers"]),
        scheme=scope.get("scheme", "http"),
        received_at=now,
        client=(client[0], client[1]) if client else None,
        tls=None if tls is None else tls_facts(tls),
        scope=scope,
        wall_ahead_ms=wall_ahead_ms,
    )


def refuse_large(headers: Iterable[tuple[bytes, bytes]], limit: int) -> None:
    """Raise WireError if a body says that it is too large, before any of it is read (A-16)."""
    for name, value in headers:  # This only refuses early, so it looks for the spelling that ASGI prescribes alone.
        if name == b"content-length" and value.isdigit() and (len(value) > LONGEST_LENGTH or int(value) > limit):
            raise _too_large()


def body_at_hand(receive: Receive, limit: int, within_s: float) -> bytes | Awaitable[bytes]:
    """The whole body, or an awaitable of it: WireError as soon as it is known to be too large or too slow (A-16).

    Most bodies are there with the first message. So this takes the first step of ``receive`` itself, without an await;
    only a body that has to be waited for costs an await and a timer.
    """
    waiting = receive()
    if type(waiting) is not CoroutineType:
        return _waited_for(waiting, receive, limit, within_s)
    try:
        pending = waiting.send(None)
    except StopIteration as here:
        message: Message = here.value
    else:
        return _waited_for(_gone_on_with(waiting, pending), receive, limit, within_s)
    if message["type"] != "http.request" or message.get("more_body"):
        return _waited_for(_said(message), receive, limit, within_s)
    body = message.get("body", b"")
    if len(body) > limit:
        raise _too_large()
    return bytes(body)  # The very same, unless a server has put something else there.


async def read_body(receive: Receive, limit: int, within_s: float) -> bytes:
    """The same as a coroutine, for a caller that waits anyway."""
    body = body_at_hand(receive, limit, within_s)
    return body if isinstance(body, bytes) else await body


async def _waited_for(first: Awaitable[Message], receive: Receive, limit: int, within_s: float) -> bytes:
    try:
        async with asyncio.timeout(within_s):
            return await _received(first, receive, limit)
    except TimeoutError:
        raise WireError("the body arrives too slowly", code="body_too_slow") from None


async def _said(message: Message) -> Message:
    return message


@coroutine
def _gone_on_with(waiting: CoroutineType[Any, Any, Message], pending: object) -> Generator[Any, Any, Message]:
    """Await a coroutine whose first step was taken already: pass on what it waits for, as ``await`` would."""
    try:
        while True:
            try:
                told = yield pending
            except BaseException as error:  # noqa: BLE001 - A cancellation goes to the coroutine.
                pending = waiting.throw(error)
            else:
                pending = waiting.send(told)
    except StopIteration as over:
        message: Message = over.value
        return message
    finally:
        waiting.close()


async def _received(first: Awaitable[Message], receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    message = await first
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large()
        more = message.get("more_body", False)
        if not more and not chunks:
            return chunk
        chunks.append(chunk)
        if not more:
            return b"".join(chunks)
        message = await receive()


def _too_large() -> WireError:
    return WireError("the body is too large", code="body_too_large")


async def send_answer(send: Send, answer: Answer, *, is_head: bool = False) -> None:
    """Status, headers and body, with a length so that the connection can be kept."""
    headers = [*answer.headers]
    if not answer.framed and answer.status not in WITHOUT_CONTENT:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else answer.body})


class Rewindable:
    """A request's messages, remembered, so that the application can still receive them from the first one on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: list[Message] = []

    async def __call__(self) -> Message:
        """The next message."""
        message = await self._receive()
        self._seen.append(message)
        return message

    def again(self) -> Receive:
        """The same messages once more, then those that follow."""
        seen = iter(self._seen)

        async def receive() -> Message:
            for message in seen:
                return message
            return await self._receive()

        return receive
