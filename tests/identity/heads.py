"""Heads as an edge would build them."""

from __future__ import annotations

from typing import Any

from twophp.identity.head import Head, Headers

NOW = 1_800_000_000_000


def head(*lines: tuple[str, str], **facts: Any) -> Head:
    """A request at NOW with these header lines."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
    known: dict[str, Any] = {"method": "POST", "path": "/orders", "scheme": "https", "received_at": NOW}
    return Head(headers=Headers(raw), **(known | facts))
