"""``TwoPhaseMiddleware``: one line in front of an unchanged application.

    app.add_middleware(TwoPhaseMiddleware, service="orders", store="sqlite:///orders.db", identify=anonymous,
                       policies={"POST /orders": Policy.standard()})

Requests that do not opt in go to the application untouched: the same scope, the same receive, the same send.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, Final, ParamSpec, TypeAlias, Unpack

from twophp.asgi.answers import STATUS_PATH, of_error, refused
from twophp.asgi.failures import failed
from twophp.asgi.handshake import Handshake
from twophp.asgi.lifespan import Lifespan
from twophp.asgi.loops import LockOfLoop
from twophp.asgi.management import Management
from twophp.asgi.messages import (
    Answer,
    Answering,
    App,
    Disconnected,
    Receive,
    Rewindable,
    Scope,
    Send,
    head_of,
    seen_path,
    send_answer,
)
from twophp.asgi.observers import Observers, WantsMetrics
from twophp.asgi.polling import READS, Polls, saying_committed, status_of
from twophp.asgi.readiness import READY_PATH, TRY_INTERVAL_S, Readiness
from twophp.asgi.replay import Unanswered
from twophp.asgi.runs import NotRegistered
from twophp.asgi.server import Server
from twophp.asgi.settings import (
    Options,
    Settings,
    checked_clock,
    header_names,
    method_names,
    store_url,
    unguarded,
)
from twophp.asgi.shapes import Shape, Shapes, name_of
from twophp.core.errors import ConfigError, StoreUnavailable, TwoPHPError, WireError
from twophp.core.intent import Mode
from twophp.core.networks import Networks
from twophp.core.settings import knows_its_settings
from twophp.engine.current import take_over
from twophp.engine.endpoints import Endpoint, Endpoints, Policies
from twophp.engine.environment import SERVER, secret_in, with_environment
from twophp.identity.head import effective_scheme, proxies
from twophp.identity.identify import Identify
from twophp.observability.conditions import Conditions
from twophp.ports import Clock
from twophp.shipping.shipper import PULL_PATH
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.keys import Keys, checked_keys
from twophp.stores.urls import open_vault, opening
from twophp.storing.reopening import open_ledger
from twophp.wire.grammar import TRUE
from twophp.wire.idempotency import read_key
from twophp.wire.mistaken import mistaken_opt_in
from twophp.wire.parse import MUTATIONS, asks_for_status, opted_in

log: Final = logging.getLogger("twophp.server")

_OWN_PATHS: Final = "/_2php/"  # In each of our own: of a status read, a pull, a readiness probe.
_PROBES: Final = frozenset({"GET", "HEAD"})
_OF_THE_DISK: Final = frozenset({"disk_full", "store_io_error"})
MANAGEMENT_VARIABLE: Final = "TWOPHP_MANAGEMENT_TOKEN"
GIVEN: Final = "twophp.given"
"""The key in a scope under which a server edge hands in, as a ``Given``, what ``answered`` has returned to it."""

NEEDS_ASYNCIO: Final = "two-phase requests need asyncio: run the server with its asyncio worker, not with trio"

P = ParamSpec("P")
AnyApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An application as its framework types it; each names scopes and messages in its own way."""
Given: TypeAlias = Callable[[], Answer | None]
"""Returns what ``answered`` returned, or raises what it raised."""


def _saying_why_not(make: Callable[P, None]) -> Callable[P, None]:
    """Log a ConfigError. Frameworks build middleware in the lifespan, where servers take an error for no lifespan."""

    @wraps(make)
    def making(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            make(*args, **kwargs)
        except ConfigError as error:
            log.critical("the service cannot start: %s", error)
            raise

    return making


def _runs_asyncio() -> bool:
    """Whether this is called under asyncio, which the store and the executions need. Trio is another event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _check_loop() -> None:
    """Raise ConfigError unless this is called under asyncio."""
    if not _runs_asyncio():
        raise ConfigError(NEEDS_ASYNCIO, code="needs_asyncio")


class TwoPhaseMiddleware:
    """The server side of 2PHP for an ASGI application."""

    @_saying_why_not
    @knows_its_settings(Options)
    def __init__(
        self,
        app: AnyApp,
        *,
        identify: Identify,
        policies: Policies,
        service: str | None = None,
        store: str | None = None,
        keys: Keys | None = None,
        trusted_proxies: Networks | None = None,
        stored_headers: Iterable[str] = (),
        methods: Iterable[str] = MUTATIONS,
        metrics: WantsMetrics = False,
        clock: Clock = system_clock,
        **settings: Unpack[Options],
    ) -> None:
        endpoints = Endpoints(policies)
        said: dict[str, Any] = {"service": service, "store": store, **settings}
        if trusted_proxies is not None:
            said["trusted_proxies"] = trusted_proxies
        said = with_environment(said, SERVER, required=("service", "store"))
        self._store_url = store_url(said.pop("store"))
        self.app: App = app
        self._settings = Settings(
            identify=identify,
            endpoints=endpoints,
            proxies=proxies(said.pop("trusted_proxies", ())),
            stored_headers=header_names(stored_headers),
            methods=method_names(methods),
            **said,
        )
        service = self._settings.service
        self._management_token = self._settings.management_token or secret_in(os.environ, MANAGEMENT_VARIABLE)
        # A setting that cannot work is said now, not when the first row or the first callback is sent.
        self._settings.shipping()
        self._settings.outgoing.secrets()
        self._observers = Observers(service, endpoints, metrics=metrics)
        self._seen = Shapes(self._settings.stored_headers)
        self.shape_of = self._seen.of  # For an edge that looks at headers itself, and hands it to ``answered``.
        self._shapes, self._learn = self._seen.known, self._seen.learn  # Bound once: every request looks here first.
        self._keys = checked_keys(keys)
        self._clock = checked_clock(clock)
        self._polls = Polls(endpoints, self._settings.methods)
        self._judges_plain = any(endpoint.policy.judges_plain for endpoint in endpoints)
        self._starting = LockOfLoop()
        self._has_stopped = False  # After a stop only a lifespan starts the service again, no request does.
        self._server: Server | None = None
        self._handshake: Handshake | None = None
        self._around: Scope | None = None  # The lifespan's, where the application puts what its handlers work with.
        self._opening_later: asyncio.Task[None] | None = None
        self._readiness = Readiness()
        self._conditions = Conditions(log)
        self._lifespan = Lifespan(app, self._open_around, self._start_or_later, self.stop, self._close)
        if self._settings.allow_insecure:
            log.warning("%s accepts two-phase requests without TLS (allow_insecure)", service)
        for name, means in unguarded(self._settings):
            log.warning("%s: %s", name, means)

    @property
    def settings(self) -> Settings:
        """What the service said, checked. For tools that inspect it, as ``twophp doctor`` does."""
        return self._settings

    @property
    def store_url(self) -> str:
        """Where its records are."""
        return self._store_url

    @property
    def keys(self) -> Keys | None:
        """The key ring it was given, if it was given one."""
        return self._keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. A request without the opt-in costs the look-up of its shape and two comparisons."""
        if scope["type"] != "http":
            is_ours = scope["type"] == "lifespan" and not self._fails_open()
            await (self._lifespan if is_ours else self.app)(scope, receive, send)
            return
        headers, method = scope["headers"], scope["method"]
        shape = self._shapes.get(tuple(map(name_of, headers))) or self._learn(headers)
        if shape.is_plain and _OWN_PATHS not in scope["path"]:
            looks_closer = self._polls.is_needed if method in READS else self._judges_plain
            if not looks_closer or not await self._served(scope, receive, send, shape):
                await self.app(scope, receive, send)
            return
        is_ordinary = shape.asks and headers[shape.enabled][1] == TRUE
        asks = is_ordinary or (not shape.is_plain and opted_in(headers))
        if not asks or (method in READS and not asks_for_status(headers)):
            if not await self._served(scope, receive, send, shape):
                await self.app(scope, receive, send)
            return
        given: Given | None = scope.pop(GIVEN, None)
        try:
            answer = await self.answered(scope, receive, shape) if given is None else given()
        except (Disconnected, Unanswered):
            return
        if answer is None:
            await self.app(scope, receive, send)
        elif answer.run is None:
            await send_answer(send, answer, is_head=method == "HEAD")
        else:
            await _say(answer, send)

    async def _served(self, scope: Scope, receive: Receive, send: Send, shape: Shape) -> bool:
        """Whether a request with a name or a path like ours, and no opt-in, was answered here.

        Else it is the application's.
        """
        method = scope["method"]
        if method in READS:
            if self._polls.may_be_one(scope):
                await self._polled(scope, receive, send)
                return True
        elif method in self._settings.methods and await self._served_plain(scope, receive, send, shape):
            return True
        if self._management_token is not None and scope["path"].endswith(PULL_PATH):
            await self._manage(self._management_token, scope, receive, send)
            return True
        if scope["path"].endswith(READY_PATH) and method in _PROBES:
            await self._ready(scope, send)
            return True
        return False

    def _fails_open(self) -> bool:
        """Whether the application starts without us (A-37): its plain requests are to be served, recorded or not."""
        if _runs_asyncio() or not any(endpoint.policy.transparent for endpoint in self._settings.endpoints):
            return False
        log.error("%s: %s; plain requests are served without being recorded", self._settings.service, NEEDS_ASYNCIO)
        return True

    def concerns(self, scope: Scope) -> bool:
        """Whether this HTTP request may be more than the application's alone. For an edge that passes on the others."""
        if not self.shape_of(scope["headers"]).is_plain or _OWN_PATHS in scope["path"]:
            return True
        if scope["method"] in READS:
            return self._polls.may_be_one(scope)
        return self._judges_plain and self._settings.endpoints.match(scope["method"], seen_path(scope)) is not None

    async def start(self) -> Server:
        """Open and begin to work. Called when the application has started."""
        server = await self.open()
        server.start()
        return server

    async def open(self) -> Server:
        """Open what the service needs, once, also after a stop. An application's own lifespan may use it already."""
        _check_loop()
        async with self._starting():
            self._has_stopped = False
            return await self._open()

    async def stop(self) -> None:
        """Finish what was begun and close. Nothing new is begun from here on, until ``start`` or ``open`` is called."""
        self._has_stopped = True
        if self._opening_later is not None:
            self._opening_later.cancel()
            self._opening_later = None
        await self._close()

    async def _open_around(self, scope: Scope) -> None:
        """Open before the application starts. It starts also while the disk takes no writes (ADR 30)."""
        self._around = scope
        try:
            await self.open()
        except StoreUnavailable as error:
            if error.code not in _OF_THE_DISK:
                raise
            log.error("the ledger cannot be opened yet, so only plain requests are served: %s", error)  # noqa: TRY400

    async def _start_or_later(self) -> None:
        if self._server is not None:
            self._server.start()
        else:
            self._opening_later = asyncio.create_task(self._open_later())

    async def _open_later(self) -> None:
        """Try to open until it succeeds. A request that comes before opens as well."""
        while not self._has_stopped:
            with suppress(TwoPHPError):
                await self._running()
                return
            await asyncio.sleep(TRY_INTERVAL_S)

    async def _ready(self, scope: Scope, send: Send) -> None:
        try:
            server = await self._running()
            answer = await self._readiness.of(server.store)
        except TwoPHPError as error:
            answer = of_error(error)
        await send_answer(send, answer, is_head=scope["method"] == "HEAD")

    async def _open(self) -> Server:
        if self._server is None:
            watched = self._observers
            async with opening(self._store_url, clock=self._clock) as store:
                vault = open_vault(self._store_url, self._keys)
                writer = await open_ledger(store, self._settings.service, mint_uuid)
                server = Server(
                    self.app, self._settings, store, vault, writer, mint_uuid, watched.observer, watched.told
                )
                server.executions.around = self._around
                handshake = Handshake(server, self._seen, self._conditions)
            watched.watch(store.load)
            self._server, self._handshake = server, handshake
        return self._server

    async def _close(self) -> None:
        async with self._starting():
            server, self._server, self._handshake = self._server, None, None
            if server is not None:
                self._observers.watch(None)
                await server.stop()

    async def _running(self) -> Server:
        """Without a lifespan the first request starts us. One after a stop must not: nothing would stop us again."""
        _check_loop()
        if self._server is not None:
            return self._server
        self._refuse_after_stop()  # At once: the lock is held until everything has ended.
        async with self._starting():
            self._refuse_after_stop()
            server = await self._open()
        server.start()
        return server

    def _refuse_after_stop(self) -> None:
        if self._has_stopped:
            raise StoreUnavailable("the service is shutting down and takes no new work")

    def answered(self, scope: Scope, receive: Receive, shape: Shape | None = None) -> Answering:
        """What answers a request that opted in, for an edge that sends it itself; None: it is the application's.

        Raises Disconnected and Unanswered where there is nothing to send, and what the service's own code raises.
        """
        shape = shape or self._seen.of(scope["headers"])
        handshake = self._handshake
        if handshake is None or not _runs_asyncio():
            return self._answered_once_open(scope, receive, shape)
        return handshake.answered(scope, receive, shape)

    async def _answered_once_open(self, scope: Scope, receive: Receive, shape: Shape) -> Answer | None:
        try:
            await self._running()
        except TwoPHPError as error:
            return failed(error, scope, self._conditions)
        assert self._handshake is not None
        return await self._handshake.answered(scope, receive, shape)

    def recalls(self, server_correlation_id: str) -> bool:
        """Whether a confirm of this intent is a repeat whose answer is in memory: nothing is run for it."""
        return self._server is not None and self._server.executions.recall(server_correlation_id) is not None

    async def _polled(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a read without the opt-in that is about an intent. Any other read is the application's."""
        try:
            server = await self._running()
            with server.requests:
                head = head_of(scope, server.store.now(), server.store.wall_ahead_ms())
                found = await status_of(server, head, scope)
        except TwoPHPError as error:
            is_ours = seen_path(scope).startswith(STATUS_PATH)
            found = of_error(error) if is_ours else None
        if isinstance(found, Answer):
            await send_answer(send, found, is_head=scope["method"] == "HEAD")
            return
        await self.app(scope, receive, send if found is None else saying_committed(send, found))

    async def _manage(self, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A pull by the central ledger: rows for a caller with the management credential (draft §13.5)."""
        try:
            server = await self._running()
            head = head_of(scope, server.store.now(), server.store.wall_ahead_ms())
            if not self._settings.allow_insecure and effective_scheme(head, self._settings.proxies) != "https":
                raise WireError("a pull needs TLS", code="tls_required")
            with server.requests:
                answer = await Management(server.store, self._settings.service, token).answer(head, receive)
        except Disconnected:
            return
        except TwoPHPError as error:
            answer = of_error(error)
        await send_answer(send, answer)

    async def _served_plain(self, scope: Scope, receive: Receive, send: Send, shape: Shape) -> bool:
        """Whether a plain mutation has been answered here: recorded or refused, as its endpoint's policy says."""
        mistaken = None if shape.is_plain else mistaken_opt_in(scope["headers"])
        if mistaken is None and not self._judges_plain:
            return False
        endpoint = self._settings.endpoints.match(scope["method"], seen_path(scope))
        if endpoint is None:
            return False
        if mistaken is not None:
            self._observers.mistaken(endpoint.name, mistaken)
        policy = endpoint.policy
        if policy.idempotency_key != "ignore" and await self._keyed(endpoint, scope, receive, send, shape):
            return True
        if policy.transparent:
            await self._transparent(endpoint, scope, receive, send, shape)
        elif policy.require:
            await send_answer(send, refused("two_phase_required"))
        return policy.transparent or policy.require

    async def _keyed(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, shape: Shape) -> bool:
        """Whether a plain mutation was answered here because of its Idempotency-Key, or because it has none."""
        try:
            key = read_key(scope["headers"])
            if key is None:
                if endpoint.policy.idempotency_key == "accept":
                    return False
                raise WireError("a key is required here", code="idempotency_key_missing")
            server = await self._running()
            assert self._handshake is not None
            with server.requests:
                answer = await self._handshake.keyed(key, endpoint, scope, receive, shape)
        except (Disconnected, Unanswered):
            return True  # There is nobody to answer, or the server decides about an unanswered request.
        except TwoPHPError as error:
            answer = failed(error, scope, self._conditions)
        await _say(answer, send)
        return True

    async def _opened(self) -> tuple[Server, Handshake]:
        try:
            server = await self._running()
        except TwoPHPError as error:
            raise NotRegistered from error
        assert self._handshake is not None
        return server, self._handshake

    async def _transparent(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, shape: Shape) -> None:
        """Record a plain request. Its client did not ask for a ledger and must not suffer from it: fail open (A-37)."""
        rewindable = Rewindable(receive)
        try:
            server, handshake = await self._opened()
            with server.requests:
                answer = await handshake.transparent(endpoint, scope, rewindable, shape)
        except Unanswered:
            return  # The server decides about a request that the application left unanswered.
        except NotRegistered as error:
            cause = error.__cause__
            assert isinstance(cause, TwoPHPError)
            self._conditions.known(logging.ERROR, "a plain request was served without being recorded", error=cause)
            self._observers.unrecorded(endpoint.name)
            await self.app(scope, rewindable.again(), send)
            return
        await _say(answer, send)


async def _say(answer: Answer, send: Send) -> None:
    """Answer, and return when the application has returned.

    Servers, test clients and the middleware around us take the end of the call for the end of its background tasks.
    """
    run = answer.run
    if run is None:
        await send_answer(send, answer)
        return
    was_over = run.is_over  # After the end its variables do not change any more.
    take_over(run.context)
    await send_answer(send, answer)
    if not run.is_over:
        await asyncio.wait([run.task])  # To cancel this ends the waiting and not the work.
    if not was_over:
        take_over(run.context)
    if run.raised is not None and run.said is not None and run.intent.mode is Mode.TRANSPARENT:
        raise run.raised  # After its answer, to the server, as it would without us.
