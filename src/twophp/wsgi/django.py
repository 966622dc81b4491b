"""``TwoPhaseMiddleware`` for Django's ``MIDDLEWARE``, under WSGI.

    MIDDLEWARE = ["twophp.wsgi.django.TwoPhaseMiddleware", ...]
    TWOPHP = {"service": "orders", "store": "sqlite:///ledger.db", "identify": anonymous, "policies": {...}}

What stands below it in the list runs in Phase 2 alone, with the request as it was registered; what stands above it runs
in both phases. Put it first, unless a middleware above is to see every request, as one for logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.cookies import SimpleCookie
from typing import Any, Final

from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from twophp.asgi.messages import Answer
from twophp.core.errors import ConfigError
from twophp.wsgi.bridge import Bridge
from twophp.wsgi.environ import Environ, StartResponse, scope_of

SETTING: Final = "TWOPHP"
"""The name of Django's setting: the keywords of the middleware."""


class TwoPhaseMiddleware:
    """The server side of 2PHP, among Django's own middleware."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        said: Any = getattr(settings, SETTING, None)
        if not isinstance(said, dict):
            raise ConfigError(f"Django's setting {SETTING} is a dictionary of the middleware's keywords")
        self._get_response = get_response
        self._bridge = Bridge(self._application, said)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Serve one request."""
        if not isinstance(request, WSGIRequest):
            message = "it is for WSGI: under ASGI wrap get_asgi_application() in twophp.asgi.TwoPhaseMiddleware"
            raise ConfigError(message)
        scope = scope_of(request.environ)
        if not self._bridge.middleware.concerns(scope):
            return self._get_response(request)
        return _response(self._bridge.answered(scope, request.environ))

    def _application(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """What stands below, as a WSGI application."""
        response = self._get_response(WSGIRequest(environ))
        headers = [*response.items(), *(("Set-Cookie", c.OutputString()) for c in response.cookies.values())]
        start_response(f"{response.status_code} {response.reason_phrase}", headers)
        content: Any = response.streaming_content if response.streaming else [response.content]
        return _Closing(content, response.close)


class _Closing:
    """The chunks of a response, which is closed after them: Django's signals and temporary files wait for that."""

    def __init__(self, chunks: Iterable[bytes], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self.close = close

    def __iter__(self) -> Any:
        return iter(self._chunks)


def _response(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    cookies: SimpleCookie = SimpleCookie()
    for name, value in answer.headers:
        field, text = name.decode("latin-1"), value.decode("latin-1")
        if field.lower() == "set-cookie":
            cookies.load(text)
        else:
            response[field] = f"{response[field]}, {text}" if field in response else text
    response.cookies = cookies
    return response
