"""A sweep beside a confirm whose COMMIT has ended in the thread, and whose caller is yet to be told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.stores.orders import POLICY, HandClock, orders
from twophp.core.intent import Intent, Phase
from twophp.core.intent_commands import Confirm
from twophp.stores.clock import steady_seconds

pytestmark = [pytest.mark.anyio, pytest.mark.req("A-34")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def wait_until_durable(path: Path) -> None:
    """Block the loop, so that no caller is answered in the meantime."""
    outside = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    until = steady_seconds() + 60
    while outside.execute("SELECT phase FROM intent").get != Phase.PROCESSING:
        assert steady_seconds() < until, "the COMMIT never came"
    outside.close()


async def test_a_process_does_not_take_over_what_it_has_confirmed_and_not_heard_of(tmp_path: Path) -> None:
    clock, running = HandClock(), list[Intent]()

    def begin(decision: Any, error: Exception | None) -> None:
        assert error is None
        running.append(decision.intent)

    async with orders(tmp_path / "orders.db", clock=clock) as service:
        intent = await service.register(1)
        confirm = Confirm(
            client_correlation_id=intent.client_correlation_id,
            server_correlation_id=intent.server_correlation_id,
            principal=intent.principal,
            path=intent.path,
            arrived_at=clock(),
            owner="worker",
        )
        seen: list[str] = []
        service.store._connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"]))
        service.intents.confirm_then(confirm, POLICY, begin)
        while "COMMIT;" not in seen:  # noqa: ASYNC110 - an event would be one more turn of the loop.
            await asyncio.sleep(0)
        wait_until_durable(tmp_path / "orders.db")
        assert running == []
        clock.now += POLICY.lease_ms + 1  # What stood for so long may have been the disk, or this loop.
        await service.intents.sweep(lambda _intent: POLICY, "worker", before=clock() + 1, running=lambda: running)
        assert [(one.phase, one.fence) for one in running] == [(Phase.PROCESSING, 1)]
        assert (await service.find(1)).fence == 1, "no sweep has taken it over"
