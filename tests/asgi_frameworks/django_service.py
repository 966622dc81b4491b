"""The order service in Django, served by ASGI. Django has one configuration per process; the book is handed over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from twophp.asgi import TwoPhaseMiddleware

_book: Any = None
urlpatterns: list[Any] = []


def django_service(book: Any, **two_phase: Any) -> Any:
    import django  # noqa: PLC0415 - only once it is configured.
    from django.conf import settings  # noqa: PLC0415
    from django.core.asgi import get_asgi_application  # noqa: PLC0415

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="tests", LOGGING_CONFIG=None)
        django.setup()
        _route()
    globals()["_book"] = book
    app = get_asgi_application()
    return TwoPhaseMiddleware(app, **two_phase) if two_phase else app


def _route() -> None:
    from django.urls import path  # noqa: PLC0415

    urlpatterns[:] = [
        path("orders", create),
        path("orders/<str:order>/lines/<int:line>", change),
        path("orders/<str:order>", show),
        path("feed", stream),
    ]


async def create(request: Any) -> Any:
    from django.http import JsonResponse  # noqa: PLC0415

    sku = json.loads(request.body)["sku"]
    _book.enter(sku)
    response = JsonResponse({"id": "42", "sku": sku}, status=201, headers={"location": "/orders/42"})
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    response._resource_closers.append(_book.mail)  # Django has no background tasks; this is what runs after an answer.
    return response


def change(_request: Any, order: str, line: int) -> Any:  # Not async: Django runs it in a thread.
    from django.http import JsonResponse  # noqa: PLC0415

    _book.enter(f"{order}/{line}")
    return JsonResponse({"line": str(line)})


def show(_request: Any, order: str) -> Any:
    from django.http import JsonResponse  # noqa: PLC0415

    return JsonResponse({"id": order})


async def stream(_request: Any) -> Any:
    from django.http import StreamingHttpResponse  # noqa: PLC0415

    return StreamingHttpResponse(_feed())


async def _feed() -> AsyncIterator[bytes]:
    for number in range(3):
        yield f"line {number}\n".encode()
