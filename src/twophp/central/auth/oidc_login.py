"""``/login/oidc``: the page's login with an identity provider. There is nothing here unless a client id is set."""

from __future__ import annotations

import hmac
from typing import Final

from fastapi import FastAPI
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from twophp.central.api.problems import answer_to
from twophp.central.auth.access import COOKIE, SESSION_MS, Access, own_address
from twophp.central.auth.oidc import LOGIN_MS, Oidc
from twophp.core.errors import TwoPHPError, Unauthenticated

BEGIN: Final = "/login/oidc"
BACK: Final = "/login/oidc/back"
STATE_COOKIE: Final = "twophp_oidc"

# A redirect would still count as the provider's, and a strict cookie would stay at home: so a page of our own goes on.
_GO_ON: Final = Markup(
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><title>Logged in</title>'
    '<a href="{0}">On</a>'
)


def install(app: FastAPI, oidc: Oidc, access: Access) -> None:
    """Add the two routes."""

    async def begin(request: Request) -> Response:
        try:
            after = own_address(request.query_params.get("next", "/"))
            url, state = await oidc.begin_login(str(request.url_for("oidc_back")), after)
        except TwoPHPError as error:
            return answer_to(request, error)
        response = RedirectResponse(url, 303, {"Cache-Control": "no-store"})
        # Lax: it has to come along when the provider sends the browser back.
        response.set_cookie(
            STATE_COOKIE, state, LOGIN_MS // 1000, path=BEGIN, httponly=True, samesite="lax", secure=_is_https(request)
        )
        return response

    async def back(request: Request) -> Response:
        state, expected = request.query_params.get("state", ""), request.cookies.get(STATE_COOKIE, "")
        try:
            if not expected or not hmac.compare_digest(state.encode(), expected.encode()):
                raise Unauthenticated("the login was begun by another browser")
            principal, until, after = await oidc.finish_login(state, request.query_params.get("code", ""))
            session = access.login_as(principal, until)
        except TwoPHPError as error:
            return answer_to(request, error)
        response = HTMLResponse(_GO_ON.format(after), headers={"Cache-Control": "no-store"})
        response.delete_cookie(STATE_COOKIE, path=BEGIN)
        response.set_cookie(
            COOKIE, session.secret, SESSION_MS // 1000, httponly=True, samesite="strict", secure=_is_https(request)
        )
        return response

    app.router.add_route(BEGIN, begin, methods=["GET"], include_in_schema=False)
    app.router.add_route(BACK, back, methods=["GET"], name="oidc_back", include_in_schema=False)


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"
