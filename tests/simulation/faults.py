"""What goes wrong. Each seed draws which kinds of faults it has, and how bad they are; then when each happens.

Most seeds have a few kinds only: faults of every kind at once hide each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.machine import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

STEPS_MS: Final = (-86_400_000, -5_000, -700, 700, 5_000, 7_200_000)
MEAN_S: Final = 0.35


class Faults:
    """The faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        random = world.random
        kinds: list[Callable[[], None]] = [
            self._crash_replica,
            self._crash_shop,
            self._pause,
            self._part,
            self._store_away,
            self._step_clock,
            self._redeploy,
        ]
        self._kinds = [kind for kind in kinds if random.random() < 0.45]
        self._draw_parts()
        if self._kinds:
            self._again()

    def _draw_parts(self) -> None:
        world, random = self._world, self._world.random
        network, most = world.network.faults, 0.25
        for name in ("slow", "lost", "twice", "cut", "unreachable", "gateway"):
            if random.random() < 0.45:
                setattr(network, name, random.random() * most)
        world.network.cancels = random.random() < 0.5
        for place in world.places:
            for name in ("slow", "failed", "refused", "unknown"):
                if random.random() < 0.3:
                    setattr(place.faults, name, random.random() * 0.06)

    def _again(self) -> None:
        world = self._world
        world.scheduler.later(world.random.expovariate(1 / MEAN_S), self._strike)

    def _strike(self) -> None:
        if self._world.are_faults_on:
            self._world.random.choice(self._kinds)()
            self._again()

    def _crash_replica(self) -> None:
        world = self._world
        place = world.random.randrange(len(world.replicas))
        replica = world.replicas[place]
        if replica is not None and not replica.is_dead:
            world.happened(replica.name, "CRASHES")
            replica.crash()
            world.scheduler.later(0.05 + world.random.random() * 3, world.start_replica, place)

    def _redeploy(self) -> None:
        world = self._world
        place = world.random.randrange(len(world.replicas))
        replica = world.replicas[place]
        if replica is not None and not replica.is_dead and replica.is_up:
            world.happened(replica.name, "stops")
            replica.end()
            world.scheduler.later(0.2 + world.random.random() * 3, world.start_replica, place)

    def _crash_shop(self) -> None:
        world = self._world
        place = world.random.randrange(len(world.shops))
        shop = world.shops[place]
        if shop is not None and not shop.is_dead:
            world.happened(shop.name, "CRASHES")
            shop.crash()
            world.scheduler.later(0.05 + world.random.random() * 2, world.start_shop, place)

    def _pause(self) -> None:
        """Stand still for longer than a lease, or for a moment."""
        world = self._world
        found: Process = world.random.choice([one for one in (*world.replicas, *world.shops) if one is not None])
        if found.is_dead or found.loop.is_paused:
            return
        seconds = world.random.random() * world.random.choice((0.3, 3.0, 9.0))
        world.happened(found.name, "PAUSES", f"{seconds:.3f} s")
        found.loop.pause()
        found.unwell(seconds)
        world.scheduler.later(seconds, self._resume, found)

    def _resume(self, found: Process) -> None:
        if not found.is_dead and found.loop.is_paused:
            self._world.happened(found.name, "goes on")
            found.unwell()
            found.loop.resume()

    def _part(self) -> None:
        world = self._world
        shop = world.random.choice(world.shop_machines).name
        between = (shop, f"replica{world.random.randrange(len(world.replicas))}")
        world.happened(*between, "is cut off")
        world.network.parted.add(between)
        world.scheduler.later(world.random.random() * 5, world.network.parted.discard, between)

    def _store_away(self) -> None:
        world = self._world
        place = world.random.choice(world.places)
        seconds = world.random.random() * world.random.choice((0.5, 4.0))
        world.happened(place.database.name, "IS AWAY", f"{seconds:.3f} s")
        place.faults.away_until = world.scheduler.now + seconds
        world.shake(seconds)

    def _step_clock(self) -> None:
        world = self._world
        machine = world.random.choice(world.machines)
        step_ms = world.random.choice(STEPS_MS)
        machine.ahead_ms += step_ms
        world.happened(machine.name, "clock is set", f"{step_ms:+} ms")
        # A replica that starts now has another time than one that runs; of one that lives it may know nothing (ADR 38).
        world.shake(1e9 if machine is world.machines[0] else 0.0)
