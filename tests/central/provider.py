"""An identity provider on loopback: discovery, keys, authorization codes and tokens, as OpenID Connect has them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.asgi_frameworks.serving import served
from twophp.stores.clock import system_clock

AUDIENCE = "central"
CLIENT = "central-page"


class Provider:
    """An identity provider that signs any claims."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys = [ECKey.generate_key("P-256", {"kid": "first"})]
        self.codes: dict[str, dict[str, Any]] = {}
        self.who: dict[str, Any] = {"sub": "alice", "roles": ["audit"]}
        self.asked_for_keys = 0
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    def rotate(self) -> None:
        """A new key signs from now on, and the old one is forgotten."""
        self.keys = [ECKey.generate_key("P-256", {"kid": f"key-{len(self.codes)}-{id(self)}"})]

    def sign(self, audience: str = AUDIENCE, **claims: Any) -> str:
        now_s = system_clock() // 1000
        usual = {"iss": self.issuer, "aud": audience, "sub": "alice", "iat": now_s, "exp": now_s + 300}
        key = self.keys[0]
        header = {"alg": "ES256", "kid": key.kid}
        return jwt.encode(header, usual | claims, key, algorithms=["ES256"])

    async def _discovery(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
            }
        )

    async def _keys(self, _request: Request) -> Response:
        self.asked_for_keys += 1
        return JSONResponse({"keys": [dict(key.as_dict(private=False)) for key in self.keys]})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 303)

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or proof != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse({"id_token": self.sign(CLIENT, nonce=asked["nonce"], **self.who)})


@contextmanager
def provider() -> Iterator[Provider]:
    made = Provider()
    with served(made.app) as running:
        made.issuer = running.url
        yield made
