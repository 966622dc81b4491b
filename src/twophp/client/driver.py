"""The loop that drives a flow, for callers that block and for those that await, and what each needs beside it.

Everything that differs between the colours is here, and nothing else is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeVar

from twophp.client.exchange import (
    CallRequest,
    Effect,
    Keep,
    KnownEndpoints,
    Look,
    NotSent,
    Outcome,
    Pause,
    Read,
    Record,
    RecordBehind,
    Reply,
    Send,
    TransportContext,
    Unseal,
)
from twophp.client.flow import calling
from twophp.client.ledger import Ledger
from twophp.client.reconciler import MOST, PAGE, Progress, Reconciliation, Tally, asking_once, reconciling
from twophp.client.settings import Settings
from twophp.client.sharing import (
    Handles,
    LoopLedger,
    Visitor,
    give_back,
    give_back_on_loop,
    take_share,
    take_share_on_loop,
    terms_of,
)
from twophp.core.call import Call
from twophp.core.call_commands import ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.errors import ConfigError, PhaseError, StoreUnavailable
from twophp.stores.clock import pause
from twophp.stores.portal import run_sync

log: Final = logging.getLogger("twophp.client")

T = TypeVar("T")


class Http(Protocol):
    """One library's way to send and read: a blocking one, or one whose answers are awaited."""

    def send(self, effect: Send) -> Reply | Awaitable[Reply]:
        """Send; raises NotSent or Lost."""
        ...

    def read(self, reply: Reply, limit: int) -> bytes | Awaitable[bytes]:
        """Read up to ``limit`` bytes and close."""
        ...

    def keep(self, native: Any) -> Awaitable[None] | None:
        """Read a response to its end, so that it can be looked at after its connection is gone."""
        ...

    def drop(self, reply: Reply | None) -> Awaitable[None] | None:
        """Close an answer that no caller receives, if there is one: an open one keeps its connection from the pool."""
        ...


def warn_if_insecure(settings: Settings) -> None:
    """Said once, as the middleware does (A-64)."""
    if settings.allow_insecure:
        log.warning("%s: two-phase requests are sent without TLS (allow_insecure)", settings.source)


def around_of(settings: Settings, known: KnownEndpoints, ledger: Ledger) -> TransportContext:
    """What all calls over this ledger have in common."""
    terms = terms_of(settings)
    return TransportContext(
        settings=settings,
        known=known,
        ledger=ledger.owner if terms is None else terms[0],
        owner=ledger.owner,
        callback_token=ledger.callback_token,
    )


class _LedgerOfThreads:
    """The ledger of a portal's loop as threads reach it: by the handle for threads where there is one."""

    def __init__(self, handles: Handles) -> None:
        self._run, self._ledger, self._here = handles.portal.run, handles.ledger, handles.here
        self.leave = handles.ledger.leave

    def look(self, id_: str) -> Call | None:
        return self._run(self._ledger.look(id_)) if self._here is None else self._here.look(id_)

    def record(self, *what: Any) -> CallDecision:
        return self._run(self._ledger.record(*what)) if self._here is None else self._here.record(*what)

    def record_behind(self, known: Call, told: ServerReply) -> CallDecision | None:
        return (self._here or self._ledger).record_behind(known, told)

    def noted_request(self, call: Call) -> bytes | None:
        return self._run(self._ledger.noted_request(call))


class _Drive:
    """One call under way. Written once for both colours: what a blocking library or ledger answers is not awaited.

    Without anything to await it never suspends, so ``run_sync`` runs it in the thread of its caller.
    """

    def __init__(self, http: Http, ledger: Ledger | _LedgerOfThreads, wait: Callable[[float], Any]) -> None:
        self._http = http
        self._ledger = ledger
        self._wait = wait
        # What a call leaves behind, however it ends: leases to stop renewing, and an answer that no caller received.
        self._ids: set[str] = set()
        self._heard: Reply | None = None

    async def run(self, steps: Generator[Effect, Any, T]) -> T:
        """Do what the flow asks for until it ends."""
        try:
            effect = next(steps)
            while True:
                try:
                    answer = await self._done(effect)
                except Exception as error:  # noqa: BLE001 - the flow decides what it means.
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            if isinstance(result, Outcome):  # Its answer is the caller's.
                self._heard = None
            return result
        except NotSent as error:
            raise error.native from None
        except PhaseError as error:
            if error.response is not None:
                await _ended(self._http.keep(error.response))
            raise
        finally:
            steps.close()  # Now, in the context of its caller: the flow's finally sets context variables.
            for id_ in self._ids:
                self._ledger.leave(id_)
            await _ended(self._http.drop(self._heard))

    async def _done(self, effect: Effect) -> Any:
        if type(effect) is Send:  # A flow that sends again is done with the last answer.
            await _ended(self._http.drop(self._heard))
        answer = self._do(effect)
        if isawaitable(answer):
            answer = await answer
        if type(effect) is Send:
            self._heard = answer
        return _content(effect.reply) if type(effect) is Keep else answer

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Send():
                return self._http.send(effect)
            case Read():
                return b"" if effect.reply.native is None else self._http.read(effect.reply, effect.limit)
            case Keep():
                return self._http.keep(effect.reply.native)
            case Pause():
                return self._wait(effect.seconds)
            case Unseal():
                return self._ledger.noted_request(effect.call)
        return self._write_down(effect)

    def _write_down(self, effect: Record | RecordBehind | Look) -> Any:
        match effect:
            case RecordBehind(known=known, told=told):
                if (decided := self._ledger.record_behind(known, told)) is not None:
                    return decided
                effect = Record(client_correlation_id=known.client_correlation_id, command=told)
            case Look(client_correlation_id=id_):
                return self._ledger.look(id_)
        self._ids.add(effect.client_correlation_id)
        return self._ledger.record(effect.client_correlation_id, effect.command, effect.request)


class SyncRuntime:
    """Everything between the opening and the closing of a blocking transport. Safe to use from any thread.

    What it opens it shares with others on the same ledger, see ``sharing``. ``is_lazy``: the ledger is opened by the
    first call, and so it is in the child of a fork, where threads are gone and connections must not be shared.
    """

    def __init__(self, settings: Settings, make_http: Callable[[], Http], *, is_lazy: bool = False) -> None:
        self.settings = settings
        self._make_http = make_http  # For requests of the reconciler, which has no caller.
        self._known = KnownEndpoints()
        self._pause = settings.pause or pause
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._is_open = True
        self._pid = 0  # Of the process that has opened it; 0: none has.
        warn_if_insecure(settings)
        if not is_lazy:
            self._open()

    def _open(self) -> None:
        handles = take_share(self.settings)
        self._handles, self._portal, self._ledger = handles, handles.portal, handles.ledger
        self._writes = _LedgerOfThreads(handles)
        self._around = around_of(self.settings, self._known, handles.ledger)
        self._visitor = None
        if self.settings.reconcile_every_s is not None:
            self._visitor = Visitor(self.settings.reconcile_every_s, self._visit)
        self._pid = os.getpid()
        if self._visitor is not None:  # Reconciles now and from time to time.
            handles.visits.join(self._visitor)

    def _ready(self) -> None:
        """Open, in this process. Raises before anything is sent, not after."""
        if self._pid != os.getpid() and self._is_open:
            with self._lock:
                if self._pid != os.getpid() and self._is_open:
                    self._open()
        if not self._is_open:
            raise StoreUnavailable("the transport is closed", code="store_closed")

    def _visit(self) -> None:
        try:
            self.reconcile()
        except Exception as error:  # noqa: BLE001 - a visit that fails is made again.
            if not self._stopping.is_set():
                log.warning("calls could not be reconciled: %s", error)

    def call(self, asked: CallRequest, http: Http) -> Outcome:
        """Make one call."""
        self._ready()
        return self._drive(calling(asked, self._around), http)

    def reconcile(self, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Resolve every open call that has no driver."""
        self._ready()
        tally = Tally(progress, limit)
        around = asking_once(self._around)
        self._handles.flush()  # A call whose outcome waits in the queue must not be found open.
        while ids := tally.fresh(self._portal.run(self._ledger.due(PAGE))):
            http = self._make_http()
            for id_ in ids:
                if self._stopping.is_set():
                    return tally.result()
                tally.add(self._drive(reconciling(id_, around), http))
        return tally.result()

    def close(self) -> None:
        """Stop reconciling and give the ledger back. Closing twice is closing once."""
        if self._pid not in (0, os.getpid()):  # The handles belong to the parent process of a fork.
            self._is_open = False
            return
        self._stopping.set()
        if self._pid and self._visitor is not None:
            self._handles.visits.leave(self._visitor)
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open and self._pid:
            give_back(self._handles)

    def _drive(self, steps: Generator[Effect, Any, T], http: Http) -> T:
        return run_sync(_Drive(http, self._writes, self._pause).run(steps))


class AsyncMachinery:
    """Everything between the opening and the closing of an awaiting transport, on one asyncio event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pause = settings.pause or asyncio.sleep
        self._known = KnownEndpoints()
        self._shared: LoopLedger | None = None
        self._ledger: Ledger | None = None
        self._around: TransportContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._background: asyncio.Task[None] | None = None
        warn_if_insecure(settings)

    async def open(self, http: Callable[[], Http]) -> tuple[Ledger, TransportContext]:
        """Open the ledger and begin to reconcile, once."""
        ledger, around = self._ledger, self._around
        if ledger is None or around is None:
            async with self._opening:
                if self._is_closed:
                    raise StoreUnavailable("the transport is closed", code="store_closed")
                if self._ledger is None:
                    self._loop = _running_loop()
                    self._shared, ledger = await take_share_on_loop(self.settings)
                    self._around = around_of(self.settings, self._known, ledger)
                    self._ledger = ledger
                    if self.settings.reconcile_every_s is not None:
                        self._background = self._loop.create_task(self._visit(http, self.settings.reconcile_every_s))
                ledger, around = self._ledger, self._around
        assert around is not None
        if self._loop is not _running_loop():
            raise ConfigError("a transport belongs to the event loop that opened it", code="other_loop")
        return ledger, around

    async def _visit(self, http: Callable[[], Http], every_s: float) -> None:
        while True:
            try:
                await self.reconcile(http)
            except Exception as error:  # noqa: BLE001 - a visit that fails is made again.
                log.warning("calls could not be reconciled: %s", error)
            await asyncio.sleep(every_s)

    async def call(self, asked: CallRequest, http: Http, make_http: Callable[[], Http]) -> Outcome:
        """Make one call."""
        ledger, around = await self.open(make_http)
        return await _Drive(http, ledger, self._pause).run(calling(asked, around))

    async def reconcile(
        self, http: Callable[[], Http], *, limit: int = MOST, progress: Progress | None = None
    ) -> Reconciliation:
        """Resolve every open call that has no driver."""
        ledger, around = await self.open(http)
        tally = Tally(progress, limit)
        around = asking_once(around)
        while ids := tally.fresh(await ledger.due(PAGE)):
            for id_ in ids:
                tally.add(await _Drive(http(), ledger, self._pause).run(reconciling(id_, around)))
        return tally.result()

    async def close(self) -> None:
        """Stop reconciling and give the ledger back, for good. Closing twice is closing once."""
        async with self._opening:  # An opening under way ends first and is closed; no later call opens it again.
            self._is_closed = True
            background, self._background = self._background, None
            if background is not None:
                background.cancel()
                await asyncio.wait([background])
            self._ledger = None
            shared, self._shared = self._shared, None
            if shared is not None:
                await give_back_on_loop(shared)


async def _ended(done: Awaitable[None] | None) -> None:
    if done is not None:
        await done


def _content(reply: Reply) -> bytes | None:
    """The body of an answer that was read to its end; None if it broke off, which each library says in its own way."""
    try:
        content: bytes = reply.native.content
    except RuntimeError:
        return None
    return content


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError("the asynchronous transport needs asyncio", code="asyncio_only") from error
