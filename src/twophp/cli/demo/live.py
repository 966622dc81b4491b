"""After the story: a call from time to time, and every row that changes, until Ctrl-C."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, cycle
from typing import Final

import httpx2

from twophp.cli.demo.fleet import Fleet
from twophp.cli.demo.scenes import ORDER, SHORT_TTL_MS, SOLD_OUT, World
from twophp.cli.sources import Watch
from twophp.core.entry import LedgerEntry
from twophp.core.errors import PhaseError
from twophp.stores.clock import pause

log: Final = logging.getLogger("twophp.demo")

BETWEEN_CALLS_S: Final = 1.0
LOOK_EVERY_S: Final = 0.2
JOIN_S: Final = 5.0

Changed = Callable[[LedgerEntry, str], None]


def go_on(world: World, fleet: Fleet, changed: Changed) -> None:
    """Make calls and report changed rows. Returns at Ctrl-C; raises ChildFailed as soon as a process is gone."""
    watch = Watch([str(path) for path in world.ledgers.values()])
    try:
        with _traffic(world):
            while True:
                for entry, ledger in watch.look():
                    changed(entry, ledger)
                fleet.check()
                pause(LOOK_EVERY_S)
    except KeyboardInterrupt:  # How it is meant to end.
        return


@contextmanager
def _traffic(world: World) -> Iterator[None]:
    enough = threading.Event()
    calls = threading.Thread(target=_call_on, args=(world, enough), name="demo-traffic", daemon=True)
    calls.start()
    try:
        yield
    finally:
        enough.set()
        calls.join(JOIN_S)


def _call_on(world: World, enough: threading.Event) -> None:
    """Mostly good calls, now and then one that fails or stalls."""
    ear = world.caller.ear
    ear.listens = False
    for number, kind in zip(count(1), cycle(("good", "good", "failing", "good", "stalled")), strict=False):
        ear.cut = kind == "stalled"
        order, ttl_ms = (SOLD_OUT if kind == "failing" else ORDER), (SHORT_TTL_MS if ear.cut else None)
        try:
            world.caller.order(f"live{number}-corr-id1", order, ttl_ms)
        except (PhaseError, httpx2.TransportError) as error:
            log.info("a live call came to no answer: %s", error)
        if enough.wait(BETWEEN_CALLS_S):
            return
