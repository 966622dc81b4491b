"""The applications that gunicorn serves in the tests: each view notes its runs in a file that outlives its process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from flask import Flask, jsonify, request

from twophp import Policy, anonymous, current_intent
from twophp.wsgi import TwoPhaseMiddleware

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
SETTINGS: dict[str, Any] = {
    "service": "shop",
    "store": f"sqlite:///{FOLDER}/shop.db",
    "identify": anonymous,
    "policies": {"POST /orders": Policy.standard(lease_ms=2_000)},
    "allow_insecure": True,
    "sweep_interval_s": 0.2,
}


def ran() -> str:
    """Note one run of the intent, and die in the middle of it if the request says so."""
    intent = current_intent()
    assert intent is not None
    with (FOLDER / "runs").open("a", encoding="ascii") as file:
        file.write(f"{intent.client_correlation_id} {os.getpid()}\n")
    return intent.client_correlation_id


def order() -> Any:
    """Flask's view."""
    asked = request.get_json()
    name = ran()
    if asked.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return jsonify(id=name, cookie=request.headers.get("Cookie")), 201


def flask_app() -> Any:
    """A Flask application behind the middleware."""
    app = Flask("shop")
    app.add_url_rule("/orders", "order", order, methods=["POST"])
    app.add_url_rule("/pid", "pid", lambda: str(os.getpid()))
    app.wsgi_app = TwoPhaseMiddleware(app.wsgi_app, **SETTINGS)  # type: ignore[method-assign]
    return app


@csrf_exempt  # type: ignore[untyped-decorator]
def django_order(asked: HttpRequest) -> HttpResponseBase:
    """Django's view."""
    answer = JsonResponse({"id": ran(), "sent": asked.body.decode()}, status=201)
    answer.set_cookie("basket", "7")
    answer.set_cookie("seen", "1")
    return answer


def django_plain(_asked: HttpRequest) -> HttpResponseBase:
    """A page of Django's."""
    return JsonResponse({"plain": True})


urlpatterns = [path("orders", django_order), path("pid", django_plain)]


def django_app() -> Any:
    """A Django project with the middleware in its list."""
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1"],
        SECRET_KEY="only here",
        MIDDLEWARE=["twophp.wsgi.django.TwoPhaseMiddleware", "django.middleware.common.CommonMiddleware"],
        TWOPHP=SETTINGS,
    )
    django.setup()
    return get_wsgi_application()
