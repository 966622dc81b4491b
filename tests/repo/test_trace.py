"""What a request walks through does not grow unnoticed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tools.trace import Tracer, Walk, measure

# Calls, files and opcodes of one warm exchange, at most; lower a figure when the walk has become shorter. The opcodes
# are those of Python 3.11: newer ones need fewer for the same source.
MOST: dict[str, tuple[int, int, int]] = {
    "handshake": (420, 41, 13_000),
    "auto-confirm": (540, 57, 16_100),
    "replay": (23, 13, 760),
    "plain POST": (1, 1, 60),
    "plain GET": (1, 1, 62),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Walk]:
    return measure()


@pytest.mark.parametrize("walk", MOST)
def test_a_walk_is_no_longer_than_it_was(walk: str, found: dict[str, Walk]) -> None:
    calls, files, opcodes = MOST[walk]
    assert 0 < found[walk].calls <= calls
    assert 0 < found[walk].files <= files
    assert 0 < found[walk].opcodes <= opcodes


def test_a_handshake_wakes_up_three_times(found: dict[str, Walk]) -> None:
    """A flush answers Phase 1, one starts the handler, one answers Phase 2. Nothing of ours is woken in between."""
    steps = {step.function: (step.calls, step.resumed) for step in found["handshake"].steps}
    assert steps["Handshake._phase_one"] == (1, 1)
    assert steps["Handshake._phase_two"] == (1, 1)
    assert steps["Executions._execute"] == (1, 0)


def test_a_call_and_a_coroutine_that_goes_on_are_told_apart() -> None:
    async def waits() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 1

    async def twice() -> None:
        with tracer:
            await waits()
            await waits()

    tracer = Tracer(str(Path(__file__).parent))
    asyncio.run(twice())
    walk = tracer.walk()
    waited = next(step for step in walk.steps if step.function.endswith("waits"))
    assert (waited.calls, waited.resumed) == (2, 4)
    assert walk.files == 1
    assert waited.opcodes > 10


def test_frames_of_others_are_not_counted() -> None:
    with Tracer("/nowhere/") as tracer:
        Path("/").exists()
    assert tracer.walk() == Walk(calls=0, resumed=0, files=0, opcodes=0, steps=[])
