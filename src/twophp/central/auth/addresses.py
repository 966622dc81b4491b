"""Addresses to go on to. They come with a request, so only the asker vouches for them."""

from __future__ import annotations

from typing import Final

MOST_CHARS: Final = 2_000


def own_address(address: str) -> str:
    """An address to go on to, if it is one of ours; else the first page. Never another host's."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours and "\\" not in address and len(address) <= MOST_CHARS else "/"
