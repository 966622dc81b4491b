"""One run: everything that a seed makes, until the faults end and everybody has come to rest."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from contextvars import Context
from hashlib import sha256
from itertools import chain
from random import Random
from typing import Any, Final
from unittest import mock

import msgspec

from tests.simulation import verdict
from tests.simulation.database import Database
from tests.simulation.driver import Place, SimulatedStore, ended_in
from tests.simulation.faults import Faults
from tests.simulation.machine import Machine, Process
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Scheduler, Stuck
from tests.simulation.scripts import Scripts
from tests.simulation.service import Replica
from tests.simulation.shop import Shop, Wanted, draw
from twophp.asgi import middleware, server
from twophp.client import repeats
from twophp.kernel.apply import Operations
from twophp.stores import urls
from twophp.stores.clock import AnchoredClock

EVENTS: Final = 200
FAULTY_S: Final = 120.0
"""So long at most faults happen, in virtual time, should so many events not come sooner."""
RESTING_S: Final = 900.0
"""So long at most everybody takes to come to rest after that."""
LOOK_S: Final = 0.5
MAX_TURNS: Final = 400_000
COLLECTED_EVERY: Final = 8
COLLECTIONS: Final = 5


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run."""

    seed: int
    findings: tuple[str, ...]
    trace: tuple[str, ...]
    digest: str
    events: int
    turns: int
    seconds: float  # Virtual.


class World:
    """Everything there is."""

    def __init__(self, seed: int, events: int = EVENTS) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random: Random = self.scheduler.random
        self.trace: list[str] = []
        self.events = 0
        self._events_wanted = events
        self.are_faults_on = True
        self._shaken_until = 0.0
        self._lives: Counter[str] = Counter()
        self._minted = self._numbers = 0
        self.owners: dict[str, Process] = {}
        self.unledgered: dict[str, None] = {}  # Client ids that a client without a ledger has confirmed.
        self.wanted: list[Wanted] = []
        self._wanted_by: list[tuple[int, Wanted]] = []
        self.oracle = Oracle(self)
        self.network = Network(self)
        self._build()

    def _build(self) -> None:
        random = self.random
        is_local, shops = random.random() < 0.5, random.choice((1, 2, 2))
        self.reconciles = random.random() < 0.4
        self.callers = random.choice((1, 2, 3))
        self.auto_confirming = {f"shop{place}" for place in range(shops) if random.random() < 0.2}
        replicas = random.choice((1, 2, 3, 3))
        self.machines: list[Machine] = []
        here = self._machine("orders")
        self.replica_machines = [here if is_local else self._machine(f"replica{n}") for n in range(replicas)]
        self.shop_machines = [self._machine(f"shop{n}") for n in range(shops)]
        self.orders = Database("orders.db", here.wall, self.oracle.written)
        self._orders = Place(self.scheduler, self.orders, is_local=is_local)
        if shops > 1 and random.random() < 0.5:  # Two processes of one client share a machine and a ledger.
            self.shop_machines[1:] = self.shop_machines[:1]
        places = {machine.name: self._shop_place(machine) for machine in self.shop_machines}
        self._shop_places = [places[machine.name] for machine in self.shop_machines]
        self.shop_ledgers = [place.database for place in places.values()]
        self.places = [self._orders, *places.values()]
        self.replicas: list[Replica | None] = [None] * replicas
        self.shops: list[Shop | None] = [None] * shops

    def _machine(self, name: str) -> Machine:
        ahead_ms = int((self.random.random() - 0.5) * self.random.choice((100, 4_000, 7_200_000)))
        self.machines.append(Machine(self.scheduler, name, ahead_ms))
        return self.machines[-1]

    def _shop_place(self, machine: Machine) -> Place:
        database = Database(f"{machine.name}.db", machine.wall, self.oracle.written)
        return Place(self.scheduler, database, is_local=True)

    # What happens.

    def happened(self, who: str, what: str, detail: str = "") -> None:
        """Note an event: something arrived, was lost, became durable, began or broke."""
        self.events += 1
        self.note(who, what, detail)

    def count(self) -> None:
        """An event whose parts are noted one by one."""
        self.events += 1

    def note(self, who: str, what: str, detail: str = "") -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.scheduler.now:10.4f}  {who:<12} {what} {detail}".rstrip())

    def told(self, database: Database, operations: Operations) -> None:
        """Whoever waits for an intent hears of its end."""
        if database is self.orders and not self._orders.is_local and (ended := ended_in(operations)):
            self._orders.told(ended)

    def shake(self, seconds: float) -> None:
        """Something has happened to all processes of a store."""
        self._shaken_until = max(self._shaken_until, self.scheduler.now + seconds)

    def is_shaken(self, within_s: float) -> bool:
        """Whether that was within so long."""
        return self._shaken_until > 0 and self.scheduler.now - self._shaken_until < within_s

    # What processes need.

    def lives(self, name: str) -> int:
        """The number of this life."""
        self._lives[name] += 1
        return self._lives[name]

    def mint(self) -> str:
        """An id that nothing else has, readable in a trace."""
        self._minted += 1
        return f"{self._minted:08x}-0000-4000-8000-{self.seed & 0xFFFF_FFFF_FFFF:012x}"

    def next_number(self) -> int:
        """The number of an order."""
        self._numbers += 1
        return self._numbers

    def want(self, place: int) -> Wanted:
        """The business wants something."""
        wanted = draw(self, self.next_number())
        self.wanted.append(wanted)
        self._wanted_by.append((place, wanted))
        return wanted

    def unfinished(self, place: int) -> list[Wanted]:
        """What this shop asked for by name in an earlier life. Without a name it cannot ask for the same."""
        found = []
        for by, wanted in self._wanted_by:
            if by == place and not wanted.is_over:
                wanted.is_over = wanted.name is None
                found += [] if wanted.is_over else [wanted]
        return found

    def patience_s(self) -> float:
        """How long a caller waits."""
        return 15.0 if self.random.random() < 0.85 else self.random.random() * 1.5

    def open_store(self, _url: str, *, clock: AnchoredClock) -> SimulatedStore:
        """The store of whoever asks."""
        process = _running()
        if isinstance(process, Shop):
            return SimulatedStore(process, self._shop_places[process.place], clock)
        return SimulatedStore(process, self._orders, clock)

    def start_replica(self, place: int) -> None:
        """Another life of a replica, if it is down."""
        old = self.replicas[place]
        if old is None or old.is_dead:
            self.replicas[place] = Replica(self, place, self.replica_machines[place])

    def start_shop(self, place: int) -> None:
        """Another life of a shop, if it is down."""
        old = self.shops[place]
        if old is None or old.is_dead:
            self.shops[place] = Shop(self, place, self.shop_machines[place])

    # The run.

    def run(self) -> Result:
        """Faults until there were events enough, then peace until all are at rest; then the verdict."""
        faults_end = self._events_wanted
        for place in range(len(self.replicas)):
            self.start_replica(place)
        for place in range(len(self.shops)):
            self.start_shop(place)
        self.scripts = Scripts(self, self._machine("scripts"))
        self._faults = Faults(self)
        stuck = ""
        try:
            self.scheduler.run(lambda: self.events >= faults_end or self._is_over(), at_most_s=FAULTY_S)
            if not self._is_over():
                self._make_peace()
                if not self.scheduler.run(self._at_rest(), at_most_s=RESTING_S):
                    stuck = f"nothing comes to rest: {next(chain(verdict.restless(self), ('callers wait',)))}"
        except Stuck as error:
            stuck = str(error)
        found = self.oracle.broken or ([stuck] if stuck else [])
        found = found or list(verdict.findings(self)) or self._unhandled()
        return self._result(found)

    def _is_over(self) -> bool:
        return bool(self.oracle.broken) or self.scheduler.turns > MAX_TURNS

    def _make_peace(self) -> None:
        """No more faults: what is down is started, what stands still goes on."""
        self.happened("world", "PEACE")
        self.are_faults_on = False
        self.network.faults.end()
        self.network.parted.clear()
        for place in self.places:
            place.faults.end()
        for process in (*self.replicas, *self.shops):
            if process is not None:
                self._faults._resume(process)
        for number in range(len(self.replicas)):
            self.start_replica(number)
        for number in range(len(self.shops)):
            self.start_shop(number)

    def _at_rest(self) -> Callable[[], bool]:
        look_at = self.scheduler.now

        def at_rest() -> bool:
            nonlocal look_at
            if self._is_over():
                return True
            if self.scheduler.now < look_at:
                return False
            look_at = self.scheduler.now + LOOK_S
            self._raise_the_dead()
            return not self.scripts.busy and next(verdict.restless(self), None) is None

        return at_rest

    def _raise_the_dead(self) -> None:
        """Whoever was on its way out when peace came is started again."""
        for number in range(len(self.replicas)):
            self.start_replica(number)

    def _unhandled(self) -> list[str]:
        if self.scheduler.turns > MAX_TURNS:
            return [f"more than {MAX_TURNS} turns"]
        loops = [process.loop for process in (*self.replicas, *self.shops) if process is not None]
        return [failure for loop in loops for failure in loop.failures]

    def _result(self, found: list[str]) -> Result:
        digest = sha256("\n".join(self.trace).encode()).hexdigest()
        return Result(
            seed=self.seed,
            findings=tuple(found),
            trace=tuple(self.trace),
            digest=digest,
            events=self.events,
            turns=self.scheduler.turns,
            seconds=self.scheduler.now,
        )


def _running() -> Any:
    return asyncio.get_running_loop().process  # type: ignore[attr-defined]


class PerProcess(MutableMapping[str, str]):
    """What a module keeps for its process, where one process plays many."""

    def __getitem__(self, name: str) -> str:
        found: str = _running().named[name]
        return found

    def __setitem__(self, name: str, value: str) -> None:
        _running().named[name] = value

    def __delitem__(self, name: str) -> None:
        del _running().named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_running().named)

    def __len__(self) -> int:
        return len(_running().named)


def _open_store(url: str, *, clock: AnchoredClock) -> SimulatedStore:
    store: SimulatedStore = _running().world.open_store(url, clock=clock)
    return store


def _mint() -> str:
    found: str = _running().world.mint()
    return found


@contextmanager
def simulating() -> Iterator[None]:
    """Put the simulation in the place of stores, of chance and of what a module keeps; log nothing."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(urls, "open_store", _open_store))
        stack.enter_context(mock.patch.object(middleware, "mint_uuid", _mint))
        stack.enter_context(mock.patch.object(server, "LOOK_FOR_DEAD_S", 1.0))  # Four times as often finds no more.
        stack.enter_context(mock.patch.object(repeats, "_named", PerProcess()))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        was_enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        stack.callback(_collect, was_enabled=was_enabled)
        yield


def _collect(*, was_enabled: bool) -> None:
    with _quietly():
        for _pass in range(COLLECTIONS):  # A coroutine that is closed lets go of others.
            Context().run(gc.collect)
    gc.unfreeze()
    if was_enabled:
        gc.enable()


@contextmanager
def _quietly() -> Iterator[None]:
    """Coroutines of crashed processes are let go of in the middle, and some before they began."""
    found, sys.unraisablehook = sys.unraisablehook, _nothing
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = found


def _nothing(_unraisable: Any) -> None:
    """Say nothing."""


def simulate(seed: int, events: int = EVENTS) -> Result:
    """One run. Call it inside of ``simulating``."""
    with _quietly():
        return Context().run(_simulate, seed, events)


def _simulate(seed: int, events: int) -> Result:
    """In a context of its own: what is let go of afterwards sets context variables, which no other run must find."""
    result = World(seed, events).run()
    if seed % COLLECTED_EVERY == 0:
        gc.collect()
    return result
