"""Python's garbage collector while a service runs: it does not walk again what was loaded.

A full collection walks every object that can hold another one. In a service most of them are modules, classes and
functions: loaded before the first request, and there until the process ends. To walk them takes tens of milliseconds,
in which no request is answered. So when the first service of a process begins, what is alive is collected once and then
frozen: the collector does not look at it again.

Python also looks after every 700 objects that were made and not yet freed, at the survivors of ten looks, and at all
again after ten of those. What a handshake makes is freed by its reference count when the handshake ends, so under load
these looks find next to nothing. They are made less often, if the thresholds are those that Python came with: a program
that has set its own knows better. The first of them bounds a pause: to look at one object takes up to a microsecond.

The collector is the process's and not ours. What was done is undone when the last service of the process ends, and a
program that has switched the collector off is left alone.
"""

from __future__ import annotations

import gc
import os
from threading import Lock
from typing import Final, TypeAlias

Thresholds: TypeAlias = tuple[int, int, int]

PYTHONS_OWN: Final = frozenset({(700, 10, 10), (2000, 10, 10)})
"""Of CPython 3.11 to 3.13. One that says 0 last collects in steps: it bounds its pauses itself and is left as it is."""
CALM: Final[Thresholds] = (2_000, 20, 100)
"""Objects made and not freed, looks at those, and looks at their survivors."""


class Collector:
    """The collector of this process, set for the services that run in it."""

    def __init__(self) -> None:
        self._lock = Lock()  # Two services may run on two threads.
        self._running = 0
        self._has_collected = False
        self._may_unfreeze = False
        self._found: Thresholds | None = None  # What the thresholds were, if they were changed.

    def begin(self) -> None:
        """One more service runs. The first freezes what is loaded; what a later one loads is walked as ever."""
        with self._lock:
            self._running += 1
            if self._running == 1 and gc.isenabled():
                self._calm()

    def end(self) -> None:
        """One service less runs. After the last one, everything is as it was found."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._undo()

    def _calm(self) -> None:
        if not self._has_collected:  # Garbage that is frozen stays. Once: tests start a service again and again.
            gc.collect()
            self._has_collected = True
        self._may_unfreeze = not gc.get_freeze_count()  # A part of what is frozen cannot be unfrozen.
        gc.freeze()
        found = gc.get_threshold()
        if found in PYTHONS_OWN:
            gc.set_threshold(*CALM)
            self._found = found

    def _undo(self) -> None:
        if self._may_unfreeze:
            gc.unfreeze()
            self._may_unfreeze = False
        if self._found is not None and gc.get_threshold() == CALM:
            gc.set_threshold(*self._found)
        self._found = None

    def forget(self) -> None:
        """A forked child: the services are its parent's, and the lock may be held by a thread that is not here."""
        self._lock = Lock()
        self._running = 0
        if self._found is not None and gc.get_threshold() == CALM:
            gc.set_threshold(*self._found)
        self._found, self._may_unfreeze = None, False


collector: Final = Collector()
"""The one of this process."""
os.register_at_fork(after_in_child=collector.forget)
