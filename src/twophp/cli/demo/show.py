"""The whole performance: the same for people and for programs; a ``Story`` or a ``Report`` tells it.

The stage is everything that the scenes are played with: services and a central ledger as processes, a client, a folder.
After the story there is a call from time to time, until Ctrl-C.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec

from twophp.cli.demo.caller import Caller
from twophp.cli.demo.center import Center, CenterSpec
from twophp.cli.demo.chain import CLIENT, PARTICIPANTS, SERVICES
from twophp.cli.demo.fleet import Fleet, listening, url_of
from twophp.cli.demo.scenes import (
    ORDER,
    SCENES,
    SHORT_TTL_MS,
    SOLD_OUT,
    CallFailed,
    Check,
    Scene,
    World,
    gathered,
    journals,
    ledgers_in,
    runs_file,
)
from twophp.cli.demo.service import Spec
from twophp.cli.remote import Remote
from twophp.cli.sources import Watch
from twophp.core.entry import LedgerEntry
from twophp.core.errors import PhaseError
from twophp.stores.clock import pause

if TYPE_CHECKING:
    from twophp.cli.demo.report import Report
    from twophp.cli.demo.story import Story

log: Final = logging.getLogger("twophp.demo")

SERVICE: Final = "twophp.cli.demo.service"
CENTER: Final = "twophp.cli.demo.center"
LOGGER: Final = "twophp"

BETWEEN_CALLS_S: Final = 1.0
LOOK_EVERY_S: Final = 0.2
JOIN_S: Final = 5.0

Changed = Callable[[LedgerEntry, str], None]


class Stage:
    """What is on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = Fleet(folder)
        self.ledgers = ledgers_in(folder)
        self.urls: dict[str, str] = {}
        self.center = Center(folder / "central")

    def start(self) -> None:
        """Start every process. Each gets the others' addresses, so all sockets are there before the first begins."""
        self.center.found(PARTICIPANTS)
        listener = self.center.listen()
        center = CenterSpec(store=self.center.store, listener=listener.fileno())
        self.fleet.start("central", CENTER, msgspec.json.encode(center).decode(), listener=listener)
        listeners = listening(SERVICES)
        self.urls = {name: url_of(listener) for name, listener in listeners.items()}
        for name, listener in listeners.items():
            spec = Spec(
                name=name,
                listener=listener.fileno(),
                ledger=store_url(self.ledgers[name]),
                runs=str(runs_file(self.folder, name)),
                urls=self.urls,
                central=self.center.shipping(name),
            )
            self.fleet.start(name, SERVICE, msgspec.json.encode(spec).decode(), listener=listener)

    @contextmanager
    def world(self) -> Iterator[World]:
        """The client and what it finds. If a call fails because a service died, the service is named."""
        with Caller(store_url(self.ledgers[CLIENT]), self.urls, self.center.shipping(CLIENT)) as caller:
            try:
                yield World(self.folder, caller, Remote(self.center.url, self.center.token))
            except (httpx2.TransportError, PhaseError) as error:
                self.fleet.check()
                raise CallFailed(f"a call came to no answer: {error}; the logs are in {self.folder}") from error


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """Every process is started inside, and none is left behind."""
    made = Stage(folder)
    with made.fleet:
        made.start()
        yield made


def store_url(path: Path) -> str:
    """The spelling that middleware and transport take."""
    return f"sqlite:///{path}"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All results, when every scene was played."""

    stage: Stage
    scenes: tuple[Scene, ...]
    checks: tuple[Check, ...]  # Of all scenes together.
    runs: Mapping[str, Counter[str]]

    @property
    def holds(self) -> bool:
        """Whether all was as the protocol promises."""
        return all(scene.holds for scene in self.scenes) and all(check.holds for check in self.checks)


def show(folder: Path, telling: Report | Story, *, once: bool) -> bool:
    """Play everything; whether it was as promised. Without ``once`` it goes on until it is interrupted."""
    with _log_in(folder), stage(folder) as made:
        telling.begin()
        with telling.starting():
            made.fleet.wait_until_ready()
        with made.world() as world:
            scenes = []
            for name, play in SCENES.items():
                with telling.playing(name):
                    scene = play(world)
                made.fleet.check()  # A process that is gone explains more than a scene that failed.
                telling.told(scene)
                scenes.append(scene)
            ending = Ending(
                stage=made, scenes=tuple(scenes), checks=(journals(world), gathered(world)), runs=world.runs()
            )
            telling.end(ending)
            if not once:
                telling.going_on(ending)
                go_on(world, made.fleet, telling.changed)
    return ending.holds


@contextmanager
def _log_in(folder: Path) -> Iterator[None]:
    """What the client's library has to say goes where the services' logs are."""
    handler = logging.FileHandler(folder / "client.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


# After the story.


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
