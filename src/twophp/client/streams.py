"""The body of an answer as a stream of httpx or httpx2: begun already, or watched while the caller reads it.

And which of the two are here, and which of them made a request.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from twophp.client.exchange import CallInfo
from twophp.client.held import broken_off
from twophp.core.errors import ConfigError

NAMES: Final = ("httpx2", "httpx")


def library_of(request: Any) -> Any:
    """The library that made this request."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def installed() -> list[Any]:
    """The installed ones of the two libraries, the newer first."""
    found = []
    for name in NAMES:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    return found


def any_library() -> Any:
    """One of the two, for what is sent before the first request of a caller."""
    for library in installed():
        return library
    raise ConfigError('neither httpx2 nor httpx is installed: pip install "twophp[httpx2]"', code="no_http_library")


if TYPE_CHECKING:
    import httpx
    import httpx2

    class SyncBase(httpx.SyncByteStream, httpx2.SyncByteStream):
        """What either library's Client reads."""

    class AsyncBase(httpx.AsyncByteStream, httpx2.AsyncByteStream):
        """What either library's AsyncClient reads."""

else:
    SyncBase = type("SyncBase", tuple(library.SyncByteStream for library in installed()), {})
    AsyncBase = type("AsyncBase", tuple(library.AsyncByteStream for library in installed()), {})


class Checked:
    """Lets the pieces of a body through that the library can decode, as they are. Raises what the library raises."""

    def __init__(self, library: Any, encoding: str | None) -> None:
        self._library = library
        self._encoding = encoding

    def blocking(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Piece by piece."""
        if self._encoding is None:
            yield from pieces
            return
        seen: list[bytes] = []

        def noted() -> Iterator[bytes]:
            for piece in pieces:
                seen.append(piece)
                yield piece

        for _decoded in self._response(noted()).iter_bytes():
            yield from seen
            seen.clear()
        yield from seen

    async def awaiting(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same for the other colour."""
        if self._encoding is None:
            async for piece in pieces:
                yield piece
            return
        seen: list[bytes] = []

        async def noted() -> AsyncIterator[bytes]:
            async for piece in pieces:
                seen.append(piece)
                yield piece

        async for _decoded in self._response(noted()).aiter_bytes():
            for piece in seen:
                yield piece
            seen.clear()
        for piece in seen:
            yield piece

    def _response(self, pieces: Any) -> Any:
        return self._library.Response(200, headers={"content-encoding": self._encoding}, content=pieces)


class Blocked(SyncBase):
    """A stream of which the beginning has been read."""

    def __init__(self, stream: Any, ahead: list[bytes], rest: Iterator[bytes]) -> None:
        self._stream, self._ahead, self._rest = stream, ahead, rest

    def __iter__(self) -> Iterator[bytes]:
        yield from self._ahead
        self._ahead.clear()
        yield from self._rest

    def close(self) -> None:
        """See httpx."""
        self._stream.close()


class Awaited(AsyncBase):
    """A stream of which the beginning has been read."""

    def __init__(self, stream: Any, ahead: list[bytes], rest: AsyncIterator[bytes]) -> None:
        self._stream, self._ahead, self._rest = stream, ahead, rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._ahead:
            yield piece
        self._ahead.clear()
        async for piece in self._rest:
            yield piece

    async def aclose(self) -> None:
        """See httpx."""
        await self._stream.aclose()


class BlockedGuard(SyncBase):
    """A stream whose reader receives a PhaseError if it breaks off."""

    def __init__(self, stream: Any, checked: Checked, breaks: tuple[type[Exception], ...], info: CallInfo) -> None:
        self._stream, self._checked, self._breaks, self._info = stream, checked, breaks, info

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._checked.blocking(iter(self._stream))
        except self._breaks as error:
            raise broken_off(self._info) from error

    def close(self) -> None:
        """See httpx."""
        self._stream.close()


class AwaitedGuard(AsyncBase):
    """A stream whose reader receives a PhaseError if it breaks off."""

    def __init__(self, stream: Any, checked: Checked, breaks: tuple[type[Exception], ...], info: CallInfo) -> None:
        self._stream, self._checked, self._breaks, self._info = stream, checked, breaks, info

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._checked.awaiting(aiter(self._stream)):
                yield piece
        except self._breaks as error:
            raise broken_off(self._info) from error

    async def aclose(self) -> None:
        """See httpx."""
        await self._stream.aclose()
