"""The adapter for requests: ``session.mount("https://", TwoPhaseAdapter(ledger=..., source=...))``."""

from __future__ import annotations

from typing import Any, Unpack

from requests.adapters import HTTPAdapter

from twophp.client.settings import Options, Settings

__all__ = ["TwoPhaseAdapter"]


class TwoPhaseAdapter(HTTPAdapter):
    """Both phases of a POST, PUT, PATCH or DELETE; what the protocol knows of it is in ``response.twophp``."""

    def __init__(self, *, ledger: str, source: str, **options: Unpack[Options]) -> None:
        super().__init__()
        self._settings = Settings(ledger=ledger, source=source, **options)

    def send(  # type: ignore[override] - how it is sent is the library's business, and handed on as it is
        self, request: Any, *args: Any, **how: Any
    ) -> Any:
        """Both phases of a mutation; anything else passes."""
        raise NotImplementedError
