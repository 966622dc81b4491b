"""Signed JSON Web Tokens, verified by joserfc: see ``identify.bearer_jwt``.

Signature, key and algorithm are judged by the library under an allow-list that the service has named. Time comes with
the request (``Head.by_wall``), so the same head is judged the same way twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet, KeySetSerialization, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from twophp.core.errors import ConfigError, Unauthenticated
from twophp.identity.head import Head
from twophp.identity.identify import Keys, Principal

KeyType: TypeAlias = Literal["oct", "RSA", "EC", "OKP"]

# The kind of key each algorithm needs; "none" is not an algorithm. joserfc refuses a key of another kind, so a public
# key can never be used as the secret of an HMAC (RFC 8725 §3.1).
KEY_TYPES: Final[dict[str, KeyType]] = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
MIN_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518 §3.2: as long as the hash, or longer.
MIN_RSA_BITS: Final = 2048  # RFC 7518 §3.3
MAX_AUTHORIZATION: Final = 16_384
CHALLENGE: Final = "Bearer"

_PART: Final = r"[A-Za-z0-9_-]+"
_BEARER: Final = re.compile(rf"[Bb][Ee][Aa][Rr][Ee][Rr] +({_PART}\.{_PART}\.{_PART})")


class BearerJwt:
    """Identifies by a token; ``claims`` is for guards that need more of the token than the identity."""

    def __init__(
        self,
        *,
        keys: Keys,
        algorithms: Collection[str],
        issuer: str,
        audience: str,
        tenant_claim: str | None,
        leeway_s: int,
    ) -> None:
        self._registry = JWSRegistry(algorithms=_checked(algorithms), strict_check_header=False)
        self._key = _key_source(keys, frozenset(algorithms))
        self._options = _options(issuer, audience, tenant_claim)
        self._tenant_claim = tenant_claim
        self._leeway_s = leeway_s

    def __call__(self, head: Head) -> Principal:
        """The identity that the token was issued to. It holds no part of the token itself (A-60)."""
        claims = self.claims(head)
        tenant = claims[self._tenant_claim] if self._tenant_claim else ""
        if not isinstance(tenant, str):
            raise _refused("invalid_tenant")
        return Principal("bearer", claims["iss"], claims["sub"], tenant)

    def claims(self, head: Head) -> Mapping[str, Any]:
        """The claims of the request's token, all of them verified; raises Unauthenticated."""
        token, key = _token(head), self._key()
        try:
            claims = jwt.decode(token, key, registry=self._registry).claims
            now_s = head.by_wall(head.received_at) // 1000
            jwt.JWTClaimsRegistry(now=now_s, leeway=self._leeway_s, **self._options).validate(claims)
        except JoseError as error:
            raise _refused(error.error) from None
        except (KeyError, RecursionError, TypeError, ValueError):  # Not even a token; joserfc lets some of these out.
            raise _refused("malformed") from None
        return claims


def _token(head: Head) -> str:
    lines = head.headers.getall("authorization")
    # Two lines, or one that a proxy has joined: which of them the next hop would believe is unknown.
    found = _BEARER.fullmatch(lines[0]) if len(lines) == 1 and len(lines[0]) <= MAX_AUTHORIZATION else None
    if found is None:
        raise Unauthenticated("the request does not carry one bearer token", challenge=CHALLENGE)
    return found[1]


def _refused(why: str) -> Unauthenticated:
    """``why`` is the library's fixed word for the rule, never its sentence, which may quote the token."""
    return Unauthenticated(f"the bearer token was refused: {why}", challenge=CHALLENGE)


def _options(issuer: str, audience: str, tenant_claim: str | None) -> dict[str, jwt.ClaimsOption]:
    if not issuer or not audience:
        # RFC 8725 §3.8, §3.9: a token for another audience, or from another issuer, is no token.
        raise ConfigError("bearer_jwt needs an issuer and an audience", code="bad_identify")
    options: dict[str, jwt.ClaimsOption] = {
        "iss": {"essential": True, "value": issuer},
        "aud": {"essential": True, "value": audience},
        "sub": {"essential": True},
        "exp": {"essential": True},
    }
    if tenant_claim is not None:
        options.setdefault(tenant_claim, {"essential": True})
    return options


def _checked(algorithms: Collection[str]) -> list[str]:
    kinds = {KEY_TYPES.get(algorithm) for algorithm in algorithms}
    if isinstance(algorithms, str) or not kinds or None in kinds:
        raise ConfigError(f"algorithms must be some of {', '.join(KEY_TYPES)}", code="bad_identify")
    if "oct" in kinds and len(kinds) > 1:
        raise ConfigError("one service does not mix secrets and public keys", code="bad_identify")
    return list(algorithms)


def _key_source(keys: Keys, algorithms: frozenset[str]) -> Callable[[], Key | KeySet]:
    """The key in force, imported once: it takes longer than verifying a token."""
    if callable(keys):
        return _Refreshed(keys, algorithms)
    key = _single(keys, algorithms) if isinstance(keys, str | bytes) else _key_set(keys, algorithms)
    return lambda: key


class _Refreshed:
    """Imports a set again when the callable returns another object than last time."""

    def __init__(self, keys: Callable[[], Mapping[str, Any]], algorithms: frozenset[str]) -> None:
        self._keys = keys
        self._algorithms = algorithms
        self._last: tuple[Mapping[str, Any], KeySet] | None = None

    def __call__(self) -> KeySet:
        keys, last = self._keys(), self._last
        if last is None or last[0] is not keys:
            # One assignment, so that threads see a set and its import together or not at all.
            self._last = last = (keys, _key_set(keys, self._algorithms))
        return last[1]


def _single(text: str | bytes, algorithms: frozenset[str]) -> Key:
    kinds = {KEY_TYPES[algorithm] for algorithm in algorithms}
    if len(kinds) > 1:
        raise ConfigError("one key serves algorithms of one kind", code="bad_key")
    try:
        key = JWKRegistry.import_key(text, kinds.pop())
    except (JoseError, ValueError):
        # Without its cause, which may quote the key.
        raise ConfigError("the key does not fit the algorithms", code="bad_key") from None
    _check_strength(key, algorithms)
    return key


def _key_set(keys: Mapping[str, Any], algorithms: frozenset[str]) -> KeySet:
    try:
        imported = KeySet.import_key_set(cast("KeySetSerialization", keys))
    except (JoseError, KeyError, TypeError, ValueError):
        raise ConfigError("the key set is not a JWK set with usable keys", code="bad_key") from None
    for key in imported:
        _check_strength(key, algorithms)
    return imported


def _check_strength(key: Key, algorithms: frozenset[str]) -> None:
    if isinstance(key, OctKey):
        least = max((MIN_SECRET_BYTES.get(algorithm, 0) for algorithm in algorithms), default=0)
        weak = len(key.raw_value) < least
    else:
        weak = isinstance(key, RSAKey) and key.raw_value.key_size < MIN_RSA_BITS
    if weak:
        raise ConfigError("the key is too short for the algorithms", code="bad_key")
