"""httpx and httpx2, as the flow sees them. They are twins: the module is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from twophp.client import redirects
from twophp.client.exchange import CallRequest, Hop, Lost, NotSent, Outcome, Reply, Send
from twophp.client.held import may_be_last
from twophp.client.options import options_of
from twophp.client.settings import Settings
from twophp.client.streams import Awaited, AwaitedGuard, Blocked, BlockedGuard, Checked
from twophp.core.errors import Advice, PhaseError
from twophp.wire import fields
from twophp.wire.fields import Headers
from twophp.wire.parse import MUTATIONS
from twophp.wire.targets import target_of

EXTENSION: Final = "twophp"
DRAINED_BYTES: Final = 64 * 1024
"""At most this much of an unwanted answer is read, to keep its connection. A longer one is closed with it."""
TIMEOUT: Final = {"connect": 5.0, "read": 30.0, "write": 5.0, "pool": 5.0}
"""For requests of the reconciler: no caller says how long they may take."""

_NOT_SENT: Final = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")


def is_ours(request: Any) -> bool:
    """Whether a request does two phases: a mutation, unless its maker opted out."""
    return request.method in MUTATIONS and request.extensions.get(EXTENSION) is not False


def asked_by(request: Any, body: bytes, settings: Settings, hop: Hop | None = None) -> CallRequest:
    """The caller's request as a value. Raises PhaseError if it must not be sent at all."""
    url = request.url
    target = target_of(f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}")
    if not settings.allow_insecure and not target.is_secure:
        raise refused("tls_required", f"{target.resource}: two-phase requests need https, or allow_insecure=True")
    check_names(name for name, _value in request.headers.raw)
    options = options_of(request.extensions.get(EXTENSION))
    return CallRequest(
        method=request.method,
        target=target,
        headers=whole(request.headers.raw, body),
        body=body,
        options=options,
        hop=redirects.within_origin(hop, target, options.client_correlation_id),
    )


def refused(code: str, message: str) -> PhaseError:
    """The error for a request that was not sent, and never will be as it is."""
    return PhaseError(message, code=code, advice=Advice.FIX)


def check_names(names: Iterable[bytes]) -> None:
    """The protocol's fields are written by the transport alone: a second value would contradict it or be believed."""
    for name in names:
        if name.lower().startswith(fields.PREFIX):
            shown = name.decode("latin-1")
            raise refused("reserved_header", f"{shown} is set by the transport; see calling() for what a call may say")


def whole(headers: Any, body: bytes) -> Headers:
    """Header fields as the caller spelled them, for a body that is sent in one piece."""
    given = list(headers)
    if not any(name.lower() == b"transfer-encoding" for name, _value in given):
        return given
    kept = [pair for pair in given if pair[0].lower() not in {b"transfer-encoding", b"content-length"}]
    return [*kept, (b"Content-Length", str(len(body)).encode())]


class Body:
    """A request's body, gathered within a bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        """Raises PhaseError as soon as it is too much."""
        self._size += len(chunk)
        if self._size > self._limit:
            message = f"the request's body is larger than max_body_bytes ({self._limit:,})"
            raise refused("body_too_large", message)
        self._chunks.append(chunk)

    @property
    def content(self) -> bytes:
        """The whole body."""
        return b"".join(self._chunks)


@lru_cache(maxsize=1_024)
def _url(library: Any, text: str) -> Any:
    """The library's own value, which never changes: to read one takes longer than all header fields of a call."""
    return library.URL(text)


class _Colour(NamedTuple):
    """What the libraries call by two names, one for a Client and one for an AsyncClient."""

    handle: str
    close: str
    read: str
    pieces: str
    begin: Callable[[Any], Any]
    step: Callable[[Any, None], Any]
    held: Any
    guard: Any


BLOCKING: Final = _Colour("handle_request", "close", "read", "iter_bytes", iter, next, Blocked, BlockedGuard)
AWAITING: Final = _Colour("handle_async_request", "aclose", "aread", "aiter_bytes", aiter, anext, Awaited, AwaitedGuard)


async def _ended(given: Any) -> Any:
    """What a method of either colour gives. Of the blocking one nothing is awaited, so this does not suspend."""
    return await given if isawaitable(given) else given


class Sending:
    """The ``Http`` of a transport."""

    def __init__(
        self, colour: _Colour, inner: Any, library: Any, limit: int, extensions: dict[str, Any] | None = None
    ) -> None:
        self._colour = colour
        self._inner = inner
        self._library = library
        self._limit = limit
        given = {} if extensions is None else extensions
        self._extensions = {name: value for name, value in given.items() if name != EXTENSION}
        self._extensions.setdefault("timeout", TIMEOUT)
        self._not_sent = tuple(getattr(library, name) for name in _NOT_SENT)
        self._breaks = (library.RequestError, library.StreamError, OSError)

    async def send(self, effect: Send) -> Reply:
        """See ``Http.send``."""
        try:
            native = await _ended(getattr(self._inner, self._colour.handle)(self._request(effect)))
        except self._breaks as error:
            raise (NotSent(error) if isinstance(error, self._not_sent) else Lost(error)) from error
        reply = Reply(status=native.status_code, headers=native.headers.raw, native=native)
        if may_be_last(effect.step, reply.headers) and not native.is_closed:
            try:
                await self._hold(native)
            except self._breaks as error:
                raise Lost(error, reply) from error
        return reply

    def _request(self, effect: Send) -> Any:
        where = effect.target
        return self._library.Request(
            effect.method,
            self._library.URL(where.url) if where.query else _url(self._library, where.url),
            headers=effect.headers,
            content=effect.body or None,
            extensions=dict(self._extensions),
        )

    async def _hold(self, native: Any) -> None:
        """Read the body into memory, as it came; of one that is longer than the bound, the beginning."""
        stream, ahead, size = native.stream, list[bytes](), 0
        pieces = self._colour.begin(stream)
        try:
            while (piece := await _ended(self._colour.step(pieces, None))) is not None:
                ahead.append(piece)
                size += len(piece)
                if size > self._limit:
                    native.stream = self._colour.held(stream, ahead, pieces)
                    return
            for _piece in self._checked(native).blocking(iter(ahead)):
                continue
        except BaseException:
            await self._close(stream)
            raise
        await self._close(stream)
        native.stream = self._library.ByteStream(b"".join(ahead))

    async def read(self, reply: Reply, limit: int) -> bytes:
        """See ``Http.read``. What was read before an answer breaks off counts."""
        native, read = reply.native, b""
        try:
            pieces = getattr(native, self._colour.pieces)()
            while (piece := await _ended(self._colour.step(pieces, None))) is not None:
                read += piece
                if len(read) > max(limit, DRAINED_BYTES):
                    break
        except self._breaks:
            pass
        finally:
            await self._close(native)
        return read

    async def keep(self, native: Any) -> None:
        """See ``Http.keep``."""
        if not native.is_closed:
            try:
                await _ended(getattr(native, self._colour.read)())
            except self._breaks:
                await self._close(native)

    async def drop(self, reply: Reply | None) -> None:
        """See ``Http.drop``."""
        if reply is not None:
            await self._close(reply.native)

    async def _close(self, what: Any) -> None:
        await _ended(getattr(what, self._colour.close)())

    def finished(self, outcome: Outcome) -> Any:
        """The library's own response, with what the protocol knows of the call."""
        reply = outcome.reply
        native = reply.native
        if native is None:
            native = self._library.Response(reply.status, headers=reply.headers, content=reply.body)
        elif not native.is_closed and not isinstance(native.stream, self._library.ByteStream):
            native.stream = self._colour.guard(native.stream, self._checked(native), self._breaks, outcome.info)
        native.extensions[EXTENSION] = outcome.info
        return native

    def _checked(self, native: Any) -> Checked:
        return Checked(self._library, native.headers.get("content-encoding"))
