"""httpx and httpx2, as the flow sees them. They are twins: the module is an argument."""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any, Final

from twophp.client.exchange import Asked, Lost, NotSent, Outcome, Reply, Send
from twophp.client.options import options_of
from twophp.client.settings import Settings
from twophp.core.errors import Advice, ConfigError, PhaseError
from twophp.wire import fields
from twophp.wire.fields import Headers
from twophp.wire.parse import MUTATIONS
from twophp.wire.targets import target_of

NAMES: Final = ("httpx2", "httpx")
EXTENSION: Final = "twophp"
DRAINED_BYTES: Final = 64 * 1024
"""So much of an answer nobody wants is read, to keep its connection; a longer one costs the connection."""
TIMEOUT: Final = {"connect": 5.0, "read": 30.0, "write": 5.0, "pool": 5.0}
"""For what is sent with no caller to say how long it may take."""

_NOT_SENT: Final = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")


def library_of(request: Any) -> Any:
    """The library that made this request."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def installed() -> list[Any]:
    """Those of the two that are here, the newer first."""
    found = []
    for name in NAMES:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    return found


def any_library() -> Any:
    """One of the two, for what is sent when nobody has made a request yet."""
    for library in installed():
        return library
    raise ConfigError('neither httpx2 nor httpx is installed: pip install "twophp[httpx2]"', code="no_http_library")


def is_ours(request: Any) -> bool:
    """Whether a request does two phases: a mutation, unless its maker opted out or speaks 2PHP on its own."""
    if request.method not in MUTATIONS or request.extensions.get(EXTENSION) is False:
        return False
    return not any(name.lower() in fields.BY_KEY for name, _value in request.headers.raw)


def asked_by(request: Any, body: bytes, settings: Settings) -> Asked:
    """The caller's request as a value. Raises PhaseError if it must not be sent at all."""
    url = request.url
    target = target_of(f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}")
    if not settings.allow_insecure and not target.is_secure:
        raise refused("tls_required", f"{target.resource}: two-phase requests need https, or allow_insecure=True")
    return Asked(
        method=request.method,
        target=target,
        headers=whole(request.headers.raw, body),
        body=body,
        options=options_of(request.extensions.get(EXTENSION)),
    )


def refused(code: str, message: str) -> PhaseError:
    """Nothing was sent, and nothing will be until something changes."""
    return PhaseError(message, code=code, advice=Advice.FIX)


def whole(headers: Any, body: bytes) -> Headers:
    """Header fields in the wire's form, for a body that is sent in one piece."""
    lowered = [(name.lower(), value) for name, value in headers]
    if not any(name == b"transfer-encoding" for name, _value in lowered):
        return lowered
    kept = [pair for pair in lowered if pair[0] not in {b"transfer-encoding", b"content-length"}]
    return [*kept, (b"content-length", str(len(body)).encode())]


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
        """All of it."""
        return b"".join(self._chunks)


@lru_cache(maxsize=1_024)
def _url(library: Any, text: str) -> Any:
    """The library's own value, which never changes: to read one takes longer than all header fields of a call."""
    return library.URL(text)


class _Sending:
    """What both colours share: how a request is built, and what an error means."""

    def __init__(self, inner: Any, library: Any, extensions: dict[str, Any] | None = None) -> None:
        self._inner = inner
        self._library = library
        given = {} if extensions is None else extensions
        self._extensions = {name: value for name, value in given.items() if name != EXTENSION}
        self._extensions.setdefault("timeout", TIMEOUT)
        self._not_sent = tuple(getattr(library, name) for name in _NOT_SENT)

    def _request(self, effect: Send) -> Any:
        where = effect.target
        return self._library.Request(
            effect.method,
            self._library.URL(where.url) if where.query else _url(self._library, where.url),
            headers=effect.headers,
            content=effect.body or None,
            extensions=dict(self._extensions),
        )

    def _failed(self, error: Exception) -> NotSent | Lost:
        return NotSent(error) if isinstance(error, self._not_sent) else Lost(error)

    def finished(self, outcome: Outcome) -> Any:
        """The library's own response, with what the protocol knows of the call."""
        reply = outcome.reply
        native = reply.native
        if native is None:
            native = self._library.Response(reply.status, headers=reply.headers, content=reply.body)
        native.extensions[EXTENSION] = outcome.info
        return native


def _reply(native: Any) -> Reply:
    headers = [(name.lower(), value) for name, value in native.headers.raw]
    return Reply(status=native.status_code, headers=headers, native=native)


class Blocking(_Sending):
    """The ``Http`` of a Client's transport."""

    def send(self, effect: Send) -> Reply:
        """See ``Http.send``."""
        try:
            return _reply(self._inner.handle_request(self._request(effect)))
        except self._library.TransportError as error:
            raise self._failed(error) from error

    def read(self, reply: Reply, limit: int) -> bytes:
        """See ``Http.read``. An answer that breaks off has said what it said."""
        native, read = reply.native, b""
        try:
            for chunk in native.iter_bytes():
                read += chunk
                if len(read) > max(limit, DRAINED_BYTES):
                    break
        except self._library.RequestError:
            pass
        finally:
            native.close()
        return read

    def keep(self, native: Any) -> None:
        """See ``Http.keep``."""
        if not native.is_closed:
            try:
                native.read()
            except self._library.RequestError:
                native.close()

    def drop(self, reply: Reply | None) -> None:
        """See ``Http.drop``."""
        if reply is not None:
            reply.native.close()


class Awaiting(_Sending):
    """The ``AsyncHttp`` of an AsyncClient's transport."""

    async def send(self, effect: Send) -> Reply:
        """See ``Http.send``."""
        try:
            return _reply(await self._inner.handle_async_request(self._request(effect)))
        except self._library.TransportError as error:
            raise self._failed(error) from error

    async def read(self, reply: Reply, limit: int) -> bytes:
        """See ``Http.read``. An answer that breaks off has said what it said."""
        native, read = reply.native, b""
        try:
            async for chunk in native.aiter_bytes():
                read += chunk
                if len(read) > max(limit, DRAINED_BYTES):
                    break
        except self._library.RequestError:
            pass
        finally:
            await native.aclose()
        return read

    async def keep(self, native: Any) -> None:
        """See ``Http.keep``."""
        if not native.is_closed:
            try:
                await native.aread()
            except self._library.RequestError:
                await native.aclose()

    async def drop(self, reply: Reply | None) -> None:
        """See ``Http.drop``."""
        if reply is not None:
            await reply.native.aclose()
