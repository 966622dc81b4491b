"""Everything the scenes are played with: services and a central ledger as processes, a client, and a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import msgspec

from twophp.cli.demo.caller import Caller
from twophp.cli.demo.center import Center, CenterSpec
from twophp.cli.demo.chain import CLIENT, PARTICIPANTS, SERVICES
from twophp.cli.demo.fleet import Fleet, listening, url_of
from twophp.cli.demo.scenes import CallFailed, World, ledgers_in, runs_file
from twophp.cli.demo.service import Spec
from twophp.cli.remote import Remote
from twophp.core.errors import PhaseError

SERVICE: Final = "twophp.cli.demo.service"
CENTER: Final = "twophp.cli.demo.center"


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
