"""The database's time: no slow message and nobody who sets its machine's clock moves leases and deadlines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.stores.schemas import Schema
from twophp.core.intent import Phase
from twophp.stores.clock import StoreTime
from twophp.stores.database_clock import DatabaseClock
from twophp.stores.postgres import PostgresStore, supply
from twophp.stores.testing.scene import attend, confirm, register, settle

pytestmark = pytest.mark.anyio

T0, MINUTE_MS, HOUR_S = 1_800_000_000_000, 60_000, 3_600
STEP_MS = 500
LOOK = "SELECT extract(epoch FROM clock_timestamp()) * 1000"


class Server:
    """A database on another machine. Its clock can be set, ours cannot."""

    def __init__(self) -> None:
        self.ms, self.up_ms, self.set_by_ms = float(T0), 0.0, 0.0

    def passes(self, ms: float, pace: float = 1.0) -> None:
        self.ms += ms * pace
        self.up_ms += ms

    def clock(self, wall_ms: int = 0) -> DatabaseClock:
        """A replica's, which has not looked yet, on a machine whose own clock says ``wall_ms``."""
        return DatabaseClock(lambda: wall_ms, lambda: int(self.up_ms * 1_000_000))

    def look(self, clock: DatabaseClock, there_ms: float = 0.4, back_ms: float = 0.4) -> None:
        before_ns = clock.steady_ns()
        self.passes(there_ms)
        at = int(self.ms + self.set_by_ms)
        self.passes(back_ms)
        clock.measured(at, before_ns)


@pytest.mark.req("A-29")
@pytest.mark.parametrize(("there_ms", "back_ms"), [(8_000, 1), (1, 8_000), (4_000, 4_000)])
@pytest.mark.parametrize("slow_look", [0, 1, 5])
def test_a_slow_look_never_puts_time_ahead_and_is_made_good_by_the_next(
    there_ms: float, back_ms: float, slow_look: int
) -> None:
    server = Server()
    clock = server.clock()
    told = []
    for number in range(8):
        if number == slow_look:
            server.look(clock, there_ms, back_ms)
        else:
            server.look(clock)
            assert server.ms - 3 <= clock() <= server.ms
        told.append(clock())
        assert clock() <= server.ms
        server.passes(1_100)
    assert told == sorted(told)


@pytest.mark.req("A-29")
@pytest.mark.parametrize("ahead_ms", [MINUTE_MS, HOUR_S * 1_000, -MINUTE_MS])
def test_the_machines_own_clock_makes_no_difference(ahead_ms: int) -> None:
    """Else time would stand still, ahead of the database, for as long as the machine is."""
    server = Server()
    clock = server.clock(T0 + ahead_ms)
    time = StoreTime(clock)
    time.reach(0)
    for _ in range(3):
        server.look(clock)
        assert server.ms - 3 <= time.now() <= server.ms
        server.passes(1_000)


@pytest.mark.req("A-29")
@pytest.mark.parametrize("set_by_ms", [MINUTE_MS, -MINUTE_MS, 24 * 60 * MINUTE_MS, 2 * STEP_MS])
def test_a_step_of_the_databases_clock_is_followed_slowly_and_taken_back(set_by_ms: int) -> None:
    server = Server()
    clocks = [server.clock(), server.clock()]
    for clock in clocks:
        server.look(clock)
    server.set_by_ms = set_by_ms
    for number in range(30):
        server.passes(1_100)
        for clock in clocks:
            server.look(clock)
            assert abs(clock() - server.ms) <= 3 + 1.2 * number
    assert abs(clocks[0]() - clocks[1]()) <= 3
    server.set_by_ms = 0
    ahead_ms = clocks[0]() - server.ms
    server.passes(abs(ahead_ms) + 10)
    for clock in clocks:
        server.look(clock)
        server.look(clock)
        assert abs(clock() - server.ms) <= 3


@pytest.mark.req("A-29")
def test_who_has_not_looked_for_long_does_not_catch_up_with_a_step_at_once() -> None:
    server = Server()
    clock = server.clock()
    server.look(clock)
    server.set_by_ms = MINUTE_MS
    server.passes(HOUR_S * 1_000)
    server.look(clock)
    assert abs(clock() - server.ms) <= HOUR_S / 5 + 3


@pytest.mark.req("A-29")
def test_a_step_is_caught_up_with_in_the_end() -> None:
    server = Server()
    clock = server.clock()
    server.look(clock)
    server.set_by_ms = 2_000
    before = clock()
    for _ in range(HOUR_S):
        server.passes(1_000)
        server.look(clock)
        assert 0 < clock() - before <= 1_000 * 1.01 + STEP_MS + 3
        before = clock()
    assert abs(clock() - server.ms - server.set_by_ms) <= 3


@pytest.mark.req("A-29")
@pytest.mark.parametrize("pace", [1.0001, 0.9999])
def test_replicas_stay_together_while_the_databases_clock_runs_at_another_pace(pace: float) -> None:
    """As NTP lets it. Never ahead by more than has drifted since the last look."""
    server = Server()
    clocks = [server.clock(), server.clock()]
    for number in range(2_000):
        for place, clock in enumerate(clocks):
            server.look(clock, 2.0 if place else 0.2, 0.2 if place else 2.0)
        assert abs(clocks[0]() - clocks[1]()) <= 4
        assert abs(server.ms - clocks[number % 2]()) <= 4
        server.passes(1_000, pace)


def stepped(store: PostgresStore, by_ms: Callable[[], int]) -> None:
    """What the store is told is by so much another time, as when the database's clock was set."""
    clock = store._supply._database
    assert clock is not None
    measured = clock.measured
    clock.measured = lambda at, before_ns: measured(at + by_ms(), before_ns)  # type: ignore[method-assign]


@pytest.mark.req("A-29", "A-34")
async def test_a_step_of_the_databases_clock_ends_no_lease(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner executes on; no other replica takes it over, and nobody is ahead when the clock is right again."""
    monkeypatch.setattr(supply, "FRESH_S", 0.0)  # Each batch looks at the database's clock.
    by_ms = 0
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        for store in (here, there):
            stepped(store, lambda: by_ms)
        intent = await confirm(here, await register(here, arrived_at=here.now()))
        by_ms = MINUTE_MS
        attended = (await attend(there, intent)).intent
        assert attended is not None
        assert attended.phase is Phase.PROCESSING
        assert (await settle(here, intent)).phase is Phase.COMMITTED
        by_ms = 0
        await register(there, "later", arrived_at=there.now())
        assert there.now() <= (await schema.run(LOOK))[0][0]
