"""Events of a service, reported to observers that count them, time them or write them beside a span.

An observer is called after the fact: what is reported is durable or answered, and an observer cannot change it. It is
called on the hot path, so it must be quick and must not raise. Quantities that are cheaper to read than to report
(queues, batches) are no part of this; a collector reads them at each scrape (``Store.load``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from twophp.core import job
from twophp.core.intent import Intent
from twophp.core.phase import IntentDecision

PhaseNumber: TypeAlias = Literal[1, 2]


class Observer(Protocol):
    """A listener to the events of a service, such as metrics or traces."""

    @property
    def times(self) -> bool:
        """Whether it needs to know how long requests took. If no observer does, no clock is read."""
        ...

    def decided(self, decision: IntentDecision) -> None:
        """A decision about an intent has become durable: a step, a replay or a refusal."""
        ...

    def replayed(self, intent: Intent) -> None:
        """A settled outcome was repeated from memory, so there was nothing to decide."""
        ...

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """A request of this phase got its answer, after ``took_s``. Called only on an observer that ``times``."""
        ...

    def attempted(self, decision: job.JobDecision) -> None:
        """An attempt to deliver has ended, and what became of its job is durable."""
        ...


class Silent:
    """The observer of a service without any: it does nothing."""

    times: Final = False

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``."""

    def replayed(self, intent: Intent) -> None:
        """See ``Observer``."""

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """See ``Observer``."""

    def attempted(self, decision: job.JobDecision) -> None:
        """See ``Observer``."""


SILENT: Final = Silent()


class Publishing(Silent):
    """Calls ``news`` whenever a row has changed: for a shipper that sends each row as it is written (draft §9.5)."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``."""
        if decision.changed:
            self._news()


class Several:
    """Calls several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.times = any(observer.times for observer in observers)

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.decided(decision)

    def replayed(self, intent: Intent) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.replayed(intent)

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.answered(phase, intent, took_s)

    def attempted(self, decision: job.JobDecision) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.attempted(decision)


def observed_by(*observers: Observer) -> Observer:
    """One observer for all of these, without a frame in between if there is one or none."""
    if len(observers) == 1:
        return observers[0]
    return Several(*observers) if observers else SILENT
