"""Logging in with a token, logging out, and the choice between light and dark."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from twophp.central.api.state import central_of
from twophp.central.auth.access import COOKIE, SESSION_MS, Session, own_address
from twophp.central.auth.oidc_login import BEGIN
from twophp.central.pages.frame import (
    THEME_COOKIE,
    THEMES,
    Routes,
    Visit,
    changing,
    fields_of,
    first,
    html,
    is_https,
    to,
    wrong,
)
from twophp.central.pages.rendering import url
from twophp.central.ports import READERS
from twophp.core.errors import Refused, TwoPHPError, Unauthenticated
from twophp.core.policy import DAY_MS
from twophp.stores.clock import mint_uuid

FORM_COOKIE: Final = "twophp_login"
"""Before there is a session, a form is ours if it has what this cookie has: no other site can put both there."""
FORM_S: Final = 3600
THEME_S: Final = 365 * DAY_MS // 1000


async def form(request: Request) -> Response:
    """The page."""
    return _form(request, first({"next": request.query_params.getlist("next") or [""]}, "next"))


def _form(request: Request, after: str, told: str = "", status: int = 200) -> Response:
    csrf = mint_uuid()
    said = request.query_params.get("said", "")
    provider = BEGIN if any(getattr(route, "path", "") == BEGIN for route in request.app.routes) else ""
    context = {"after": own_address(after), "csrf": csrf, "told": told, "said": said, "oidc": provider}
    response = html(request, "login.html", context, status)
    _set(request, response, FORM_COOKIE, csrf, FORM_S, path="/login")
    return response


async def login(request: Request) -> Response:
    """Begin a session, or say why not, in words from which a stranger learns nothing."""
    try:
        fields = await fields_of(request)
    except TwoPHPError as error:
        return wrong(request, error)
    after, expected = own_address(first(fields, "next")), request.cookies.get(FORM_COOKIE, "")
    if not expected or not hmac.compare_digest(expected.encode(), first(fields, "csrf").encode()):
        return _form(request, after, "The form was too old. Try once more.", 403)
    try:
        session = await central_of(request).access.login(first(fields, "token"))
    except Unauthenticated:
        return _form(request, after, "No token like this is valid here. It may have expired or been revoked.", 401)
    except Refused:
        return _form(request, after, "A service's token sends rows and reads nothing, so it cannot log in here.", 403)
    except TwoPHPError as error:
        return wrong(request, error)
    return begun(request, session, to(after))


def begun(request: Request, session: Session, response: Response) -> Response:
    """Hand the session's cookie over."""
    _set(request, response, COOKIE, session.secret, SESSION_MS // 1000)
    return response


async def logout(visit: Visit, _fields: object) -> Response:
    """End the session."""
    if visit.session is not None:
        visit.central.access.logout(visit.session)
    response = to(url("/login", said="logged_out"))
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=is_https(visit.request))
    return response


async def theme(request: Request) -> Response:
    """Remember light or dark. Nothing that needs a session depends on it."""
    try:
        fields = await fields_of(request)
    except TwoPHPError as error:
        return wrong(request, error)
    response = to(own_address(first(fields, "next")))
    chosen = first(fields, "theme")
    if chosen in THEMES:
        response.set_cookie(THEME_COOKIE, chosen, max_age=THEME_S, samesite="strict", secure=is_https(request))
    return response


def _set(request: Request, response: Response, name: str, value: str, seconds: int, path: str = "/") -> None:
    response.set_cookie(
        name, value, max_age=seconds, path=path, httponly=True, samesite="strict", secure=is_https(request)
    )


ROUTES: Final[Routes] = (
    ("/login", form, ("GET",)),
    ("/login", login, ("POST",)),
    ("/logout", changing(logout, READERS), ("POST",)),
    ("/theme", theme, ("POST",)),
)
