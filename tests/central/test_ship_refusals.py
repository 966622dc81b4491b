"""What the central ledger refuses for good stays behind, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.central.test_ship import REGISTERED, acks, shipper, stand_in
from tests.cli.world import participants
from twophp.engine import ship

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("status", sorted(ship.TOO_MUCH))
async def test_a_registration_that_is_refused_says_nothing_of_the_rows(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A pull URL that the central ledger does not like: once that is mended, every row is sent."""
    registrations = iter([(status, {}, {"code": "bad_parameter"}), (status, {}, {"code": "bad_parameter"}), REGISTERED])

    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        return next(registrations) if path.endswith("services") else (200, {}, acks(document))

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        for number in range(5):
            await one.registers(number)
        sending = shipper(one, url, "t")
        for failures in (1, 2):
            await sending._visit()
            assert sending.failures == failures
        said = [record.getMessage() for record in caplog.records if record.name == "twophp.ship"]
        assert said == [f"rows wait for the central ledger: The central ledger answered {status} bad_parameter."]
        await sending._visit()
        assert await one.store.changes(10) == []
