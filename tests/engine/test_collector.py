"""The garbage collector of a process in which services run (ADR 37)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.engine.collector import CALM, Collector

PYTHONS = (700, 10, 10)


@pytest.fixture(autouse=True)
def as_python_comes() -> Iterator[None]:
    found = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(*PYTHONS)
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*found)


def test_what_is_loaded_is_frozen_and_given_back_at_the_end() -> None:
    collector = Collector()
    loaded: list[object] = [[]]
    collector.begin()
    assert not any(found is loaded for found in gc.get_objects())
    assert gc.get_threshold() == CALM
    collector.end()
    assert any(found is loaded for found in gc.get_objects())
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, PYTHONS)


def test_what_is_made_after_the_start_is_collected_as_ever() -> None:
    collector = Collector()
    collector.begin()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() == 1
    collector.end()


def test_a_second_service_changes_nothing_and_the_last_one_gives_back() -> None:
    collector = Collector()
    collector.begin()
    later: list[object] = [[]]
    frozen = gc.get_freeze_count()
    collector.begin()
    assert gc.get_freeze_count() == frozen
    assert any(found is later for found in gc.get_objects())
    collector.end()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (frozen, CALM)
    collector.end()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, PYTHONS)


def test_thresholds_of_the_programs_own_are_kept() -> None:
    gc.set_threshold(50_000, 7, 3)
    collector = Collector()
    collector.begin()
    assert (gc.get_threshold(), gc.get_freeze_count() > 0) == ((50_000, 7, 3), True)
    collector.end()
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((50_000, 7, 3), 0)


def test_thresholds_that_were_set_meanwhile_are_kept() -> None:
    collector = Collector()
    collector.begin()
    gc.set_threshold(50_000, 7, 3)
    collector.end()
    assert gc.get_threshold() == (50_000, 7, 3)


def test_what_somebody_else_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    collector = Collector()
    collector.begin()
    collector.end()
    assert gc.get_freeze_count() >= frozen


def test_a_collector_that_is_switched_off_is_left_alone() -> None:
    gc.disable()
    collector = Collector()
    collector.begin()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, PYTHONS)
    collector.end()


def test_a_process_is_collected_once() -> None:
    looked: list[int] = []

    def look(phase: str, found: dict[str, int]) -> None:
        if phase == "start":
            looked.append(found["generation"])

    collector = Collector()
    gc.callbacks.append(look)
    try:
        for _ in range(3):
            collector.begin()
            collector.end()
    finally:
        gc.callbacks.remove(look)
    assert looked.count(2) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("tune", [True, False])
async def test_the_middleware_quiets_it_while_it_runs(tune: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twophp.asgi.server.collector", Collector())  # Others of this process may still run.

    async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    said: dict[str, Any] = {"identify": anonymous, "policies": Policy.standard(), "tune_collector": tune}
    middleware = TwoPhaseMiddleware(app, service="shop", store="memory:", **said)
    await middleware.open()
    await middleware.stop()  # It never began to run.
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, PYTHONS)
    await middleware.start()
    await middleware.start()
    assert (gc.get_freeze_count() > 0, gc.get_threshold()) == (tune, CALM if tune else PYTHONS)
    await middleware.stop()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, PYTHONS)


def test_a_forked_child_counts_its_own_services() -> None:
    collector = Collector()
    collector.begin()
    collector.forget()
    assert gc.get_threshold() == PYTHONS
    collector.begin()
    assert gc.get_threshold() == CALM
    collector.end()
    assert gc.get_threshold() == PYTHONS
