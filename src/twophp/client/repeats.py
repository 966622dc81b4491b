"""A request that is made again while its outcome is unknown: it is the same call, not a second one.

A retry loop may catch everything, a PhaseError too (``tenacity.retry`` does by default), or end a call by a time limit
of its own, and then make the same request again. Under a new id it could run twice. So each task and each thread
remembers its calls. The same request, made again by the same task or thread before its call has come to an end, goes on
with the ids it had. Towards a server that may be a plain one it is not sent again at all (A-06).

A call that its caller named (``calling(client_correlation_id=...)``) is the same call in every task and thread, so it
is remembered for the whole process. Its row says how far it came, but it has none before Phase 1 was answered.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from typing import Final

import msgspec

from twophp.core.policy import SECOND_MS
from twophp.core.records import Instant

REMEMBERED_MS: Final = 300 * SECOND_MS
"""After this a request that is made again is another call: it may just be alike."""
MOST: Final = 1_024
"""Unresolved calls of one task or thread, and ..."""
MOST_ENDED: Final = 16
"""... calls that have ended, whose answers may still break off while they are read."""
MOST_NAMED: Final = 4_096


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """One call of this task or thread. ``request`` is all that makes two requests the same."""

    request: str
    client_correlation_id: str
    at: Instant  # When its caller stopped waiting for it; by the steady clock.
    has_ended: bool


# Immutable values only: tasks that are started here begin with what is known, and share nothing afterwards.
_made: Final[ContextVar[tuple[_Made, ...]]] = ContextVar("twophp_calls_made", default=())
_named: Final[dict[str, str]] = {}  # Unresolved: the request of each name; empty if only the name is known.


def left(request: str, client_correlation_id: str, now: Instant, *, has_ended: bool) -> None:
    """Remember a call whose caller has stopped waiting. ``has_ended``: the caller knows its outcome."""
    others = [one for one in _made.get() if one.request != request]
    unresolved = [one for one in others if not one.has_ended and now - one.at < REMEMBERED_MS]
    over = [one for one in others if one.has_ended]
    newest = _Made(request=request, client_correlation_id=client_correlation_id, at=now, has_ended=has_ended)
    _made.set((newest, *unresolved[: MOST - 1], *over[:MOST_ENDED]))


def made_before(request: str, now: Instant) -> str | None:
    """The id under which this task or thread made the same request a while ago, if its outcome is unknown."""
    for one in _made.get():
        if one.request == request:
            return None if one.has_ended or now - one.at >= REMEMBERED_MS else one.client_correlation_id
    return None


def left_named(request: str, client_correlation_id: str, *, has_ended: bool) -> None:
    """Remember a call that its caller named; see ``left``."""
    _named.pop(client_correlation_id, None)
    if not has_ended:
        _remember(client_correlation_id, request)


def named_before(request: str, client_correlation_id: str) -> bool:
    """Whether this process made the call of this name before, and its outcome is unknown."""
    return _named.get(client_correlation_id) in {"", request}


def broke_off(client_correlation_id: str) -> None:
    """Remember that the caller does not know the outcome after all: the answer broke off while it was read."""
    _remember(client_correlation_id, "")
    _made.set(
        tuple(
            msgspec.structs.replace(one, has_ended=False) if one.client_correlation_id == client_correlation_id else one
            for one in _made.get()
        )
    )


def _remember(name: str, request: str) -> None:
    _named[name] = request
    while len(_named) > MOST_NAMED:
        with suppress(RuntimeError):  # Another thread came between the two steps that find the oldest.
            _named.pop(next(iter(_named)), None)
