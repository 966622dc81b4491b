"""The whole performance: the same for people and for programs; a ``Telling`` reports it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec

from twophp.cli.demo.live import go_on
from twophp.cli.demo.scenes import SCENES, Check, Scene, gathered, journals
from twophp.cli.demo.stage import Stage, stage
from twophp.core.entry import LedgerEntry

LOGGER: Final = "twophp"


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


class Telling(Protocol):
    """How the demo is reported, step by step."""

    def begin(self) -> None:
        """Before anything is started."""
        ...

    def starting(self) -> AbstractContextManager[object]:
        """While the services start."""
        ...

    def playing(self, name: str) -> AbstractContextManager[object]:
        """While a scene is played."""
        ...

    def told(self, scene: Scene) -> None:
        """After a scene."""
        ...

    def end(self, ending: Ending) -> None:
        """When all was played."""
        ...

    def going_on(self, ending: Ending) -> None:
        """Before the live part."""
        ...

    def changed(self, entry: LedgerEntry, ledger: str) -> None:
        """A row has changed since the last one."""
        ...


def show(folder: Path, telling: Telling, *, once: bool) -> bool:
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
