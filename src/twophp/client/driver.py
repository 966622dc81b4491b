"""The two loops that drive a flow, one that blocks and one that awaits, and what they need beside it.

Everything that differs between the colours is here, and nothing else is.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import threading
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol, TypeVar

from twophp.client.exchange import (
    Around,
    Asked,
    Effect,
    Look,
    NotSent,
    Outcome,
    Pause,
    Read,
    Record,
    RecordBehind,
    Reply,
    Send,
    Unseal,
)
from twophp.client.flow import calling
from twophp.client.here import LedgerHere
from twophp.client.known import Known
from twophp.client.ledger import Ledger
from twophp.client.reconciler import MOST, PAGE, Progress, Reconciliation, Tally, asking_once, reconciling
from twophp.client.settings import Settings
from twophp.core.errors import ConfigError, PhaseError, StoreUnavailable
from twophp.stores.clock import pause
from twophp.stores.portal import Portal

log: Final = logging.getLogger("twophp.client")

T = TypeVar("T")


class Http(Protocol):
    """One library's blocking way to send and read."""

    def send(self, effect: Send) -> Reply:
        """Send; raises NotSent or Lost."""
        ...

    def read(self, reply: Reply, limit: int) -> bytes:
        """Read up to ``limit`` bytes and close."""
        ...

    def keep(self, native: Any) -> None:
        """Read a response to its end, so that it can be looked at after its connection is gone."""
        ...

    def drop(self, reply: Reply | None) -> None:
        """Close an answer that nobody gets, if there is one: its connection would be gone from the pool for good."""
        ...


class AsyncHttp(Protocol):
    """One library's awaitable way to send and read; see ``Http``."""

    async def send(self, effect: Send) -> Reply:
        """Send; raises NotSent or Lost."""
        ...

    async def read(self, reply: Reply, limit: int) -> bytes:
        """Read up to ``limit`` bytes and close."""
        ...

    async def keep(self, native: Any) -> None:
        """Read a response to its end."""
        ...

    async def drop(self, reply: Reply | None) -> None:
        """Close an answer that nobody gets, if there is one."""
        ...


def warn_if_insecure(settings: Settings) -> None:
    """Said once, as the middleware does (A-64)."""
    if settings.allow_insecure:
        log.warning("%s: two-phase requests are sent without TLS (allow_insecure)", settings.source)


class _Handles:
    """Both handles on the ledger, or neither, on the loop of a portal."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._here: LedgerHere | None = None

    async def open(self, settings: Settings) -> tuple[Ledger, LedgerHere | None]:
        """Whoever cannot have both undoes it."""
        self._ledger = await Ledger.open(settings)
        self._here = await LedgerHere.beside(self._ledger)
        return self._ledger, self._here

    async def undo(self) -> None:
        """Let go of what there is."""
        if self._here is not None:
            self._here.close()
        if self._ledger is not None:
            await self._ledger.close()


class _Trail:
    """What a call leaves behind, however it ends: leases to let go of, and an answer that nobody was given."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.heard: Reply | None = None


class Machinery:
    """Everything between the opening and the closing of a blocking transport. Safe to use from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known = Known()
        self._pause = settings.pause or pause
        self._stopping = threading.Event()
        self._background: threading.Thread | None = None
        self._make_http: Callable[[], Http] | None = None
        self._lock = threading.Lock()
        self._left_behind: list[object] = []  # By a fork: not ours to close, and closing is what forgetting would do.
        warn_if_insecure(settings)
        self._open()

    def _open(self) -> None:
        portal = Portal(f"twophp-{self.settings.source}")
        handles = _Handles()
        ledger, here = portal.open(handles.open(self.settings), handles.undo)
        self._pid = os.getpid()
        self._is_open = True
        self._portal, self._ledger, self._here = portal, ledger, here
        atexit.register(self._flush)
        self._around = Around(settings=self.settings, known=self._known, owner=ledger.owner, secret=ledger.secret)

    def _after_fork(self) -> None:
        """Threads do not survive a fork, and connections must not be shared: a child opens its own."""
        if self._pid != os.getpid() and self._is_open:
            with self._lock:
                if self._pid != os.getpid():
                    self._left_behind += [self._portal, self._ledger, self._here, self._background]
                    self._open()
                    if self._make_http is not None:
                        self.begin(self._make_http)

    def begin(self, http: Callable[[], Http]) -> None:
        """Reconcile now and from time to time, in a thread of its own. ``http`` makes the way to send."""
        self._make_http = http
        every_s = self.settings.reconcile_every_s
        if every_s is None:
            return

        def visit() -> None:
            while True:
                try:
                    self.reconcile(http())
                except Exception as error:  # noqa: BLE001 - a visit that fails is made again.
                    log.warning("calls could not be reconciled: %s", error)
                if self._stopping.wait(every_s):
                    return

        self._background = threading.Thread(target=visit, name="twophp-reconciler", daemon=True)
        self._background.start()

    def call(self, asked: Asked, http: Http) -> Outcome:
        """Make one call."""
        self._after_fork()
        if not self._is_open:  # Before anything is sent, not after.
            raise StoreUnavailable("the transport is closed", code="store_closed")
        return self._drive(calling(asked, self._around), http)

    def reconcile(self, http: Http, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Attend to every call that nobody drives."""
        self._after_fork()
        tally = Tally(progress, limit)
        around = asking_once(self._around)
        self._flush()  # What is only on its way is not open.
        while ids := tally.fresh(self._portal.run(self._ledger.due(PAGE))):
            for id_ in ids:
                if self._stopping.is_set():
                    return tally.result()
                tally.add(self._drive(reconciling(id_, around), http))
        return tally.result()

    def close(self) -> None:
        """Stop reconciling and let go of the ledger. Closing twice is closing once."""
        if self._pid != os.getpid():
            return
        self._stopping.set()
        if self._background is not None:
            self._background.join()
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            atexit.unregister(self._flush)
            if self._here is not None:
                self._here.close()
            self._portal.run(self._ledger.close())
            self._portal.close()

    def _flush(self) -> None:
        """Write what was told behind an answer; also when a process ends without closing."""
        if self._here is not None and self._is_open and self._pid == os.getpid():
            self._here.flush()

    def _drive(self, steps: Generator[Effect, Any, T], http: Http) -> T:
        trail = _Trail()
        try:
            effect = next(steps)
            while True:
                try:
                    answer = self._do(effect, http, trail)
                except Exception as error:  # noqa: BLE001 - the flow decides what it means.
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            if isinstance(result, Outcome):  # Its answer is the caller's.
                trail.heard = None
            return result
        except NotSent as error:
            raise error.native from None
        except PhaseError as error:
            if error.response is not None:
                http.keep(error.response)
            raise
        finally:
            for id_ in trail.ids:
                self._ledger.leave(id_)
            http.drop(trail.heard)

    def _do(self, effect: Effect, http: Http, trail: _Trail) -> Any:
        match effect:
            case Send():
                http.drop(trail.heard)  # Whoever asks anew is done with the answer before.
                trail.heard = http.send(effect)
                return trail.heard
            case Read():
                return b"" if effect.reply.native is None else http.read(effect.reply, effect.limit)
            case Pause():
                return self._pause(effect.seconds)
            case Unseal():
                return self._portal.run(self._ledger.noted_request(effect.call))
        return self._write_down(effect, trail)

    def _write_down(self, effect: Record | RecordBehind | Look, trail: _Trail) -> Any:
        here, portal, ledger = self._here, self._portal, self._ledger
        match effect:
            case RecordBehind(known=known, told=told):
                if (decided := (here or ledger).record_behind(known, told)) is not None:
                    return decided
                effect = Record(client_correlation_id=known.client_correlation_id, command=told)
            case Look(client_correlation_id=id_):
                return here.look(id_) if here is not None else portal.run(ledger.look(id_))
        id_ = effect.client_correlation_id
        trail.ids.add(id_)
        what = id_, effect.command, effect.request
        return here.record(*what) if here is not None else portal.run(ledger.record(*what))


class AsyncMachinery:
    """Everything between the opening and the closing of an awaiting transport, on one asyncio event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known = Known()
        self._ledger: Ledger | None = None
        self._around: Around | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._background: asyncio.Task[None] | None = None
        warn_if_insecure(settings)

    async def open(self, http: Callable[[], AsyncHttp]) -> tuple[Ledger, Around]:
        """Open the ledger and begin to reconcile, once."""
        ledger, around = self._ledger, self._around
        if ledger is None or around is None:
            async with self._opening:
                if self._is_closed:
                    raise StoreUnavailable("the transport is closed", code="store_closed")
                if self._ledger is None:
                    self._loop = _running_loop()
                    ledger = await Ledger.open(self.settings)
                    self._around = Around(
                        settings=self.settings, known=self._known, owner=ledger.owner, secret=ledger.secret
                    )
                    self._ledger = ledger
                    if self.settings.reconcile_every_s is not None:
                        self._background = self._loop.create_task(self._visit(http, self.settings.reconcile_every_s))
                ledger, around = self._ledger, self._around
        assert around is not None
        if self._loop is not _running_loop():
            raise ConfigError("a transport belongs to the event loop that opened it", code="other_loop")
        return ledger, around

    async def _visit(self, http: Callable[[], AsyncHttp], every_s: float) -> None:
        while True:
            try:
                await self.reconcile(http)
            except Exception as error:  # noqa: BLE001 - a visit that fails is made again.
                log.warning("calls could not be reconciled: %s", error)
            await asyncio.sleep(every_s)

    async def call(self, asked: Asked, http: AsyncHttp, make_http: Callable[[], AsyncHttp]) -> Outcome:
        """Make one call."""
        ledger, around = await self.open(make_http)
        return await self._drive(calling(asked, around), http, ledger)

    async def reconcile(
        self, http: Callable[[], AsyncHttp], *, limit: int = MOST, progress: Progress | None = None
    ) -> Reconciliation:
        """Attend to every call that nobody drives."""
        ledger, around = await self.open(http)
        tally = Tally(progress, limit)
        around = asking_once(around)
        while ids := tally.fresh(await ledger.due(PAGE)):
            for id_ in ids:
                tally.add(await self._drive(reconciling(id_, around), http(), ledger))
        return tally.result()

    async def close(self) -> None:
        """Stop reconciling and let go of the ledger, for good. Closing twice is closing once."""
        async with self._opening:  # What is being opened is closed, and nobody opens it again.
            self._is_closed = True
            background, self._background = self._background, None
            if background is not None:
                background.cancel()
                await asyncio.wait([background])
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                await ledger.close()

    async def _drive(self, steps: Generator[Effect, Any, T], http: AsyncHttp, ledger: Ledger) -> T:
        trail = _Trail()
        try:
            effect = next(steps)
            while True:
                try:
                    answer = await self._do(effect, http, ledger, trail)
                except Exception as error:  # noqa: BLE001 - the flow decides what it means.
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            if isinstance(result, Outcome):  # Its answer is the caller's.
                trail.heard = None
            return result
        except NotSent as error:
            raise error.native from None
        except PhaseError as error:
            if error.response is not None:
                await http.keep(error.response)
            raise
        finally:
            for id_ in trail.ids:
                ledger.leave(id_)
            await http.drop(trail.heard)

    async def _do(self, effect: Effect, http: AsyncHttp, ledger: Ledger, trail: _Trail) -> Any:
        match effect:
            case Send():
                await http.drop(trail.heard)
                trail.heard = await http.send(effect)
                return trail.heard
            case Read():
                return b"" if effect.reply.native is None else await http.read(effect.reply, effect.limit)
            case Pause():
                return await self._wait(effect.seconds)
            case Unseal():
                return await ledger.noted_request(effect.call)
        return await self._write_down(effect, ledger, trail)

    async def _write_down(self, effect: Record | RecordBehind | Look, ledger: Ledger, trail: _Trail) -> Any:
        match effect:
            case RecordBehind(known=known, told=told):
                if (decided := ledger.record_behind(known, told)) is not None:
                    return decided
                effect = Record(client_correlation_id=known.client_correlation_id, command=told)
            case Look(client_correlation_id=id_):
                return await ledger.look(id_)
        trail.ids.add(effect.client_correlation_id)
        return await ledger.record(effect.client_correlation_id, effect.command, effect.request)

    async def _wait(self, seconds: float) -> None:
        given = self.settings.pause
        if given is None:
            await asyncio.sleep(seconds)
            return
        waiting = given(seconds)
        if inspect.isawaitable(waiting):
            await waiting


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError("the asynchronous transport needs asyncio", code="asyncio_only") from error
