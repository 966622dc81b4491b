"""The transports for httpx and httpx2: one class for both, because the request says which library made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from twophp.client.settings import Options, Settings

if TYPE_CHECKING:
    import httpx
    import httpx2

    class SyncBase(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        """What a type checker needs to let it into either library's Client."""

    class AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """What a type checker needs to let it into either library's AsyncClient."""

else:
    SyncBase = AsyncBase = object


class TwoPhaseTransport(SyncBase):
    """For ``httpx.Client`` and ``httpx2.Client``: a POST, PUT, PATCH or DELETE does both phases."""

    def __init__(self, *, ledger: str, source: str, transport: Any = None, **options: Unpack[Options]) -> None:
        self._settings = Settings(ledger=ledger, source=source, **options)
        self._inner = transport

    def handle_request(self, request: Any) -> Any:
        """Both phases of a mutation; anything else passes."""
        raise NotImplementedError


class AsyncTwoPhaseTransport(AsyncBase):
    """For ``httpx.AsyncClient`` and ``httpx2.AsyncClient``: a POST, PUT, PATCH or DELETE does both phases."""

    def __init__(self, *, ledger: str, source: str, transport: Any = None, **options: Unpack[Options]) -> None:
        self._settings = Settings(ledger=ledger, source=source, **options)
        self._inner = transport

    async def handle_async_request(self, request: Any) -> Any:
        """Both phases of a mutation; anything else passes."""
        raise NotImplementedError
