"""Handing a stored request to the application, as if it had just arrived, and catching its answer.

The application is not changed and cannot tell: it sees the Phase 1 method, path, query, body and content headers, with
the credentials, cookies, trace headers and addresses of the request that confirmed it (A-03).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from twophp.asgi.messages import App, Message, Scope
from twophp.engine.exchange import RawHeaders, StoredResponse
from twophp.engine.running import Answered, Work
from twophp.wire.fields import without_fields

log: Final = logging.getLogger("twophp.asgi")

_NOTHING: Final[Scope] = {}


def surroundings(live: Scope) -> Scope:
    """What is the same for every request: the application. The state is left out: it may name the client (A-03)."""
    return {"app": live["app"]} if "app" in live else {}


def replayed_scope(live: Scope, work: Work, sent: RawHeaders) -> Scope:
    """The scope the application gets: the registered request, as from the client that confirmed it and ``sent`` these.

    Written as one value: it is made for every handshake.
    """
    request = work.request
    return {
        **live,
        "method": request.method,
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "headers": [*sent, *request.headers, (b"content-length", b"%d" % len(request.body))],
        "extensions": _of_a_connection(live),
        "state": {**live.get("state", _NOTHING), "twophp": work.running},
    }


def live_scope(live: Scope, work: Work) -> Scope:
    """The scope of a request that the server itself confirms: its own, without our fields (draft §5.5.6)."""
    return {
        **live,
        "headers": without_fields(live["headers"]),
        "extensions": _of_a_connection(live),
        "state": {**live.get("state", _NOTHING), "twophp": work.running},
    }


def _of_a_connection(live: Scope) -> Scope:
    """What it knows of the TLS of its client. Sending files or pushing streams belongs to the live request alone."""
    extensions: Scope | None = live.get("extensions")
    return {name: value for name, value in extensions.items() if name == "tls"} if extensions else {}


def bare_scope(work: Work, around: Scope) -> Scope:
    """A scope without a live request, for re-running after a crash (``on_crash="rerun"``).

    ``around`` is the scope of the lifespan, or what is known of it: frameworks keep there what a handler works with.
    """
    live: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "https",
        "root_path": work.request.root_path,
        "client": None,
        "server": None,
        "headers": [],
        **{name: around[name] for name in ("app", "state") if name in around},
    }
    return replayed_scope(live, work, ())


class Unanswered(RuntimeError):
    """The application returned without a complete answer."""


class Replay:
    """One run of the application. The answer counts when it is complete; background tasks may take their time."""

    _status = 0
    _headers: RawHeaders = ()
    _is_complete = False
    _is_over = False  # The answer is complete, or the application has returned.
    _over: asyncio.Event | None = None

    def __init__(self, app: App, scope: Scope, body: bytes, answered: Answered) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._answered = answered
        self._chunks: list[bytes] = []

    async def run(self) -> None:
        """Until the application returns. Raises what it raises, before its answer is complete or after."""
        try:
            await self._app(self._scope, self._receive, self._send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.warning("the application let a cancellation escape that was not meant for it")
        finally:
            self._is_over = True
            if self._over is not None:
                self._over.set()
        if not self._is_complete:
            raise Unanswered("the application ended without a complete answer")

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._is_over:  # A client that hangs up does not end an intent: its handler is not told.
            self._over = self._over or asyncio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}  # ASGI: also what a server says once the answer is complete.

    async def _send(self, message: Message) -> None:
        """Take one message of the answer. One out of turn is refused, as servers do: it would change the answer."""
        if message["type"] == "http.response.start":
            if self._status:
                raise RuntimeError("the application started its answer a second time")
            self._status = message["status"]
            self._headers = tuple([(bytes(name), bytes(value)) for name, value in message.get("headers", ())])
        elif message["type"] == "http.response.body":
            if not self._status:
                raise RuntimeError("the application sent a body before the start of its answer")
            if self._is_complete:
                raise RuntimeError("the application sent a body after the end of its answer")
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._is_complete = self._is_over = True
                if self._over is not None:
                    self._over.set()
                self._answered(StoredResponse(self._status, self._headers, b"".join(self._chunks)))
