"""OpenID Connect: bearer tokens of an identity provider for the API, and its login for the page.

Signatures, issuer, audience and expiry are judged by ``engine.bearer``, under an allow-list of algorithms; this module
brings the provider's keys and maps claims to roles. A claim value that maps to no role gives none (default deny).

Keys are fetched when they are first needed, again when a token names one that is not known, and now and then; a
provider that is away leaves the keys that were fetched last in force. Without any keys the answer is ``no_provider``,
and not that the caller is a stranger. The login is the authorization code flow with
PKCE (RFC 7636): state, nonce and verifier are kept here, for ten minutes, and used once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from starlette.requests import Request

from twophp.central.api.problems import ApiProblem
from twophp.central.auth.access import CHALLENGE, OIDC, Principal
from twophp.central.ports import Role
from twophp.core.errors import ConfigError, DeliveryFailed, Unauthenticated
from twophp.core.identity import principal_digest
from twophp.core.records import Instant
from twophp.delivery.fetch import fetch, read_origin
from twophp.identity.bearer import KEY_TYPES, BearerJwt
from twophp.identity.head import Head, Headers
from twophp.ports import Clock, MintId
from twophp.stores.clock import mint_uuid, wall_clock

log: Final = logging.getLogger("twophp.central")

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
REFRESH_MS: Final = 3_600_000
SOONEST_MS: Final = 30_000
"""How long keys are not fetched again, however many unknown keys tokens name."""
LOGIN_MS: Final = 600_000
MOST_LOGINS: Final = 1_000
MAX_DOCUMENT_BYTES: Final = 256 * 1024
TIMEOUT_S: Final = 5.0
OK: Final = 200


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says of an identity provider."""

    issuer: str
    audience: str
    roles_claim: str = "roles"
    name_claim: str = "sub"
    roles: Mapping[str, Role] = {}  # From a claim's value to a role; without an entry, a role's own name is the value.
    algorithms: Collection[str] = ALGORITHMS
    client_id: str | None = None  # With one, the page offers the login; the audience is then the client's id as well.
    client_secret: str | None = None
    allow_insecure: bool = False

    def __repr__(self) -> str:
        return f"Provider({self.issuer!r})"


class _Discovered(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Login(msgspec.Struct, frozen=True):
    nonce: str
    verifier: str
    redirect_uri: str
    ends_at: Instant
    after: str


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str


class Oidc:
    """One provider. Fetches what it needs by itself."""

    def __init__(self, provider: Provider, *, clock: Clock = wall_clock, mint: MintId = mint_uuid) -> None:
        self.provider = provider
        self._clock = clock
        self._mint = mint
        self._keys: Mapping[str, Any] | None = None
        self._fetched_at: Instant | None = None
        self._fetching = asyncio.Lock()
        self._found: _Discovered | None = None
        self._logins: OrderedDict[str, _Login] = OrderedDict()
        self._api = self._bearer(provider.audience)
        self._page = None if provider.client_id is None else self._bearer(provider.client_id)
        read_origin(provider.issuer, allow_insecure=provider.allow_insecure)

    def _bearer(self, audience: str) -> BearerJwt:
        return BearerJwt(
            keys=lambda: self._keys or {},
            algorithms=self.provider.algorithms,
            issuer=self.provider.issuer,
            audience=audience,
            tenant_claim=None,
            leeway_s=30,
        )

    @property
    def has_login(self) -> bool:
        """Whether the page can send people there."""
        return self._page is not None

    async def principal(self, request: Request, received_at: Instant) -> Principal:
        """Whose token the request carries; raises Unauthenticated."""
        head = Head(
            method=request.method,
            path=request.url.path,
            headers=Headers(request.scope["headers"]),
            scheme=request.url.scheme,
            received_at=received_at,
        )
        return self._known(await self._claims(self._api, head))

    async def _claims(self, bearer: BearerJwt, head: Head) -> Mapping[str, Any]:
        await self._refresh(SOONEST_MS if self._keys is None else REFRESH_MS)
        before = self._keys
        try:
            return self._verified(bearer, head)
        except Unauthenticated:
            await self._refresh(SOONEST_MS)  # The token may name a key that is newer than ours.
            if self._keys is before:
                raise
            return self._verified(bearer, head)

    def _verified(self, bearer: BearerJwt, head: Head) -> Mapping[str, Any]:
        if self._keys is None:
            raise ApiProblem("no_provider")
        try:
            return bearer.claims(head)
        except ConfigError as error:
            log.warning("the identity provider's keys cannot be used: %s", error)
            raise ApiProblem("no_provider") from error

    def _known(self, claims: Mapping[str, Any]) -> Principal:
        said = claims.get(self.provider.roles_claim, ())
        values = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
        roles = frozenset(role for value in values if (role := self._role(value)) is not None)
        if Role.SERVICE in roles and len(roles) > 1:
            raise Unauthenticated("a service has no other role", challenge=CHALLENGE)
        name = claims.get(self.provider.name_claim)
        if not isinstance(name, str) or not name.isprintable() or not name or len(name) > 256:  # noqa: PLR2004
            raise Unauthenticated("the token names no principal", challenge=CHALLENGE)
        return Principal(name=name, roles=roles, credential=OIDC + _subject(claims))

    def _role(self, value: object) -> Role | None:
        if not isinstance(value, str):
            return None
        if self.provider.roles:
            return self.provider.roles.get(value)
        return Role(value) if value in set(Role) else None

    async def _refresh(self, older_than_ms: int) -> None:
        """Fetch the keys if ours are older than that. A fetch that fails leaves them as they are.

        Concurrent callers wait for a fetch that they need. They do not wait for one that is only due at intervals.
        """
        if older_than_ms == REFRESH_MS and self._is_young(REFRESH_MS):
            return
        async with self._fetching:
            if self._is_young(older_than_ms):
                return
            self._fetched_at = self._clock()
            try:
                found = await self._discover()
                document = msgspec.json.decode(await self._get(found.jwks_uri), type=_KeySet)
            except (ApiProblem, DeliveryFailed, ConfigError, msgspec.DecodeError) as error:
                log.warning("the identity provider's keys could not be fetched: %s", error)
                return
            # What others sign with may be of a kind that we do not know (RFC 7517 §5).
            kinds = {KEY_TYPES[algorithm] for algorithm in self.provider.algorithms}
            self._keys = {"keys": [key for key in document.keys if key.get("kty") in kinds]}

    def _is_young(self, ms: int) -> bool:
        return self._fetched_at is not None and self._clock() - self._fetched_at < ms

    async def _discover(self) -> _Discovered:
        """The provider's own account of itself, read once; raises ApiProblem."""
        if self._found is None:
            try:
                document = await self._get(self.provider.issuer.rstrip("/") + "/.well-known/openid-configuration")
                found = msgspec.json.decode(document, type=_Discovered)
            except (DeliveryFailed, ConfigError, msgspec.DecodeError) as error:
                raise ApiProblem("no_provider") from error
            if found.issuer != self.provider.issuer:  # OpenID Connect Discovery §4.3
                raise ApiProblem("no_provider", "the provider's document is of another issuer")
            self._found = found
        return self._found

    async def _get(self, url: str, form: Mapping[str, str] | None = None) -> bytes:
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        answer = await fetch(
            read_origin(base, allow_insecure=self.provider.allow_insecure),
            "GET" if form is None else "POST",
            path,
            headers={} if form is None else {"Content-Type": "application/x-www-form-urlencoded"},
            body=b"" if form is None else urlencode(form).encode(),
            timeout_s=TIMEOUT_S,
            most=MAX_DOCUMENT_BYTES,
        )
        if answer.status != OK:
            raise DeliveryFailed(f"The provider answered {answer.status}.", reason="status", status=answer.status)
        return answer.body

    # The page's login.

    async def begin_login(self, redirect_uri: str, after: str = "/") -> tuple[str, str]:
        """Where to send a browser, and the state that must come back with it, kept in a cookie as well.

        ``after`` is the page it asked for; it is kept here, so the provider does not learn of it.
        """
        assert self.provider.client_id is not None
        found = await self._discover()
        state, nonce, verifier = self._mint(), self._mint(), self._mint() + self._mint()
        ends_at = self._clock() + LOGIN_MS
        self._logins[state] = _Login(
            nonce=nonce, verifier=verifier, redirect_uri=redirect_uri, ends_at=ends_at, after=after
        )
        while len(self._logins) > MOST_LOGINS:
            self._logins.popitem(last=False)
        asked = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid profile",
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in found.authorization_endpoint else "?"
        return found.authorization_endpoint + joint + urlencode(asked, quote_via=quote), state

    async def finish_login(self, state: str, code: str) -> tuple[Principal, Instant, str]:
        """The principal, until when the provider vouches for it, and the page it asked for; raises Unauthenticated."""
        login = self._logins.pop(state, None)
        if login is None or login.ends_at <= self._clock() or self._page is None:
            raise Unauthenticated("the login was not begun here, or too long ago")
        assert self.provider.client_id is not None
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect_uri,
            "client_id": self.provider.client_id,
            "code_verifier": login.verifier,
        }
        if self.provider.client_secret:
            form["client_secret"] = self.provider.client_secret
        found = await self._discover()
        try:
            tokens = msgspec.json.decode(await self._get(found.token_endpoint, form), type=_Tokens)
        except (DeliveryFailed, ConfigError, msgspec.DecodeError) as error:
            raise Unauthenticated("the provider did not vouch for the login") from error
        claims = await self._claims(self._page, _bearing(tokens.id_token, self._clock()))
        if claims.get("nonce") != login.nonce:
            raise Unauthenticated("the provider's token is for another login")
        return self._known(claims), int(claims["exp"]) * 1000, login.after


def _bearing(token: str, now: Instant) -> Head:
    headers = Headers([(b"authorization", b"Bearer " + token.encode("ascii", "replace"))])
    return Head(method="GET", path="/", headers=headers, scheme="https", received_at=now)


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _subject(claims: Mapping[str, Any]) -> str:
    """The stable identity behind a token: names may change, issuer and subject do not."""
    return principal_digest("oidc", claims["iss"], claims["sub"], "")
