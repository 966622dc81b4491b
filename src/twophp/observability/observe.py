"""What goes on, told to whoever wants to count it, time it or write it beside a span.

An observer is told after the fact: what it hears of is durable or answered, and nothing it does changes it. It is
called on the hot path, so it must be quick and must not raise. Quantities that are cheaper to ask for than to be told
of (queues, batches) are no part of this; a collector reads them when somebody looks (``Store.load``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from twophp.core import job
from twophp.core.intent import Intent
from twophp.core.phase import IntentDecision

PhaseNumber: TypeAlias = Literal[1, 2]


class Observer(Protocol):
    """Somebody who wants to know."""

    @property
    def times(self) -> bool:
        """Whether it wants to know how long things took; if nobody does, nobody looks at a clock."""
        ...

    def decided(self, decision: IntentDecision) -> None:
        """A decision about an intent has become durable: a step, a replay or a refusal."""
        ...

    def replayed(self, intent: Intent) -> None:
        """A settled outcome was repeated from memory, so there was nothing to decide."""
        ...

    def answered(self, phase: PhaseNumber, intent: Intent, took_s: float) -> None:
        """A request of this phase got its answer, and how long it waited for it. Told only to one that ``times``."""
        ...

    def attempted(self, decision: job.JobDecision) -> None:
        """An attempt to deliver has ended, and what became of its job is durable."""
        ...


class Silent:
    """Nobody wants to know."""

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
    """Says that there is news whenever a row has changed: for whoever publishes rows one by one (draft §9.5)."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news

    def decided(self, decision: IntentDecision) -> None:
        """See ``Observer``."""
        if decision.changed:
            self._news()


class Several:
    """Tells each of several, in order."""

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
    """As few calls as there are listeners."""
    if len(observers) == 1:
        return observers[0]
    return Several(*observers) if observers else SILENT
