"""Keys and tokens as an authorisation server would make them, and a few that it would not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from tests.identity.heads import NOW, head
from twophp.identity.head import Head

NOW_S = NOW // 1000
ISSUER = "https://login.example"
AUDIENCE = "orders"
SECRET = b"a secret that is long enough: 32 bytes and more"

CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 300, "iat": NOW_S - 10}


@cache
def rsa(kid: str = "r1") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@cache
def ec(kid: str = "e1") -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})


def jwks(*keys: Key) -> dict[str, Any]:
    return {"keys": [dict(key.as_dict(private=False)) for key in keys]}


def pem(key: RSAKey | ECKey) -> bytes:
    return key.as_pem(private=False)


def sign(algorithm: str, key: Key, *, kid: str | None = None, **changes: Any) -> str:
    """A token with the usual claims; a claim that is changed to None is left out."""
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    header = {"alg": algorithm} | ({"kid": kid} if kid else {})
    return jwt.encode(header, claims, key, algorithms=[algorithm])


def sign_secret(**changes: Any) -> str:
    return sign("HS256", OctKey.import_key(SECRET), **changes)


def forge(header: Any, claims: Any, secret: bytes | None = None) -> str:
    """A token put together by hand, with no library to object; unsigned without a secret."""
    signed = f"{part(header)}.{part(claims)}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest() if secret is not None else b""
    return f"{signed}.{encoded(signature)}"


def part(value: Any) -> str:
    return encoded(json.dumps(value).encode())


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def bearing(token: str, **facts: Any) -> Head:
    return head(("Authorization", f"Bearer {token}"), **facts)
