"""What a process stands on: a machine, whose wall clock may be wrong and may be set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.scheduler import ProcessLoop, Scheduler
from twophp.core.records import Instant
from twophp.stores.clock import AnchoredClock

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCH_MS: Final = 1_800_000_000_000
"""The wall clock of a machine whose clock is right, at the beginning of every run."""


class Machine:
    """A wall clock that may be set. The steady clock goes at the pace of the world."""

    def __init__(self, scheduler: Scheduler, name: str, ahead_ms: int = 0) -> None:
        self._scheduler = scheduler
        self.name = name
        self.ahead_ms = ahead_ms

    def wall(self) -> Instant:
        """Milliseconds since the epoch, as this machine believes."""
        return EPOCH_MS + int(self._scheduler.now * 1_000) + self.ahead_ms

    def steady_ns(self) -> int:
        """Nanoseconds since the machine was started."""
        return int(self._scheduler.now * 1_000_000_000)

    def steady_ms(self) -> Instant:
        """The same in milliseconds."""
        return int(self._scheduler.now * 1_000)

    def new_clock(self) -> AnchoredClock:
        """The clock of a process that starts now: no later step of the wall clock moves it."""
        return AnchoredClock(self.wall, self.steady_ns)


class Process:
    """One life of a program: from its start to its end or its crash."""

    def __init__(self, world: World, name: str, machine: Machine) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.loop = ProcessLoop(world.scheduler, name)  # type: ignore[abstract]
        self.loop.process = self
        self.clock = machine.new_clock()
        self.unwell_until = world.scheduler.now  # It was stopped, or its store was slow or away.
        self.at_its_end: dict[Callable[[], None], None] = {}
        self._begun: list[asyncio.Task[None]] = []
        self.owner_names: list[str] = []
        self.named: dict[str, str] = {}  # What the client remembers of named calls, in the memory of its process.

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self.loop.is_dead

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in the process."""
        self._begun.append(self.loop.create_task(work))

    def crash(self) -> None:
        """End at once, in the middle of whatever it is doing."""
        if not self.is_dead:
            self.loop.kill()
            for tell in list(self.at_its_end):
                tell()

    def unwell(self, seconds: float = 0.0) -> None:
        """It cannot do what it should, now and for so long."""
        self.unwell_until = max(self.unwell_until, self.world.scheduler.now + seconds)
