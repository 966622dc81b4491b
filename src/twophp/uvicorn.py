"""A short-cut below ASGI, for uvicorn: two-phase requests are answered by the protocol that reads them.

    uvicorn --http twophp.uvicorn:Protocol shop.main:app
    twophp serve shop.main:app

Phase 1, replays, refusals and status reads are the middleware's own answers, so they need no way through uvicorn's ASGI
interface and the layers around the middleware. The application itself is called as ever. What the protocol does not
write by itself goes to all layers too: an answer with a framing of its own, an error, a connection that cannot be
written to right now. There the middleware goes on where the short-cut left off.

Layers that would be bypassed keep the server from starting (``bypassed_middleware``), unless the operator allows it:
``TWOPHP_BYPASS_MIDDLEWARE=1``. Then Phase 1 and replays go without them, and what runs the application goes through.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from copy import copy
from functools import partial
from types import coroutine
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from twophp.asgi.lane import Lane, head_of
from twophp.asgi.messages import Answer, Answering, Message, Receive, Scope, Send
from twophp.asgi.middleware import GIVEN, Given
from twophp.asgi.polling import READS
from twophp.asgi.shapes import NONE, Shape
from twophp.asgi.surrounding import Surrounding, name_of, surrounding_of
from twophp.core.errors import ConfigError
from twophp.core.intent import Mode
from twophp.engine.current import take_over
from twophp.engine.environment import flag_in
from twophp.identity.identify import anonymous
from twophp.wire import fields
from twophp.wire.grammar import TRUE
from twophp.wire.parse import asks_for_status, opted_in

NEEDS: Final = "twophp.uvicorn needs uvicorn 0.54 or newer and httptools: install twophp[serve]"

try:
    from uvicorn.config import STARTUP_FAILURE, Config
    from uvicorn.middleware.message_logger import MessageLoggerMiddleware
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
    from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string
    from uvicorn.server import Server
except ImportError as missing:
    raise ConfigError(NEEDS, code="missing_extra") from missing
if not hasattr(HttpToolsProtocol, "_start_asgi_task"):
    raise ConfigError(NEEDS, code="missing_extra")

log: Final = logging.getLogger("twophp.server")

BYPASS_VARIABLE: Final = "TWOPHP_BYPASS_MIDDLEWARE"
_WITH_BODY: Final = frozenset({b"transfer-encoding", b"expect"})
_SERVER_ID: Final = fields.SERVER_CORRELATION_ID.key
_AUTO_CONFIRM: Final = fields.AUTO_CONFIRM.key
_OURS: Final = b"dtt-2php"  # In each name of ours.
_NEAR_BYTES: Final = 2_048  # To look for a name of ours in more bytes costs more than it spares.
# A path that is the same before and after parsing.
_PLAIN_PATH: Final = re.compile(rb"/[!$&-;=@-Z_a-z~]*").fullmatch
# What a request may not have for the lane: it is about the connection, or about who asks.
_NOT_IN_LANE: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"x-forwarded-proto", b"x-forwarded-for"})
MOST_BODY_BYTES: Final = 65_536  # Past that uvicorn pauses reading.
MOST_SHAPES: Final = 512


class ShortCut:
    """What one loaded application lets the protocol answer by itself."""

    def __init__(self, surrounding: Surrounding, *, has_bypassed: bool) -> None:
        self._surrounding = surrounding
        self.middleware = surrounding.middleware
        self._has_bypassed = has_bypassed
        self._proxies = [_alone(layer) for layer in surrounding.outer if type(layer) is ProxyHeadersMiddleware]
        self._acts_on_origin = surrounding.acts_on_origin
        settings = self.middleware.settings
        self._needs_nobody = settings.identify is anonymous and settings.late_confirm_guard is None
        # Uvicorn's own log of every ASGI message, at the level "trace", must have these requests too.
        self._lanes: dict[int, tuple[Shape, bool]] = {}
        self._is_logged = any(type(layer) is MessageLoggerMiddleware for layer in surrounding.outer)

    def is_open(self) -> bool:
        """Whether the short-cut may be used at all just now."""
        return not (self._is_logged or self._surrounding.is_traced())

    def takes(self, scope: Scope) -> bool:
        """Whether the middleware answers this request, and no other layer has to see it."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if not opted_in(headers) or (scope["method"] in READS and not asks_for_status(headers)):
            return False
        if self._acts_on_origin and any(name == b"origin" for name, _value in headers):
            return False
        return not self._has_bypassed or not self._may_run(scope)

    def laned(self, headers: list[tuple[bytes, bytes]]) -> Shape | None:
        """The shape of a request that may go the lane: an ordinary registration or confirm; None for any other."""
        shape = self.middleware.shape_of(headers)
        if not shape.asks or headers[shape.enabled][1] != TRUE or self._has_bypassed:
            return None
        known = self._lanes.get(id(shape))
        if known is None or known[0] is not shape:
            names = {name for name, _value in headers}
            is_open = not (names & _NOT_IN_LANE) and not (self._acts_on_origin and b"origin" in names)
            if len(self._lanes) >= MOST_SHAPES:
                self._lanes.clear()
            known = self._lanes[id(shape)] = (shape, is_open)
        return shape if known[1] else None

    def is_at_hand(self, lane: Lane) -> bool:
        """As ``is_repeat``, of a request that is here as a whole."""
        shape = lane.shape
        if shape.server_id == NONE or not self._needs_nobody:
            return False
        return self.middleware.recalls(lane.scope["headers"][shape.server_id][1].decode("latin-1"))

    def answered_in_lane(self, lane: Lane) -> Answering:
        """The middleware's answer. A request of the lane has no field that a proxy's rules look at."""
        self._surrounding.note(lane.scope)
        return self.middleware.answered(lane.scope, lane.receive, lane.shape)

    def _may_run(self, scope: Scope) -> bool:
        """Whether the application may be run for it, which needs what the bypassed layers do for the application."""
        found = dict(scope["headers"])
        if _AUTO_CONFIRM in found:
            return True
        if _SERVER_ID not in found or scope["method"] in READS:
            return False
        return not self.middleware.recalls(found[_SERVER_ID].decode("latin-1"))

    def is_repeat(self, scope: Scope) -> bool:
        """Whether its answer is in memory: a confirm of a recent outcome, without a body, without authentication."""
        if not self._needs_nobody:
            return False
        found = dict(scope["headers"])
        return (
            _SERVER_ID in found
            and found.get(b"content-length", b"0") == b"0"
            and not (found.keys() & _WITH_BODY)
            and self.middleware.recalls(found[_SERVER_ID].decode("latin-1"))
        )

    async def answered(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The middleware's answer to a scope that is changed as the layers around it would have changed it."""
        for proxy in self._proxies:
            await proxy(scope, receive, send)  # type: ignore[arg-type] # Uvicorn's own types.
        self._surrounding.note(scope)
        return await self.middleware.answered(scope, receive)


def _alone(proxy: ProxyHeadersMiddleware) -> ProxyHeadersMiddleware:
    """The same proxy rules around an application that does nothing: only what they change in a scope is left."""
    alone = copy(proxy)
    alone.app = _nothing
    return alone


async def _nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that does nothing."""


_short_cuts: Final[WeakKeyDictionary[Config, ShortCut]] = WeakKeyDictionary()


def short_cut_of(config: Config) -> ShortCut:
    """The short-cut for an application that is loaded; raises ConfigError where there can be none."""
    if config not in _short_cuts:
        _short_cuts[config] = _found(config.loaded_app)
    return _short_cuts[config]


def _found(app: Any) -> ShortCut:
    surrounding = surrounding_of(app)
    if surrounding is None:
        message = (
            "no TwoPhaseMiddleware stands in front of the application; add it with app.add_middleware(...), or wrap"
            " the application. One inside a mount or behind a router is not reached by the short-cut:"
            " serve it with uvicorn --http httptools"
        )
        raise ConfigError(message, code="no_middleware")
    handled = (ProxyHeadersMiddleware, MessageLoggerMiddleware)
    bypassed = [name_of(layer) for layer in surrounding.bypassed() if type(layer) not in handled]
    if bypassed:
        if not flag_in(os.environ, BYPASS_VARIABLE):
            message = (
                f"the short-cut would bypass what stands around TwoPhaseMiddleware: {', '.join(bypassed)}. Put it"
                " behind the middleware (what is added last is outermost), serve with uvicorn --http httptools, or, if"
                f" Phase 1 and replays may go without it, say --bypass-middleware or {BYPASS_VARIABLE}=1"
            )
            raise ConfigError(message, code="bypassed_middleware")
        log.warning("Phase 1 and replays are answered without %s", ", ".join(bypassed))
    return ShortCut(surrounding, has_bypassed=bool(bypassed))


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, with the short-cut. Reading, pipelines, time limits and drain are uvicorn's own."""

    _is_reading = False  # A request's head has just been read, so no other request is being answered.
    _has_none = False  # The latest bytes have no name of ours in them.
    _lane: Lane | None = None  # A request whose end is still to come with the same data.

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        short_cut = short_cut_of(config)
        self._short_cut = short_cut if short_cut.is_open() else None

    def data_received(self, data: bytes) -> None:
        """See uvicorn. If a head came with these bytes alone, one search tells whether it has a name of ours."""
        scope: Any = self.scope  # None before the first request.
        self._has_none = len(data) <= _NEAR_BYTES and (scope is None or "method" in scope) and _OURS not in data.lower()
        super().data_received(data)
        if self._lane is not None:
            self._leave_lane(self._lane)

    def on_headers_complete(self) -> None:
        """See uvicorn. A repeat that came with the same data, and is answered by now, left the connection idle."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if not self._has_none and (shape := self._laned()) is not None:
            self.cycle = self._lane = Lane(self, shape)  # type: ignore[assignment]
            return
        self._begin()

    def _laned(self) -> Shape | None:
        """The shape of the request whose head was read, if it may go the lane."""
        short_cut, scope, parser = self._short_cut, self.scope, self.parser
        cycle: Any = self.cycle  # None before the first request.
        if short_cut is None or self.limit_concurrency is not None or scope["root_path"]:
            return None
        if cycle is not None and not cycle.response_complete:
            return None
        if parser.get_http_version() != "1.1" or parser.should_upgrade() or not _PLAIN_PATH(self.url):
            return None
        method = parser.get_method().decode("ascii")
        shape = None if method in READS else short_cut.laned(self.headers)
        if shape is not None:
            more: Any = scope
            more["method"], more["path"] = method, self.url.decode("ascii")
            more["raw_path"], more["query_string"] = self.url, b""
        return shape

    def _leave_lane(self, lane: Lane) -> None:
        """The end of the request did not come with its head: it is read as any other."""
        self._lane = self.cycle = None  # type: ignore[assignment] # As before its head: all before it are answered.
        self._begin()
        if lane.body:
            super().on_body(lane.body)

    def on_body(self, body: bytes) -> None:
        """See uvicorn."""
        lane = self._lane
        if lane is None:
            super().on_body(body)
        else:
            lane.body = lane.body + body if lane.body else body
            if len(lane.body) > MOST_BODY_BYTES:
                self._leave_lane(lane)

    def on_message_complete(self) -> None:
        """See uvicorn. A request in the lane is here as a whole, and begins to be answered."""
        lane = self._lane
        if lane is None:
            super().on_message_complete()
            return
        self._lane = None
        short_cut = self._short_cut
        assert short_cut is not None
        answering = short_cut.answered_in_lane(lane)
        if short_cut.is_at_hand(lane):
            rest = self._begun(answering, lane)
            if rest is None:
                return
            going = self._in_lane(rest, lane)
        else:
            going = self._in_lane(answering, lane)
        context = Context() if self.config.reset_contextvars else None
        task = self.loop.create_task(going, context=context)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _in_lane(self, answering: Awaitable[Answer | None], lane: Lane) -> None:
        """Answer, or go on as uvicorn does: with a cycle, through all layers."""
        try:
            answer = await answering
            if answer is not None and self._says(answer, lane.cycle or lane):
                return
            given: Given = partial(_same, answer)
        except Exception as error:  # noqa: BLE001 - As in ``_answer``.
            given = partial(_raise, error)
        except BaseException as error:  # noqa: BLE001 - A shutdown that has waited long enough: uvicorn reports it.
            await (lane.cycle or self.cycle_of(lane)).run_asgi(partial(_raised, error))
            return
        lane.scope[GIVEN] = given
        await (lane.cycle or self.cycle_of(lane)).run_asgi(self.app)

    def cycle_of(self, lane: Lane) -> RequestResponseCycle:
        """The request as uvicorn's cycle, in the state that uvicorn would have it in by now."""
        event = asyncio.Event()
        cycle = RequestResponseCycle(
            scope=lane.scope,
            transport=self.transport,
            flow=lane.flow,
            logger=self.logger,
            access_logger=lane.access_logger,
            access_log=lane.access_log,
            default_headers=lane.default_headers,
            message_event=event,
            expect_100_continue=False,
            keep_alive=lane.keep_alive,
            on_response=lane.on_response,
        )
        cycle.disconnected, cycle.more_body = lane.disconnected, False
        cycle.response_started, cycle.response_complete = lane.response_started, lane.response_complete
        if not lane.has_told:
            cycle.body += lane.body
        if not lane.has_told or lane.disconnected:
            event.set()
        lane.cycle = cycle
        if self._latest() is lane:  # Else a later request waits in the pipeline.
            self.cycle = cycle
        return cycle

    def _latest(self) -> object:
        """The request that was read last: uvicorn's type for it knows no lane."""
        return self.cycle

    def _begin(self) -> None:
        self._is_reading = True
        try:
            super().on_headers_complete()
        finally:
            self._is_reading = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin to answer a request. For one that ``limit_concurrency`` refuses, ``app`` is another application."""
        scope: Any = cycle.scope
        receive: Any = cycle.receive  # Uvicorn has types of its own for messages.
        send: Any = cycle.send
        short_cut = self._short_cut
        has_none = self._has_none and self._is_reading  # What waited in a pipeline came with other bytes.
        if has_none or app is not self.app or short_cut is None or not short_cut.takes(scope):
            super()._start_asgi_task(cycle, app)
        # A request that waited in a pipeline begins when the one before it ends: without a task of its own for each, a
        # thousand of them would end inside each other.
        elif not (self._is_reading and short_cut.is_repeat(scope)):
            answering = partial(short_cut.answered, scope, receive, send)
            super()._start_asgi_task(cycle, partial(self._answer, answering, cycle))
        elif (rest := self._begun(short_cut.answered(scope, _no_body, send), cycle)) is not None:
            super()._start_asgi_task(cycle, partial(self._answer, lambda: rest, cycle))

    def _begun(self, answering: Answering, cycle: RequestResponseCycle | Lane) -> Awaitable[Answer | None] | None:
        """Answer without a task what need not wait. Return None, or what is left to do."""
        try:
            pending = answering.send(None)
        except StopIteration as told:
            answer: Answer | None = told.value
            if answer is not None and self._says(answer, cycle):
                return None
            return _told(partial(_same, answer))
        except Exception as error:  # noqa: BLE001 - As in ``_answer``.
            return _told(partial(_raise, error))
        return _rest(answering, pending)

    async def _answer(
        self,
        answering: Callable[[], Awaitable[Answer | None]],
        cycle: RequestResponseCycle,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            answer = await answering()
        except Exception as error:  # noqa: BLE001 - Raised again, where the layers around the middleware see it.
            given: Given = partial(_raise, error)
        else:
            if answer is not None and self._says(answer, cycle):
                return
            given = partial(_same, answer)
        scope[GIVEN] = given
        await self.app(scope, receive, send)

    def _says(self, answer: Answer, cycle: RequestResponseCycle | Lane) -> bool:
        """Write a usual answer at once: to a client that reads, with a plain length. False for any other answer."""
        if cycle.disconnected:
            return True
        run = answer.run
        if run is not None:
            if not run.is_over or (run.raised is not None and run.intent.mode is Mode.TRANSPARENT):
                return False
            if cycle.access_log:
                take_over(run.context)  # Log filters may read the handler's context variables.
        if cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        head = head_of(answer, STATUS_LINE[answer.status], cycle.default_headers, keep_alive=cycle.keep_alive)
        if head is None:
            return False
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if cycle.access_log:
            _log_access(cycle, answer.status)
        self.transport.write(head + answer.body)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _told(given: Given) -> Answer | None:
    return given()


@coroutine
def _rest(answering: Answering, pending: object) -> Generator[Any, Any, Answer | None]:
    """Await a coroutine whose first step was taken already: pass on what it waits for, as ``await`` would."""
    try:
        while True:
            try:
                told = yield pending
            except BaseException as error:  # noqa: BLE001 - A cancellation goes to the coroutine.
                pending = answering.throw(error)
            else:
                pending = answering.send(told)
    except StopIteration as over:
        answer: Answer | None = over.value
        return answer


def _log_access(cycle: RequestResponseCycle | Lane, status: int) -> None:
    scope = cycle.scope
    cycle.access_logger.info(
        '%s - "%s %s HTTP/%s" %d',
        get_client_addr(scope),
        scope["method"],
        get_path_with_query_string(scope),
        scope["http_version"],
        status,
    )


def _raise(error: Exception) -> NoReturn:
    raise error


async def _raised(error: BaseException, _scope: Any, _receive: Any, _send: Any) -> None:
    raise error


def _same(answer: Answer | None) -> Answer | None:
    return answer


_startup: Final = Server.startup


async def _checked_startup(self: Server, sockets: Any = None) -> None:
    """Refuse at the start what cannot work: uvicorn makes its first protocol only when a client connects."""
    kind: object = self.config.http_protocol_class
    if isinstance(kind, type) and issubclass(kind, Protocol):
        try:
            short_cut_of(self.config)
        except ConfigError as error:
            log.critical("error[%s]: %s", error.code, error.message)
            sys.exit(STARTUP_FAILURE)
    await _startup(self, sockets)


Server.startup = _checked_startup  # type: ignore[method-assign]
