"""Redirects are the HTTP library's to follow, if its caller lets it (A-109).

The library then comes with a new request. A redirect that answered Phase 1 registered nothing, so within the origin the
call goes on under its id; another origin gets a call of its own, or none if the caller has named the call.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Any, Final

from twophp.client.exchange import Asked, Hop, Outcome
from twophp.core.errors import Advice, PhaseError
from twophp.wire.targets import Target

KEY: Final = "twophp.redirected"
_UNREGISTERED: Final = frozenset({"plain", "redirected"})


def leave(carrier: MutableMapping[str, Any], request: Any, asked: Asked, outcome: Outcome) -> None:
    """Note for the request that follows a redirect where it comes from. The library copies ``carrier`` into it."""
    is_redirect = 300 <= outcome.reply.status < 400  # noqa: PLR2004
    if is_redirect and outcome.info["mode"] in _UNREGISTERED:
        hop = Hop(
            client_correlation_id=outcome.info["client_correlation_id"],
            first_url=asked.hop.first_url if asked.hop else asked.target.url,
            origin=asked.target.origin,
        )
        carrier[KEY] = weakref.ref(request), hop


def arrive(carrier: MutableMapping[str, Any], request: Any) -> Hop | None:
    """Where a request was redirected from. A request that is sent a second time was not: it is a new call."""
    source, hop = carrier.pop(KEY, (None, None))
    return None if source is None or source() is request else hop


def within_origin(hop: Hop | None, target: Target, named: str | None) -> Hop | None:
    """The hop, unless it leaves the origin. Raises PhaseError if a named call would: its id stays where it was sent."""
    if hop is None or hop.origin == target.origin:
        return hop
    if named is not None:
        message = f"{target.resource}: the call {named} was redirected to another origin; nothing was sent there"
        raise PhaseError(message, code="redirected_away", advice=Advice.FIX, client_correlation_id=named)
    return None
