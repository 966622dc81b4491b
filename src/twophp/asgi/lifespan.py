"""Start-up and shutdown around the application's own.

Ours opens before the application starts and closes after it has stopped, so a handler that is still running can settle.
What runs handlers by itself, the recovery of a crash, waits until the application has started: it may need what that
opens.
After a shutdown nothing is begun any more. A lifespan may also end without a shutdown, because the application's own
has failed: some servers serve on, and then the next request starts us again.
What the application's lifespan raises, at any time, goes to the server. ASGI reads it as "no lifespan support" and
goes on; uvicorn with ``--lifespan on`` and test clients stop the start. The server decides.
An application without lifespan support, or a server that sends no lifespan events, is served as well: then the first
request starts us, and the end of the process is a crash we are built to survive.
A disk that is full or fails does not stop plain requests: the application starts, and we open when we can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from twophp.asgi.messages import App, Message, Receive, Scope, Send

log: Final = logging.getLogger("twophp.server")


class Lifespan:
    """Wraps the application's lifespan."""

    def __init__(
        self,
        app: App,
        open_: Callable[[Scope], Awaitable[None]],
        start: Callable[[], Awaitable[Any]],
        stop: Callable[[], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._open = open_
        self._start = start
        self._stop = stop
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run both, ours on the outside."""
        startup = await receive()
        try:
            await self._open(scope)
        except Exception as error:
            log.error("the ledger could not be opened: %s", error)  # noqa: TRY400 - the server shows the rest.
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise  # As frameworks do; some servers and test clients look for nothing else.
        inner = _Inner(self._app, scope, startup, receive, send, self._start, self._stop, self._close)
        await inner.run()


class _Inner:
    """The application's lifespan, with the first message already read and the last one delayed."""

    def __init__(
        self,
        app: App,
        scope: Scope,
        startup: Message,
        receive: Receive,
        send: Send,
        start: Callable[[], Awaitable[Any]],
        stop: Callable[[], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._scope = scope
        self._first: Message | None = startup
        self._receive_next = receive
        self._send_on = send
        self._start = start
        self._stop = stop
        self._close = close
        self._started = False
        self._is_shutdown = False  # The server has said so.
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Run both lifespans. If they are broken off, by an exit or a cancellation too, close what is open."""
        try:
            await self._both()
        except BaseException:
            await self._end()
            raise

    async def _both(self) -> None:
        await self._app(self._scope, self._receive, self._send)
        if not self._answered.is_set():
            await self._without_the_application()

    async def _receive(self) -> Message:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._next()

    async def _next(self) -> Message:
        message = await self._receive_next()
        self._is_shutdown = self._is_shutdown or message["type"] == "lifespan.shutdown"
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            self._started = True
            await self._start()
        elif message["type"] == "lifespan.startup.failed" or message["type"].startswith("lifespan.shutdown"):
            self._answered.set()
            await self._end()
        await self._send_on(message)

    async def _end(self) -> None:
        await (self._stop if self._is_shutdown else self._close)()

    async def _without_the_application(self) -> None:
        """The application returned without an answer: it knows no lifespan, and ours goes on alone."""
        if not self._started:
            await self._start()
            await self._send_on({"type": "lifespan.startup.complete"})
        if not self._is_shutdown:  # An application may have taken the message and gone without an answer.
            await self._next()
        await self._stop()
        await self._send_on({"type": "lifespan.shutdown.complete"})
