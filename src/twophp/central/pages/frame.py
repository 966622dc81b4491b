"""What every page has in common: who looks, what they may see, the headers, and what is said when something is wrong.

A page is a function from a ``Visit`` to a response. ``reading`` and ``changing`` make endpoints of it: the first for
visitors who may read, the second for forms, which carry the session's own CSRF token or are refused.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from twophp.central.api.problems import INTERNAL, PROBLEMS, ApiProblem, Problem
from twophp.central.api.state import Central, central_of
from twophp.central.auth.access import Principal, Session, csrf_holds, require
from twophp.central.pages.rendering import render, url
from twophp.central.ports import READERS, Role
from twophp.core.errors import Refused, StoreError, TwoPHPError, Unauthenticated
from twophp.core.records import Instant

log: Final = logging.getLogger("twophp.central")

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CSP,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
THEME_COOKIE: Final = "twophp_theme"
THEMES: Final = ("light", "dark")
MOST_FORM_BYTES: Final = 16_384
MOST_FIELDS: Final = 50
MOST_QUERY_CHARS: Final = 500
WORTH_PACKING_BYTES: Final = 1_000

WRONG: Final[Mapping[int, tuple[str, str]]] = {
    400: ("That cannot be answered", "Something in the address, or in the form, is not as it should be."),
    401: ("Log in first", "This request came without a login that is known here."),
    403: ("Not for you", "None of your roles allows this."),
    404: ("Nothing here", "There is no page under this address. It may have been cut off on its way."),
    405: ("Not like that", "This address is not asked in this way."),
    422: ("That cannot be answered", "A part of the address is missing, malformed or unknown."),
    500: ("Something went wrong here", "It is in the log of the central ledger, with all that is known of it."),
    502: ("Another server does not answer", "The identity provider or the service did not answer as it should."),
    503: ("The database does not answer", "Try again in a moment."),
}
"""What is said of a status: a title, and a sentence where nothing better is known."""

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Routes: TypeAlias = tuple[tuple[str, Endpoint, tuple[str, ...]], ...]


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one page."""

    request: Request
    central: Central
    principal: Principal
    session: Session | None  # None where a bearer credential looks at a page.
    now: Instant

    @property
    def is_operator(self) -> bool:
        """Whether they may pull and manage tokens (A-63)."""
        return self.principal.may({Role.OPERATIONS})

    def asked(self, name: str) -> str:
        """A parameter of the address, empty if absent, never longer than an id may be."""
        return self.request.query_params.get(name, "").strip()[:MOST_QUERY_CHARS]

    def page(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """The page, in its frame."""
        return html(self.request, template, self._frame() | {"status": status} | context, status)

    def _frame(self) -> dict[str, Any]:
        return {
            "visit": self,
            "now": self.now,
            "csrf": self.session.csrf if self.session is not None else "",
            "said": self.asked("said"),
            "said_number": self.asked("n"),
        }


Page: TypeAlias = Callable[[Visit], Awaitable[Response]]
Form: TypeAlias = Callable[[Visit, Mapping[str, list[str]]], Awaitable[Response]]


def reading(page: Page, roles: Collection[Role] = READERS) -> Endpoint:
    """An endpoint for GET, open to these roles."""

    async def endpoint(request: Request) -> Response:
        return await _guarded(request, roles, page)

    return endpoint


def changing(form: Form, roles: Collection[Role]) -> Endpoint:
    """An endpoint for POST, open to these roles, and only from one of our own forms."""

    async def submitted(visit: Visit) -> Response:
        fields = await fields_of(visit.request)
        if visit.session is None or not csrf_holds(visit.session, first(fields, "csrf")):
            raise Refused("the form is not one of this session's; open the page again", code="forbidden")
        return await form(visit, fields)

    async def endpoint(request: Request) -> Response:
        return await _guarded(request, roles, submitted)

    return endpoint


async def _guarded(request: Request, roles: Collection[Role], page: Page) -> Response:
    central = central_of(request)
    try:
        principal = await central.access.resolve_principal(request)
        require(principal, roles)
        session = central.access.session_of(request)
        return await page(
            Visit(request=request, central=central, principal=principal, session=session, now=central.clock())
        )
    except Unauthenticated:
        return away_to_login(request)
    except TwoPHPError as error:
        return wrong(request, error)


def away_to_login(request: Request) -> Response:
    """Log in, then come back here.

    A browser that follows a link from another site sends no cookie: that is what ``SameSite=Strict`` means.
    It is sent here once more, from here; then the cookie comes along.
    """
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return html(request, "again.html", {"here": here})
    is_reading = request.method in {"GET", "HEAD"}
    return to(url("/login", next=here if is_reading and here != "/" else None))


def to(address: str) -> Response:
    """Look there instead."""
    return RedirectResponse(address, 303, HEADERS)


def wrong(request: Request, error: TwoPHPError) -> Response:
    """What went wrong, as a page."""
    match error:
        case Refused(code="forbidden"):
            status, told = 403, error.message
        case StoreError():
            log.warning("a page could not be made: %s", error)
            status, told = 503, ""  # A page says nothing about the database.
        case ApiProblem(code="no_provider"):
            status, told = PROBLEMS[error.code].status, ""
        case _:
            status, told = 400, error.message
    return _wrong(request, status, told)


def page_of_problem(request: Request, answer: Response) -> Response:
    """A refusal of ours, as a page for a browser."""
    problem = msgspec.json.decode(bytes(answer.body), type=Problem)
    page = _wrong(request, problem.status, problem.detail)
    for name in ("retry-after", "www-authenticate"):
        if name in answer.headers:
            page.headers[name] = answer.headers[name]
    return page


def _wrong(request: Request, status: int, told: str) -> Response:
    title, usual = WRONG.get(status, WRONG[400] if status < INTERNAL else WRONG[INTERNAL])
    return html(request, "wrong.html", {"title": title, "told": told or usual, "status": status}, status)


def not_found(visit: Visit, told: str) -> Response:
    """There is nothing under this address."""
    return visit.page("wrong.html", status=404, title="Nothing here", told=told)


def html(request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
    """A template as a response, packed where the browser can unpack it."""
    theme = request.cookies.get(THEME_COOKIE, "")
    common: dict[str, Any] = {
        "visit": None,
        "path": request.url.path,
        "theme": theme if theme in THEMES else "",
        "said": "",
    }
    body = render(template, common | dict(context)).encode("utf-8", "replace")
    headers = dict(HEADERS) | {"Vary": "Cookie, Accept-Encoding"}
    if len(body) > WORTH_PACKING_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return HTMLResponse(body, status, headers)


async def fields_of(request: Request) -> dict[str, list[str]]:
    """A form's fields; raises Refused if there is more than any form of ours sends."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise Refused("the form is too large", code="too_large")
    try:
        return parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refused("the form cannot be read", code="bad_form") from None


def first(fields: Mapping[str, list[str]], name: str) -> str:
    """A field's value, empty if absent."""
    return fields.get(name, [""])[0].strip()


def is_https(request: Request) -> bool:
    """Whether cookies may be kept for secure connections."""
    return request.url.scheme == "https"
