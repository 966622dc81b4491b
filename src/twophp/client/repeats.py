"""A request that is made again while nobody knows what became of it: it is the same call, not a second one.

A retry loop may catch everything, a PhaseError too (``tenacity.retry`` does by default), or end a call by a time limit
of its own, and then make the same request again. Under a new id it could run twice. So each task and each thread
remembers the calls it made last. The same request, made again by the same task or thread before its call has come to an
end, goes on with the ids it had. Towards a server that may be a plain one it is not sent again at all (A-06).

What was named by its caller (``calling(client_correlation_id=...)``) is known by its name, and not remembered here.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import msgspec

from twophp.core.policy import SECOND_MS
from twophp.core.records import Instant

REMEMBERED_MS: Final = 300 * SECOND_MS
"""After this a request that is made again is another call: it may just be alike."""
MOST: Final = 16


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """One call of this task or thread. ``owner`` is the ledger it is recorded in."""

    owner: str
    meant: str
    client_correlation_id: str
    at: Instant  # By the steady clock.
    has_ended: bool = False


# Immutable values only: tasks that are started here begin with what is known, and share nothing afterwards.
_made: Final[ContextVar[tuple[_Made, ...]]] = ContextVar("twophp_calls_made", default=())


def begun(owner: str, meant: str, client_correlation_id: str, now: Instant) -> None:
    """A call is about to be made, or is gone on with."""
    others = (one for one in _made.get() if one.client_correlation_id != client_correlation_id)
    newest = _Made(owner=owner, meant=meant, client_correlation_id=client_correlation_id, at=now)
    _made.set((newest, *others)[:MOST])


def ended(client_correlation_id: str, *, ended: bool = True) -> None:
    """Its caller knows what became of it; or, with False, does not after all: the answer broke off in its hands."""
    made = _made.get()
    if any(one.client_correlation_id == client_correlation_id and one.has_ended is not ended for one in made):
        _made.set(
            tuple(
                msgspec.structs.replace(one, has_ended=ended)
                if one.client_correlation_id == client_correlation_id
                else one
                for one in made
            )
        )


def made_before(owner: str, meant: str, now: Instant) -> str | None:
    """The id under which this task or thread made the same request a while ago, if nobody knows how that ended."""
    for one in _made.get():
        if (one.owner, one.meant) == (owner, meant):
            return None if one.has_ended or now - one.at >= REMEMBERED_MS else one.client_correlation_id
    return None
