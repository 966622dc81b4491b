"""A resource's path, and the path that confirms it (draft §5.3.1, A-01).

    /orders       ->  /orders/confirm          whatever the Phase 1 method was
    /orders/42/   ->  /orders/42/confirm       one trailing slash is dropped first
    /             ->  /confirm

Paths are raw (still percent-encoded) and have no query: that belongs to the Phase 1 intent and is not repeated.

Since a dropped slash cannot be seen in the confirm path, both sides of the comparison are brought to one form, the
*bound path*: the raw path without one trailing slash (the root becomes the empty string). Nothing else is
normalised, so two resources never share a bound path unless they share a confirm URL.
"""

from __future__ import annotations

from typing import Final

CONFIRM_SUFFIX: Final = "/confirm"


def bound_path(path: str) -> str:
    """What an intent is bound to: Phase 1 stores it, and only a confirm of the same bound path may confirm (A-01)."""
    return path.removesuffix("/")


def confirm_path(path: str, suffix: str = CONFIRM_SUFFIX) -> str:
    """Where the client confirms what it registered at ``path``."""
    return bound_path(path) + suffix


def confirmed_path(path: str, suffix: str = CONFIRM_SUFFIX) -> str | None:
    """The bound path that a confirm path names, None if it does not end in the suffix."""
    return path.removesuffix(suffix) if path.endswith(suffix) else None
