"""Known conditions in the log: said once, counted afterwards, and news again when they were over."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from twophp.core.errors import StoreOverloaded, StoreUnavailable
from twophp.core.intent import by_logical_key
from twophp.observability.conditions import INTERVAL_S, Conditions
from twophp.stores.memory import MemoryStore
from twophp.stores.testing.scene import act, registration

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Timer:
    """Fires when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, seconds: float, do: Callable[[], None]) -> None:
        assert seconds == INTERVAL_S
        self.waiting.append(do)

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, []
        for do in waiting:
            do()


FULL = StoreUnavailable("the disk is full", code="disk_full")


async def test_a_condition_is_one_line_and_then_a_number(caplog: pytest.LogCaptureFixture) -> None:
    timer = Timer()
    conditions = Conditions(logging.getLogger("twophp.test"), timer)
    for _ in range(38):
        conditions.known(logging.WARNING, "a request to %s was refused", "/orders", error=FULL)
    assert caplog.messages == ["a request to /orders was refused: [disk_full] the disk is full"]
    timer.fire()
    assert caplog.messages[1:] == [
        "a request to /orders was refused: [disk_full] the disk is full (x 37 in the last 10 s)"
    ]
    timer.fire()
    assert (len(caplog.messages), timer.waiting) == (2, [])
    conditions.known(logging.WARNING, "a request to %s was refused", "/orders", error=FULL)
    assert caplog.messages[2:] == ["a request to /orders was refused: [disk_full] the disk is full"]
    assert not [record for record in caplog.records if record.exc_info]


async def test_another_error_is_another_condition(caplog: pytest.LogCaptureFixture) -> None:
    conditions = Conditions(logging.getLogger("twophp.test"), Timer())
    for error in (FULL, StoreOverloaded("too many"), FULL):
        conditions.known(logging.ERROR, "refused", error=error)
    assert caplog.messages == ["refused: [disk_full] the disk is full", "refused: [store_overloaded] too many"]


@pytest.mark.req("P-9.2-a")
async def test_a_line_about_an_intent_has_its_ids_in_the_text_and_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    decision = await act(MemoryStore(), by_logical_key("alice", "client-1"), registration())
    Conditions(logging.getLogger("twophp.test"), Timer()).known(
        logging.WARNING, "not yet", error=FULL, intent=decision.intent
    )
    assert caplog.messages == ["not yet: [disk_full] the disk is full (client client-1, server server-1)"]
    assert caplog.records[0].__dict__["server_correlation_id"] == "server-1"
