"""Which paths belong to an enrolled endpoint: its own, and that of its confirms."""

from __future__ import annotations

from typing import Final

from twophp.asgi.messages import Scope
from twophp.asgi.settings import Settings
from twophp.engine.endpoints import Endpoint
from twophp.wire.parse import asks_for_status
from twophp.wire.paths import confirmed_path

_READS: Final = frozenset({"GET", "HEAD"})


class Enrolled:
    """The paths of one service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def asks(self, scope: Scope, path: str, endpoint: Endpoint | None) -> bool:
        """Whether the request may read, register or confirm what is enrolled (A-07, A-15).

        A confirm is a POST, whatever the Phase 1 method was (A-01).
        """
        method = scope["method"]
        if method in _READS:
            return asks_for_status(scope["headers"])
        if method not in self._settings.methods:
            return method == "POST" and self._is_confirm_path(path)
        return endpoint is not None or self._is_confirm_path(path)

    def only_confirms(self, path: str, endpoint: Endpoint | None) -> bool:
        """Whether a POST there can be nothing but a confirm: a key that spells the path out makes it a resource."""
        suffix = self._settings.confirm_suffix
        named = endpoint is not None and endpoint.names(path.removesuffix("/"), suffix)
        return not named and self._is_confirm_path(path)

    def _is_confirm_path(self, path: str) -> bool:
        settings = self._settings
        match, target = settings.endpoints.match, confirmed_path(path.removesuffix("/"), settings.confirm_suffix)
        return target is not None and any(match(method, target or "/") for method in settings.methods)
