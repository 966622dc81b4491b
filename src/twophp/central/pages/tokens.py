"""API tokens, for operations alone: make one, see when each was used, revoke it. And who read what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from twophp.central.pages.frame import Routes, Visit, changing, first, reading, to
from twophp.central.pages.rendering import url
from twophp.central.ports import Role, Token
from twophp.core.errors import Refused
from twophp.core.policy import DAY_MS
from twophp.core.records import Instant

OPERATORS: Final = frozenset({Role.OPERATIONS})
LIFETIMES: Final = ((1, "1 day"), (7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "1 year"), (0, "no end"))
DEFAULT_LIFETIME: Final = 90
MOST_NAME_CHARS: Final = 100
MOST_ACCESSES: Final = 50

ROLE_WORDS: Final[Mapping[Role, str]] = {
    Role.AUDIT: "reads",
    Role.OPERATIONS: "reads, pulls, manages tokens",
    Role.COMPLIANCE: "reads",
    Role.SERVICE: "sends its own rows, reads nothing",
}


def state_of(token: Token, now: Instant) -> str:
    """``active``, ``expired`` or ``revoked``."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "active"


async def tokens(visit: Visit) -> Response:
    """The page."""
    return await _page(visit)


async def _page(visit: Visit, *, fresh: Token | None = None, secret: str = "") -> Response:
    known = await visit.central.store.tokens()
    return visit.page(
        "tokens.html",
        tokens=known,
        states={token.token_id: state_of(token, visit.now) for token in known},
        roles=ROLE_WORDS,
        lifetimes=LIFETIMES,
        lifetime=DEFAULT_LIFETIME,
        accesses=await visit.central.store.accesses(limit=MOST_ACCESSES),
        fresh=fresh,
        secret=secret,
    )


async def create(visit: Visit, fields: Mapping[str, list[str]]) -> Response:
    """Make a token and show its secret, this once."""
    name = first(fields, "name")[:MOST_NAME_CHARS]
    roles = frozenset(Role(role) for role in fields.get("role", []) if role in set(Role))
    days = first(fields, "days")
    if not name:
        raise Refused("a token needs a name", code="bad_parameter")
    if days not in {str(known) for known, _words in LIFETIMES}:
        raise Refused("a token needs one of the lifetimes that are offered", code="bad_parameter")
    expires_at = visit.now + int(days) * DAY_MS if int(days) else None
    token, secret = await visit.central.access.create_token(name, roles, expires_at=expires_at)
    return await _page(visit, fresh=token, secret=secret)


async def revoke(visit: Visit, fields: Mapping[str, list[str]]) -> Response:
    """Revoke a token; from the next request on it is unknown."""
    found = await visit.central.store.revoke_token(first(fields, "token_id"), visit.now)
    if not found:
        raise Refused("there is no such token", code="not_found")
    return to(url("/tokens", said="revoked"))


ROUTES: Final[Routes] = (
    ("/tokens", reading(tokens, OPERATORS), ("GET",)),
    ("/tokens", changing(create, OPERATORS), ("POST",)),
    ("/tokens/revoke", changing(revoke, OPERATORS), ("POST",)),
)
