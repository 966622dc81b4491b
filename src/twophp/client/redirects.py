"""Redirects are the HTTP library's to follow, if its caller lets it (A-109).

The library then comes with a new request. A redirect that answered Phase 1 registered nothing, so within the origin the
call goes on under its id; another origin gets a call of its own, or none if the caller has named the call. A redirect
with a phase is the outcome of its call: to follow it is a new call, and none if the caller has named the first.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Any, Final

from twophp.client.exchange import CallRequest, Hop, Outcome
from twophp.core.errors import Advice, PhaseError
from twophp.wire.targets import Target

KEY: Final = "twophp.redirected"
_UNREGISTERED: Final = frozenset({"plain", "redirected"})


class _Left:
    """A note for the next request. A pickled copy, as of a response of requests, is empty: no request follows it."""

    def __init__(self, request: Any = None, hop: Hop | None = None) -> None:
        self._request = None if request is None else weakref.ref(request)
        self.hop = hop

    def is_by(self, request: Any) -> bool:
        """Whether this request left it itself."""
        return self._request is not None and self._request() is request

    def __reduce__(self) -> tuple[Any, ...]:
        return _Left, ()


def leave(carrier: MutableMapping[str, Any], request: Any, asked: CallRequest, outcome: Outcome) -> None:
    """Note for the request that follows a redirect where it comes from. The library copies ``carrier`` into it."""
    is_redirect = 300 <= outcome.reply.status < 400  # noqa: PLR2004
    if is_redirect:
        hop = Hop(
            client_correlation_id=outcome.info["client_correlation_id"],
            first_url=asked.hop.first_url if asked.hop else asked.target.url,
            origin=asked.target.origin,
            is_outcome=outcome.info["mode"] not in _UNREGISTERED,
        )
        carrier[KEY] = _Left(request, hop)


def arrive(carrier: MutableMapping[str, Any], request: Any) -> Hop | None:
    """Where a request was redirected from. A request that is sent a second time was not: that is a new call."""
    left: _Left | None = carrier.pop(KEY, None)
    return None if left is None or left.is_by(request) else left.hop


def within_origin(hop: Hop | None, target: Target, named: str | None) -> Hop | None:
    """The hop, unless a new call begins here. Raises PhaseError if the call is named: its id stays where it was."""
    if hop is None or (hop.origin == target.origin and not hop.is_outcome):
        return hop
    if named is not None:
        why = "has ended with a redirect to this URL" if hop.is_outcome else "was redirected to another origin"
        message = f"{target.resource}: the call {named} {why}; nothing was sent there"
        raise PhaseError(message, code="redirected_away", advice=Advice.FIX, client_correlation_id=named)
    return None
