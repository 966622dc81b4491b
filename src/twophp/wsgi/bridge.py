"""From a thread that serves a WSGI request to the middleware's event loop, and back for the handler.

The middleware runs in a thread of its own, one for each process. A request's thread hands the request over and waits.
While it waits it does what the loop asks of it: the handler of an intent runs in the thread of the request that
confirmed it, where a WSGI server expects it: with that thread's database connections, under the server's own limits.
A handler for which no request waits, of an asynchronous endpoint or after a crash, runs in a pool.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, Final

from twophp.asgi import middleware as asgi
from twophp.asgi.messages import Answer, Message, Receive, Scope, Send
from twophp.core.errors import StoreUnavailable
from twophp.core.intent import Mode
from twophp.stores.portal import Portal
from twophp.wsgi.body import Body, read_body
from twophp.wsgi.environ import Environ, Headers, WsgiApp, answer_of, environ_of

_CALL: Final = "twophp.wsgi.call"
"""In a scope: the ``Call`` of the request that waits."""
_STATE: Final = "twophp"
"""In a scope's state: the intent that is executed."""
BESIDE: Final = 8
"""Handlers for which no request waits and that run at a time."""

Job = Callable[[], None]


class Call:
    """One request that waits in its own thread, and does there what the loop asks of it."""

    def __init__(self, environ: Environ, body: Body) -> None:
        self.environ = environ
        self.body = body
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def takes(self, job: Job) -> bool:
        """Whether the waiting thread will do this."""
        with self._lock:
            if not self._is_over:
                self._jobs.put(job)
            return not self._is_over

    def ended(self, answer: Answer | None, error: BaseException | None = None) -> None:
        """Let the thread go with an answer or an error."""
        with self._lock:
            self._is_over, self._answer, self._error = True, answer, error
            self._jobs.put(None)

    def leave(self) -> Iterator[Job]:
        """Wait no longer; what was asked of the thread and is not done."""
        with self._lock:
            self._is_over = True
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    yield job

    def wait(self) -> Answer:
        """The answer, in the request's own thread."""
        while (job := self._jobs.get()) is not None:
            job()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


class Bridge:
    """One service: its application, its middleware, and the loop that it has in each process."""

    def __init__(self, app: WsgiApp, settings: dict[str, Any]) -> None:
        self._app = app
        self._settings = settings
        self.middleware = asgi.TwoPhaseMiddleware(self._run, **settings)
        self._most = self.middleware.settings.max_body_bytes
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._has_begun = False
        self._beside: ThreadPoolExecutor | None = None
        # What a parent process had is of no use to its child, nor is a lock that another of its threads held.
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def start(self) -> None:
        """Open the store and begin to work, unless this process has done so. The first request that needs it does."""
        self._opened()

    def stop(self) -> None:
        """Let what runs end, and close. A request that comes later opens anew."""
        with self._lock:
            portal, self._portal = self._portal, None
            beside, self._beside = self._beside, None
        if portal is not None:
            portal.run(self.middleware.stop())
            portal.close()
        if beside is not None:
            beside.shutdown()

    def answered(self, scope: Scope, environ: Environ) -> Answer:
        """What the middleware answers, with the application behind it."""
        call = Call(environ, read_body(environ, self._most))
        scope[_CALL] = call
        portal = self._opened()
        try:
            portal.post(self._through(scope, call))
            return call.wait()
        except BaseException:  # Also an interrupt of this thread, after which no request waits for the handler.
            for job in call.leave():
                self._aside(job)
            raise

    def _opened(self) -> Portal:
        portal = self._portal
        if portal is not None:
            return portal
        with self._lock:
            if self._portal is None:
                self._has_begun = True
                portal = Portal("twophp-wsgi")
                portal.open(self.middleware.start(), self.middleware.stop)
                self._beside = ThreadPoolExecutor(BESIDE, thread_name_prefix="twophp-wsgi")
                self._portal = portal
            return self._portal

    def _forget(self) -> None:
        if self._has_begun:  # Also one that another thread of the parent was just opening.
            self.middleware = asgi.TwoPhaseMiddleware(self._run, **self._settings)
        self._lock, self._portal, self._beside, self._has_begun = threading.Lock(), None, None, False

    async def _through(self, scope: Scope, call: Call) -> None:
        """One request through the middleware."""
        sent: list[Message] = []
        receive = _receiving(call.body)

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await self.middleware(scope, receive, send)
            call.ended(_gathered(sent))
        except BaseException as error:
            call.ended(None, error)
            if not isinstance(error, Exception):
                raise

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, as the middleware sees it."""
        body = await _received(receive)
        call: Call | None = scope.get(_CALL)
        intent = scope.get("state", {}).get(_STATE)
        environ = environ_of(scope, body, None if call is None else call.environ)
        if intent is None and call is not None:
            environ |= call.body.for_application(call.environ)
        elif intent is not None and intent.mode is Mode.ASYNC:
            call = None  # Its request is answered with 202 while it runs.
        status, headers, content = await self._in_a_thread(environ, call)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    async def _in_a_thread(self, environ: Environ, call: Call | None) -> tuple[int, Headers, bytes]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[int, Headers, bytes]] = loop.create_future()
        job = partial(_do, loop, done, partial(copy_context().run, answer_of, self._app, environ))
        if call is None or not call.takes(job):
            self._aside(job)
        return await done

    def _aside(self, job: Job) -> None:
        """Do it in the pool."""
        beside = self._beside
        if beside is None:
            raise StoreUnavailable("the service is shutting down and takes no new work")
        beside.submit(job)


def _do(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    """Work in this thread, and tell the loop. An interrupt of this thread is told too, and goes on here."""
    try:
        result = work()
    except BaseException as error:
        loop.call_soon_threadsafe(_tell, done, None, error)
        if not isinstance(error, Exception | SystemExit):
            raise
    else:
        loop.call_soon_threadsafe(_tell, done, result, None)


def _tell(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        # A future carries no KeyboardInterrupt without ending its loop.
        done.set_exception(error if isinstance(error, Exception | SystemExit) else RuntimeError(repr(error)))


def _receiving(body: Body) -> Receive:
    """The whole body, then nothing more: a WSGI server does not tell that a client has left, unless half is missing."""
    messages: list[Message] = [{"type": "http.request", "body": body.data, "more_body": body.is_broken_off}]
    if body.is_broken_off:
        messages.insert(0, {"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    return receive


async def _received(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    more = True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _gathered(sent: list[Message]) -> Answer:
    """The answer. Without one nobody waits for it any more, but a WSGI server is owed one."""
    if not sent:
        return Answer(HTTPStatus.BAD_REQUEST, ((b"content-length", b"0"),))
    start, *bodies = sent
    return Answer(start["status"], tuple(start["headers"]), b"".join(part.get("body", b"") for part in bodies))
