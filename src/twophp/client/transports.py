"""The transports for httpx and httpx2: one class for both, because the request says which library made it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from twophp.client import redirects
from twophp.client.driver import AsyncMachinery, SyncRuntime
from twophp.client.libraries import AWAITING, BLOCKING, Body, Sending, asked_by, is_ours
from twophp.client.reconciler import MOST, Progress, Reconciliation
from twophp.client.settings import Options, settings_of
from twophp.client.streams import any_library, installed, library_of
from twophp.core.settings import knows_its_settings

if TYPE_CHECKING:
    import httpx
    import httpx2

    class SyncBase(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        """What lets it into either library's Client."""

    class AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """What lets it into either library's AsyncClient."""

else:
    SyncBase = type("SyncBase", tuple(library.BaseTransport for library in installed()), {})
    AsyncBase = type("AsyncBase", tuple(library.AsyncBaseTransport for library in installed()), {})


class TwoPhaseTransport(SyncBase):
    """For ``httpx.Client`` and ``httpx2.Client``: a POST, PUT, PATCH or DELETE does both phases, anything else passes.

    ``transport`` is what really sends, where the default (``HTTPTransport()`` of the library that makes the requests)
    will not do: for certificates, limits, HTTP/2. It is closed with this one. Every other setting is in
    docs/reference/client.md.
    """

    @knows_its_settings(Options)
    def __init__(
        self, *, ledger: str | None = None, source: str | None = None, transport: Any = None, **options: Unpack[Options]
    ) -> None:
        self._given = transport
        self._inner: dict[tuple[int, Any], Any] = {}
        self._settings = settings_of(ledger, source, options)
        self._machinery = SyncRuntime(self._settings, self._own)  # Last: it reconciles at once, in a thread of its own.

    def handle_request(self, request: Any) -> Any:
        """See httpx: one request, one response. Raises PhaseError where the protocol came to no answer."""
        library = library_of(request)
        inner = self._inner_of(library)
        if not is_ours(request):
            return inner.handle_request(request)
        settings = self._settings
        hop = redirects.arrive(request.extensions, request)
        body = Body(settings.max_body_bytes)
        for chunk in request.stream:
            body.add(chunk)
        http = Sending(BLOCKING, inner, library, settings.max_body_bytes, request.extensions)
        asked = asked_by(request, body.content, settings, hop)
        outcome = self._machinery.call(asked, http)
        redirects.leave(request.extensions, request, asked, outcome)
        return http.finished(outcome)

    def reconcile(self, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Take every open call without a driver to its outcome, once; the transport also does so at intervals."""
        return self._machinery.reconcile(limit=limit, progress=progress)

    def close(self) -> None:
        """Stop reconciling, give the ledger back and close the connections."""
        self._machinery.close()
        for inner in (self._given, *_own_process(self._inner)):
            if inner is not None:
                inner.close()

    def __enter__(self) -> Self:
        if self._given is not None:
            self._given.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._machinery.close()
        for inner in _own_process(self._inner):
            inner.close()
        if self._given is not None:
            self._given.__exit__(exc_type, exc_value, traceback)

    def _inner_of(self, library: Any) -> Any:
        if self._given is not None:
            return self._given
        pid = os.getpid()
        if (pid, library) not in self._inner:  # The connections of a parent are not to be used by its child.
            self._inner.setdefault((pid, library), library.HTTPTransport())
        return self._inner[pid, library]

    def _own(self) -> Sending:
        """What the reconciler sends with: no caller asked for its requests."""
        library = _library_behind(self._given, self._inner)
        return Sending(BLOCKING, self._inner_of(library), library, self._settings.max_body_bytes)


class AsyncTwoPhaseTransport(AsyncBase):
    """For ``httpx.AsyncClient`` and ``httpx2.AsyncClient``; see TwoPhaseTransport.

    It belongs to one asyncio event loop. The ledger is opened by ``async with``, or by the first mutation.
    """

    @knows_its_settings(Options)
    def __init__(
        self, *, ledger: str | None = None, source: str | None = None, transport: Any = None, **options: Unpack[Options]
    ) -> None:
        self._given = transport
        self._inner: dict[tuple[int, Any], Any] = {}
        self._machinery = AsyncMachinery(settings_of(ledger, source, options))

    async def handle_async_request(self, request: Any) -> Any:
        """See httpx: one request, one response. Raises PhaseError where the protocol came to no answer."""
        library = library_of(request)
        inner = self._inner_of(library)
        if not is_ours(request):
            return await inner.handle_async_request(request)
        settings = self._machinery.settings
        hop = redirects.arrive(request.extensions, request)
        body = Body(settings.max_body_bytes)
        async for chunk in request.stream:
            body.add(chunk)
        http = Sending(AWAITING, inner, library, settings.max_body_bytes, request.extensions)
        asked = asked_by(request, body.content, settings, hop)
        outcome = await self._machinery.call(asked, http, self._own)
        redirects.leave(request.extensions, request, asked, outcome)
        return http.finished(outcome)

    async def reconcile(self, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Take every open call without a driver to its outcome, once; the transport also does so at intervals."""
        return await self._machinery.reconcile(self._own, limit=limit, progress=progress)

    async def aclose(self) -> None:
        """Stop reconciling, give the ledger back and close the connections."""
        await self._machinery.close()
        for inner in (self._given, *_own_process(self._inner)):
            if inner is not None:
                await inner.aclose()

    async def __aenter__(self) -> Self:
        await self._machinery.open(self._own)
        if self._given is not None:
            await self._given.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._machinery.close()
        for inner in _own_process(self._inner):
            await inner.aclose()
        if self._given is not None:
            await self._given.__aexit__(exc_type, exc_value, traceback)

    def _inner_of(self, library: Any) -> Any:
        if self._given is not None:
            return self._given
        pid = os.getpid()
        if (pid, library) not in self._inner:
            self._inner.setdefault((pid, library), library.AsyncHTTPTransport())
        return self._inner[pid, library]

    def _own(self) -> Sending:
        library = _library_behind(self._given, self._inner)
        return Sending(AWAITING, self._inner_of(library), library, self._machinery.settings.max_body_bytes)


def _own_process(used: dict[tuple[int, Any], Any]) -> list[Any]:
    return [inner for (pid, _library), inner in used.items() if pid == os.getpid()]


def _library_behind(given: Any, used: dict[tuple[int, Any], Any]) -> Any:
    """Which of the two to speak when no request tells: the given transport's, or the one that was used first."""
    for library in installed():
        if isinstance(given, (library.BaseTransport, library.AsyncBaseTransport)):
            return library
    return next((library for _pid, library in used), None) or any_library()
