"""Handing a stored request to the application, as if it had just arrived, and catching its answer.

The application is not changed and cannot tell: it sees the Phase 1 method, path, query, body and content headers, with
the credentials, cookies, trace headers and addresses of the request that confirmed it (A-03).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from twophp.asgi.messages import App, Message, Scope, raw_path
from twophp.engine.exchange import StoredRequest, StoredResponse, is_kept
from twophp.engine.execution import Work
from twophp.wire.fields import BY_KEY, without_fields

log: Final = logging.getLogger("twophp.asgi")

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"expect", b"te", b"trailer"})


def stored_request(scope: Scope, body: bytes, extra: Collection[bytes]) -> StoredRequest:
    """What is kept of a Phase 1 request."""
    headers = tuple(
        (name, value)
        for name, value in scope["headers"]
        if is_kept(name.lower(), extra) and name.lower() not in BY_KEY and name.lower() not in _FRAMING
    )
    query: bytes = scope.get("query_string", b"")
    return StoredRequest(scope["method"], scope["path"], raw_path(scope).encode("latin-1"), query, headers, body)


def replayed_scope(live: Scope, work: Work, extra: Collection[bytes]) -> Scope:
    """The scope the application gets: what was registered, from whoever confirmed it."""
    request = work.request
    live_headers = [
        (name, value)
        for name, value in live["headers"]
        if name.lower() not in BY_KEY and name.lower() not in _FRAMING and not is_kept(name.lower(), extra)
    ]
    length = (b"content-length", str(len(request.body)).encode())
    return {
        **_offered(live, work),
        "method": request.method,
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "headers": [*live_headers, *request.headers, length],
    }


def live_scope(live: Scope, work: Work) -> Scope:
    """The scope of a request that the server itself confirms: its own, without our fields (draft §5.5.6)."""
    return {**_offered(live, work), "headers": without_fields(live["headers"])}


def _offered(live: Scope, work: Work) -> Scope:
    """The live scope with what the application may know of its intent."""
    extensions = {name: value for name, value in live.get("extensions", {}).items() if name == "tls"}
    return {
        **live,
        "extensions": extensions,  # Sending files or pushing streams belongs to a live connection.
        "state": {**live.get("state", {}), "twophp": work.running},
    }


def bare_scope(work: Work) -> Scope:
    """A scope without a live request, for re-running after a crash (``on_crash="rerun"``)."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "https",
        "root_path": "",
        "client": None,
        "server": None,
        "headers": [],
        **replayed_scope({"headers": []}, work, ()),
    }


class Replay:
    """One run of the application. The answer counts when it is complete; background tasks may take their time."""

    def __init__(self, app: App, scope: Scope, body: bytes) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._complete = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def run(self) -> StoredResponse:
        """The application's answer. Raises what the application raises before its answer is complete."""
        task = asyncio.get_running_loop().create_task(self._app_call())
        _keep(task)
        await self._complete
        headers = tuple((bytes(name), bytes(value)) for name, value in self._headers)
        return StoredResponse(self._status, headers, b"".join(self._chunks))

    async def _app_call(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:
            if self._complete.done():
                log.exception("the application failed after its answer was complete")
            else:
                self._complete.set_exception(error)
        finally:
            self._over.set()
            if not self._complete.done():
                self._complete.set_exception(RuntimeError("the application ended without a complete answer"))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()  # Whoever listens for a disconnect hears of none: nobody hangs up on an intent.
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
        elif message["type"] == "http.response.body" and not self._complete.done():
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._complete.set_result(None)


_running: Final[set[asyncio.Task[None]]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """The loop keeps only weak references to tasks."""
    _running.add(task)
    task.add_done_callback(_running.discard)
