"""How long a service keeps its ledger's rows."""

from __future__ import annotations

import pytest

from tests.asgi.driver import Service, serving
from twophp import Policy
from twophp.core.errors import ConfigError
from twophp.core.policy import DAY_MS

pytestmark = pytest.mark.anyio


async def a_month_later(service: Service, days: int) -> list[str]:
    """Two calls, of which the central ledger has one; who is left so many days after that."""
    for client_id in ("sent", "unsent"):
        await service.confirm(await service.register(client_id), client_id)
    store = service.server.store
    service.clock.now += DAY_MS
    await service.server.sweep()  # The payload is destroyed, and the row says so.
    await store.synced([row for row in await store.changes(10) if row.client_correlation_id == "sent"], store.now())
    service.clock.now += days * DAY_MS
    await service.server.sweep()
    await service.server.purge()
    return sorted(row.client_correlation_id for row in await service.rows())


@pytest.mark.req("A-59", "A-57")
async def test_rows_go_thirty_days_after_they_were_sent_and_never_before(store: str) -> None:
    async with serving(store=store) as service:
        assert await a_month_later(service, 30) == ["sent", "unsent"]
        service.clock.now += 1
        await service.server.purge()
        assert [row.client_correlation_id for row in await service.rows()] == ["unsent"]


@pytest.mark.req("A-59")
async def test_the_retention_is_the_services_to_say_but_a_record_keeps_its_row() -> None:
    async with serving(ledger_retention_ms=DAY_MS) as service:
        assert await a_month_later(service, 7) == ["sent", "unsent"], "a replay is still answered"
        service.clock.now += 1
        await service.server.purge()
        assert len(await service.rows()) == 1
    async with serving(ledger_retention_ms=None) as service:
        assert await a_month_later(service, 9_999) == ["sent", "unsent"]
    async with serving(
        ledger_retention_ms=DAY_MS, policies={"POST /orders": Policy.standard(horizon_ms=90 * DAY_MS)}
    ) as service:
        assert await a_month_later(service, 60) == ["sent", "unsent"]


async def test_no_retention_at_all_is_refused() -> None:
    with pytest.raises(ConfigError):
        async with serving(ledger_retention_ms=0):
            pass
