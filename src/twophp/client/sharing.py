"""One set of handles on a ledger for all transports of a process that use it alike.

A handle costs descriptors and a thread. Transports share theirs if they name the same file and agree on everything that
is about the ledger and not about a single transport (see ``terms_of``). Each keeps a share; the last to give it back
closes the handles. Blocking transports share one portal, its ledger and one thread that reconciles. Awaiting ones
belong to an event loop, so they share a ledger with those of the same loop.

Threads do not survive a fork and connections must not cross one: a child begins with nothing shared.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakSet

import msgspec

from twophp.client.blocking_ledger import BlockingLedger
from twophp.client.ledger import Ledger
from twophp.client.settings import Settings
from twophp.stores.keys import KEYS_FILE_VARIABLE, KEYS_VARIABLE
from twophp.stores.portal import Portal
from twophp.stores.urls import parse_store_url

Terms: TypeAlias = tuple[Any, ...]
File: TypeAlias = tuple[int, int]
"""Device and inode: a path may come to name another file while the first is still open."""


def terms_of(settings: Settings) -> Terms | None:
    """What two transports must agree on to share a ledger; None: nothing is shared, because memory has no name."""
    where = parse_store_url(settings.ledger)
    if where.kind == "memory":
        return None
    keys: object = settings.keys
    if keys is None:
        keys = (os.environ.get(KEYS_VARIABLE), os.environ.get(KEYS_FILE_VARIABLE))
    return (
        os.path.realpath(where.path) if where.kind == "sqlite" else where.path,
        settings.source,
        settings.lease_s,
        settings.ledger_retention_ms,
        settings.shipping(),
        keys,
        settings.clock,
        settings.steady,
        settings.mint,
    )


def _file(terms: Terms | None) -> File | None:
    if terms is None:
        return None
    try:
        found = Path(terms[0]).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Visitor(msgspec.Struct, frozen=True, eq=False):
    """A transport that reconciles: how often, and how. ``visit`` raises nothing."""

    every_s: float
    visit: Callable[[], None]


class Visits:
    """One thread that reconciles for all: as often as the most impatient asks, each transport in its turn.

    A new transport makes its first visit at once. There is a thread only while there is a visitor.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._new: deque[Visitor] = deque()
        self._turns: deque[Visitor] = deque()
        self._visiting: Visitor | None = None
        self._thread: threading.Thread | None = None

    def join(self, visitor: Visitor) -> None:
        """Take part from now on."""
        with self._changed:
            self._turns.append(visitor)
            self._new.append(visitor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twophp-reconciler", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def leave(self, visitor: Visitor) -> None:
        """Take no more part. A visit that is being made is waited for: it uses the transport's connections."""
        with self._changed:
            thread = self._thread
            for turns in (self._turns, self._new):
                if visitor in turns:
                    turns.remove(visitor)
            self._changed.notify_all()
            if thread is threading.current_thread():  # A callback of the visit itself.
                return
            self._changed.wait_for(lambda: self._visiting is not visitor)
            if thread is None:
                return
            self._changed.wait_for(lambda: self._turns or self._thread is not thread)
            ends = self._thread is not thread  # If not, a visitor has joined since, and the thread goes on for it.
        if ends:
            thread.join()

    def _run(self) -> None:
        while (visitor := self._next()) is not None:
            try:
                visitor.visit()
            finally:
                with self._changed:
                    self._visiting = None
                    self._changed.notify_all()

    def _next(self) -> Visitor | None:
        with self._changed:
            every_s = min((visitor.every_s for visitor in self._turns), default=0.0)
            self._changed.wait_for(lambda: self._new or not self._turns, timeout=every_s)
            if not self._turns:
                self._thread = None
                self._changed.notify_all()
                return None
            if self._new:
                self._visiting = self._new.popleft()
            else:
                self._visiting = self._turns[0]
                self._turns.rotate(-1)
            return self._visiting


class _Opening:
    """Both handles on the ledger, or neither, on the loop of a portal."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._here: BlockingLedger | None = None

    async def open(self, settings: Settings) -> tuple[Ledger, BlockingLedger | None]:
        """Open both. If one fails, the portal calls ``undo``."""
        self._ledger = await Ledger.open(settings)
        self._here = await BlockingLedger.beside(self._ledger)
        return self._ledger, self._here

    async def undo(self) -> None:
        """Close the handles that were opened."""
        if self._here is not None:
            self._here.close()
        if self._ledger is not None:
            await self._ledger.close()


class Handles:
    """A portal, the ledger on its loop, the handle for threads, and the thread that reconciles. For any thread."""

    def __init__(self, settings: Settings, terms: Terms | None) -> None:
        portal = Portal(f"twophp-{settings.source}")
        opening = _Opening()
        self.ledger, self.here = portal.open(opening.open(settings), opening.undo)
        self.portal = portal
        self.visits = Visits()
        self.shares = 1
        self._terms = terms
        self._file = _file(terms)
        self._pid = os.getpid()
        atexit.register(self.flush)

    def serves(self, terms: Terms | None) -> bool:
        """Whether a transport with these terms may share them."""
        is_same = terms is not None and terms == self._terms and self.ledger.is_alive
        return is_same and self._file is not None and self._file == _file(terms)

    def flush(self) -> None:
        """Write the outcomes recorded behind answers; also when a process ends without closing."""
        if self.here is not None and self.shares and self._pid == os.getpid():
            self.here.flush()

    def close(self) -> None:
        """Close all handles: the last share was given back."""
        atexit.unregister(self.flush)
        if self.here is not None:
            self.here.close()
        self.portal.run(self.ledger.close())
        self.portal.close()


class _Pool:
    """All handles of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles: list[Handles] = []
        self.on_loops: WeakSet[LoopLedger] = WeakSet()  # Weak: a loop may end with its transports open.


_pool = _Pool()
_left_behind: Final[list[_Pool]] = []  # By forks. The child must not close them, and dropping the last reference would.


def _begin_anew() -> None:
    global _pool  # noqa: PLW0603 - a fork changes what belongs to the process, and its lock may be held for ever.
    _left_behind.append(_pool)
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def take_share(settings: Settings) -> Handles:
    """Handles on the ledger of these settings: shared where they can be, else opened."""
    terms = terms_of(settings)
    with _pool.lock:
        for handles in _pool.handles:
            if handles.serves(terms):
                handles.shares += 1
                return handles
        handles = Handles(settings, terms)
        _pool.handles.append(handles)
        return handles


def give_back(handles: Handles) -> None:
    """Close the handles if it was the last share; else make the outcomes recorded so far durable."""
    with _pool.lock:
        handles.shares -= 1
        is_last = not handles.shares
        if is_last:
            _pool.handles.remove(handles)
    if is_last:
        handles.close()
    else:
        handles.flush()


class LoopLedger:
    """A ledger of one event loop, opened by the first that needs it."""

    def __init__(self, terms: Terms | None) -> None:
        self.shares = 0
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._file: File | None = None
        self._ledger: Ledger | None = None

    def serves(self, terms: Terms | None) -> bool:
        """Whether a transport with these terms, on the running loop, may share it."""
        if terms is None or terms != self._terms or self._loop is not asyncio.get_running_loop():
            return False
        return self._ledger is None or (self._ledger.is_alive and self._file is not None and self._file == _file(terms))

    async def open(self, settings: Settings) -> Ledger:
        """The ledger. Concurrent callers share one opening; if it fails, each waiting caller tries in its turn."""
        async with self._turn:
            if self._ledger is None:
                self._ledger = await Ledger.open(settings)
                self._file = _file(self._terms)
            return self._ledger

    async def close(self) -> None:
        """Close the ledger: the last share was given back."""
        if self._ledger is not None:
            await self._ledger.close()

    async def flush(self) -> None:
        """Write the outcomes recorded behind answers."""
        if self._ledger is not None:
            await self._ledger.flush()


async def take_share_on_loop(settings: Settings) -> tuple[LoopLedger, Ledger]:
    """A ledger on the running loop: shared where it can be, else opened."""
    terms = terms_of(settings)
    with _pool.lock:
        shared = next((shared for shared in _pool.on_loops if shared.serves(terms)), None) or LoopLedger(terms)
        _pool.on_loops.add(shared)
        shared.shares += 1
    try:
        return shared, await shared.open(settings)
    except BaseException:
        await give_back_on_loop(shared)
        raise


async def give_back_on_loop(shared: LoopLedger) -> None:
    """Close the ledger if it was the last share; else make the outcomes recorded so far durable."""
    with _pool.lock:
        shared.shares -= 1
        is_last = not shared.shares
        if is_last:
            _pool.on_loops.discard(shared)
    if is_last:
        await shared.close()
    else:
        await shared.flush()
