"""Refusals of the central ledger: ``application/problem+json`` (RFC 9457) with a stable ``code``.

``PROBLEMS`` is the whole vocabulary. ``detail`` is for people and never quotes a credential.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from twophp.core.errors import StoreError, TwoPHPError, Unauthenticated, WireError

log: Final = logging.getLogger("twophp.central")

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
INTERNAL: Final = 500
API: Final = "/v1/"


class Kind(NamedTuple):
    """One line of the table."""

    status: int
    title: str


PROBLEMS: Final[dict[str, Kind]] = {
    "bad_batch": Kind(400, "The batch is not what the schema says."),
    "bad_encoding": Kind(400, "The body is not what its content encoding says."),
    "bad_cursor": Kind(400, "The cursor is not one of ours."),
    "bad_size": Kind(400, "There is no tree of that size, or no leaf of that number in it."),
    "unauthenticated": Kind(401, "A credential is needed."),
    "forbidden": Kind(403, "None of your roles allows this."),
    "other_name": Kind(403, "The credential belongs to a service of another name."),
    "unregistered": Kind(403, "The credential has not registered its service."),
    "not_found": Kind(404, "There is nothing here."),
    "method_not_allowed": Kind(405, "The method is not allowed here."),
    "too_slow": Kind(408, "The body did not arrive in time."),
    "no_pull_url": Kind(409, "The service has not said where its ledger can be pulled from."),
    "other_tree": Kind(409, "The tree does not continue the head that was signed last, so none is signed."),
    "too_large": Kind(413, "The body is too large."),
    "unsupported_encoding": Kind(415, "Content-Encoding may be gzip, or absent."),
    "bad_parameter": Kind(422, "A parameter is missing or malformed."),
    "bad_roles": Kind(422, "A token has one role or more, and a service's has no other."),
    "no_parquet": Kind(422, "Parquet needs the extra twophp[parquet] where the central ledger runs."),
    "slow_down": Kind(429, "This credential has a batch under way already."),
    "internal": Kind(500, "Internal error."),
    "no_provider": Kind(502, "The identity provider did not answer as it should."),
    "pull_failed": Kind(502, "The service's ledger could not be pulled."),
    "store_unavailable": Kind(503, "The central ledger's database does not answer."),
    "overloaded": Kind(503, "Too many batches are waiting."),
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a refusal."""

    status: int
    code: str
    title: str
    detail: str = ""


class ApiProblem(TwoPHPError):
    """Raised anywhere in a route; answered as the table says."""

    default_code = "internal"

    def __init__(self, code: str, detail: str = "", *, retry_after_s: int | None = None) -> None:
        super().__init__(detail or PROBLEMS[code].title, code=code)
        self.detail = detail
        self.retry_after_s = retry_after_s


def problem(code: str, detail: str = "", *, retry_after_s: int | None = None, challenge: str | None = None) -> Response:
    """The answer for a code."""
    kind = PROBLEMS[code]
    headers = {"Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if challenge is not None:
        headers["WWW-Authenticate"] = challenge
    body = msgspec.json.encode(Problem(status=kind.status, code=code, title=kind.title, detail=detail))
    return Response(body, kind.status, headers, MEDIA_TYPE)


def problem_of(error: Exception) -> Response:
    """The answer for any exception. A foreign one is ``internal``, and only the log has its text."""
    match error:
        case ApiProblem():
            answer = problem(error.code, error.detail, retry_after_s=error.retry_after_s)
        case Unauthenticated():
            answer = problem("unauthenticated", challenge=error.challenge)
        case StoreError():
            log.warning("the database does not answer: %s", error)
            answer = problem("store_unavailable", retry_after_s=RETRY_AFTER_S)
        case WireError():
            answer = problem(error.code, error.message[:500])
        case TwoPHPError() if error.code in PROBLEMS:
            answer = problem(error.code)
        case RequestValidationError():
            answer = problem("bad_parameter", _where(error))
        case HTTPException():
            answer = problem({404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "internal"))
        case _:
            log.error("a request failed", exc_info=error)
            answer = problem("internal")
    return answer


def answer_to(request: Request, error: Exception) -> Response:
    """The answer for any exception: a problem, or a page for a browser that did not ask the API."""
    answer = problem_of(error)
    page = getattr(request.app.state, "page_of_problem", None)
    wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(API)
    made: Response = page(request, answer) if page is not None and wants_page else answer
    return made


def install(app: FastAPI) -> None:
    """Answer every error of the application as a problem."""

    async def answer(request: Request, error: Exception) -> Response:
        return answer_to(request, error)

    for kind in (TwoPHPError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


_ASKED: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must be a text of length {min_length} at least",
    "string_too_long": "must be a text of length {max_length} at most",
    "too_long": "may be given {max_length} times at most",
}
"""What is asked of a parameter, by pydantic's name for what is wrong."""


def _where(error: RequestValidationError) -> str:
    """Which parameters, and what is expected; not what stood there."""
    places = {".".join(map(str, one["loc"])) + f": {_asked(one)}" for one in error.errors()}
    return "; ".join(sorted(places))[:500]


def _asked(one: Mapping[str, Any]) -> str:
    words = _ASKED.get(one["type"])
    return str(one["msg"]) if words is None else words.format(**one.get("ctx", {}))
