"""Who asks, and what they may do (draft §13.5, A-63). Default deny: a principal may do only what a role allows.

A credential is an API token, or a signed JSON Web Token of an identity provider (``oidc``). A token's secret is drawn
at random and as long as a key, so a plain hash of it is enough: there is nothing to guess, and nothing to find in the
database. Every request looks its token up again, so a revocation holds from the next request on, in sessions too.

A session belongs to a page: a cookie that stands for a credential. Sessions are kept in memory: a restart may ask
for a new login, and a stolen database then holds none. Cookies are good for reading only; what
changes something needs a bearer credential, or the page's own check of ``Session.csrf``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request

from twophp.central.ports import Role, Token
from twophp.central.stores.store import CentralStore
from twophp.core.errors import Refused, Unauthenticated
from twophp.core.records import Instant
from twophp.ports import Clock, MintId
from twophp.stores.clock import mint_uuid, wall_clock

if TYPE_CHECKING:
    from twophp.central.auth.oidc import Oidc

SECRET_PREFIX: Final = "tphp_"  # noqa: S105 - So that a scanner for leaked secrets recognises one.
SECRET_TAG: Final = b"twophp:central-token:1"
CHALLENGE: Final = "Bearer"
COOKIE: Final = "twophp_session"
OIDC: Final = "oidc:"

USED_EVERY_MS: Final = 60_000
SESSION_MS: Final = 8 * 3_600_000
MOST_SESSIONS: Final = 10_000
"""When there are more, the oldest session ends."""

_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]{1,16000})")


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised caller. ``credential`` names by what: a token's id, or ``oidc:`` and a digest."""

    name: str
    roles: frozenset[Role]
    credential: str
    service_ledger_id: str | None = None  # Whose rows it may push; set once the service has registered.

    def may(self, roles: Collection[Role]) -> bool:
        """Whether one of its roles is among these."""
        return not self.roles.isdisjoint(roles)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A login of the page. ``secret`` is the cookie's value; ``csrf`` comes with everything that changes something."""

    secret: str
    csrf: str
    expires_at: Instant
    token_hash: bytes | None = None  # Looked up again with every request ...
    principal: Principal | None = None  # ... while an identity provider's word is good until it expires.

    def __repr__(self) -> str:
        return f"Session(expires_at={self.expires_at})"  # No secret ends up in a log.


class Access:
    """Recognises who asks. One for the whole service."""

    def __init__(
        self,
        store: CentralStore,
        *,
        oidc: Oidc | None = None,
        clock: Clock = wall_clock,
        mint: MintId = mint_uuid,
    ) -> None:
        self._store = store
        self._oidc = oidc
        self._clock = clock
        self._mint = mint
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    async def resolve_principal(self, request: Request) -> Principal:
        """Who asks, by the bearer credential or else by the session cookie; raises Unauthenticated.

        It is noted on the request, where the access log finds it.
        """
        if "authorization" in request.headers:
            return await self.by_bearer(request)
        session = self.session_of(request)
        if session is None:
            raise _unknown("the request carries no credential")
        return self._noted(request, await self._of_session(session))

    async def by_bearer(self, request: Request) -> Principal:
        """Who asks, by what stands in ``Authorization`` alone; raises Unauthenticated."""
        lines = request.headers.getlist("authorization")
        found = _BEARER.fullmatch(lines[0]) if len(lines) == 1 else None
        if found is None:
            raise _unknown("the request does not carry one bearer credential")
        if self._oidc is not None and not found[1].startswith(SECRET_PREFIX):
            return self._noted(request, await self._oidc.principal(request, self._clock()))
        return self._noted(request, await self.by_token(found[1]))

    async def by_token(self, secret: str) -> Principal:
        """The principal of a token; raises Unauthenticated if it is unknown, was revoked or has expired."""
        return _principal(await self._token(hash_of(secret)))

    async def _note_use(self, token: Token, now: Instant) -> None:
        """Note the last use, once in USED_EVERY_MS at most: an operator finds unused tokens by it."""
        if now - (token.last_used_at or 0) >= USED_EVERY_MS:
            await self._store.token_used(token.token_id, now)

    async def login(self, secret: str) -> Session:
        """Begin a session with a token; raises Unauthenticated, or Refused for a service: it reads nothing."""
        token = await self._token(hash_of(secret))
        require(_principal(token), set(Role) - {Role.SERVICE})
        ends = self._clock() + SESSION_MS
        expires_at = ends if token.expires_at is None else min(ends, token.expires_at)
        return self._begin(expires_at, token_hash=hash_of(secret))

    def login_as(self, principal: Principal, expires_at: Instant) -> Session:
        """Begin a session for a principal for whom an identity provider has vouched until ``expires_at``."""
        require(principal, set(Role) - {Role.SERVICE})
        return self._begin(min(expires_at, self._clock() + SESSION_MS), principal=principal)

    def session_of(self, request: Request) -> Session | None:
        """The session that the request's cookie stands for, unless it has ended."""
        secret = request.cookies.get(COOKIE, "")
        session = self._sessions.get(hash_of(secret)) if secret else None
        return session if session is not None and self._clock() < session.expires_at else None

    def logout(self, session: Session) -> None:
        """End it. Ending twice is ending once."""
        self._sessions.pop(hash_of(session.secret), None)

    async def create_token(
        self, name: str, roles: Collection[Role], *, expires_at: Instant | None = None
    ) -> tuple[Token, str]:
        """A new token and its secret, which is not kept and cannot be had again."""
        if not roles or (Role.SERVICE in roles and len(roles) > 1):
            raise Refused("a token has one role or more, and a service's has no other", code="bad_roles")
        secret = SECRET_PREFIX + (self._mint() + self._mint()).replace("-", "")
        token = Token(
            token_id=self._mint(), name=name, roles=frozenset(roles), created_at=self._clock(), expires_at=expires_at
        )
        await self._store.add_token(token, hash_of(secret))
        return token, secret

    def _begin(
        self, expires_at: Instant, *, token_hash: bytes | None = None, principal: Principal | None = None
    ) -> Session:
        session = Session(
            secret=(self._mint() + self._mint()).replace("-", ""),
            csrf=self._mint(),
            expires_at=expires_at,
            token_hash=token_hash,
            principal=principal,
        )
        self._sessions[hash_of(session.secret)] = session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _of_session(self, session: Session) -> Principal:
        if session.token_hash is not None:
            return _principal(await self._token(session.token_hash))
        assert session.principal is not None
        return session.principal

    async def _token(self, secret_hash: bytes) -> Token:
        token, now = await self._store.token(secret_hash), self._clock()
        if token is None:
            raise _unknown("no such token")
        if token.revoked_at is not None:
            raise _unknown("the token was revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise _unknown("the token has expired")
        await self._note_use(token, now)
        return token

    def _noted(self, request: Request, principal: Principal) -> Principal:
        request.state.principal = principal
        return principal


def require(principal: Principal, roles: Collection[Role]) -> None:
    """Return if one of the principal's roles is among these, else raise Refused."""
    if not principal.may(roles):
        raise Refused("none of your roles allows this", code="forbidden")


def csrf_holds(session: Session, sent: str) -> bool:
    """Whether what came with a form is what the session was given."""
    return hmac.compare_digest(session.csrf.encode(), sent.encode("utf-8", "replace"))


def hash_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(SECRET_TAG + secret.encode("utf-8", "replace")).digest()


def _principal(token: Token) -> Principal:
    return Principal(
        name=token.name, roles=token.roles, credential=token.token_id, service_ledger_id=token.service_ledger_id
    )


def _unknown(why: str) -> Unauthenticated:
    return Unauthenticated(why, challenge=CHALLENGE)


MOST_CHARS: Final = 2_000


def own_address(address: str) -> str:
    """An address to go on to, if it is one of ours; else the first page. Never another host's."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours and "\\" not in address and len(address) <= MOST_CHARS else "/"
