"""``TwoPhaseMiddleware`` for WSGI: one line in front of an unchanged application.

    app.wsgi_app = TwoPhaseMiddleware(app.wsgi_app, service="orders", store="sqlite:///orders.db", identify=anonymous,
                                      policies={"POST /orders": Policy.standard()})

It takes the arguments of ``twophp.asgi.TwoPhaseMiddleware`` and behaves like it. A request that is the application's
alone is passed on in its own thread, untouched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twophp.asgi import middleware as asgi
from twophp.wsgi.bridge import Bridge
from twophp.wsgi.environ import Environ, StartResponse, WsgiApp, scope_of, status_line


class TwoPhaseMiddleware:
    """The server side of 2PHP for a WSGI application."""

    def __init__(self, app: WsgiApp, **settings: Any) -> None:
        """The settings are those of ``twophp.asgi.TwoPhaseMiddleware``, which checks them. Nothing is opened yet."""
        self._app = app
        self._bridge = Bridge(app, settings)

    @property
    def asgi(self) -> asgi.TwoPhaseMiddleware:
        """The middleware that does the work."""
        return self._bridge.middleware

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        scope = scope_of(environ)
        if not self._bridge.middleware.concerns(scope):
            return self._app(environ, start_response)
        answer = self._bridge.answered(scope, environ)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        start_response(status_line(answer.status), headers)
        return [answer.body]

    def start(self) -> None:
        """Open the store and begin to work in this process: to recover after a crash without waiting for a request.

        Call it where a server says that a worker process is up, as gunicorn's ``post_worker_init`` does.
        """
        self._bridge.start()

    def stop(self) -> None:
        """Let what runs end, and close. An interpreter that exits does it by itself."""
        self._bridge.stop()
