"""What the central ledger refuses for good stays behind, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.central.test_ship import REGISTERED, acks, shipper, stand_in
from tests.cli.world import participants
from twophp.core.errors import StoreUnavailable
from twophp.ports import Tail
from twophp.shipping import shipper as ship

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("status", sorted(ship.TOO_MUCH))
async def test_a_registration_that_is_refused_says_nothing_of_the_rows(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A pull URL that the central ledger does not like: once that is mended, every row is sent."""
    why = {"code": "bad_parameter", "detail": "plain HTTP goes to this machine alone"}
    registrations = iter([(status, {}, why), (status, {}, why), REGISTERED])

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
        answered = f"The central ledger answered {status} bad_parameter: plain HTTP goes to this machine alone."
        assert said == [f"rows wait for the central ledger: [not_taken] {answered}"]
        await sending._visit()
        assert await one.store.changes(10) == []


@pytest.mark.req("A-59")
async def test_rows_that_could_not_be_stamped_anew_are_stamped_with_the_next_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        return REGISTERED if path.endswith("services") else (200, {}, acks(document))

    async def full(_issued: str) -> None:
        raise StoreUnavailable("the disk is full", code="disk_full")

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        await one.registers(1)
        sending = shipper(one, url, "t")
        with monkeypatch.context() as patch:
            patch.setattr(one.store, "reassign_ledger_id", full)
            await sending._visit()
            assert sending.failures == 1
        await sending._visit()
        assert sending.failures == 0
        assert {row.service_ledger_id for row in await one.store.entries(Tail())} == {
            REGISTERED[2]["service_ledger_id"]
        }


async def test_however_many_rows_are_refused_a_round_ends_and_the_next_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are remembered: they were sent again and again, without a pause, for ever."""
    monkeypatch.setattr(ship, "MOST_REFUSED", 10)
    batches: list[int] = []
    refuses = True

    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        batches.append(len(document["rows"]))
        assert len(batches) < 20, "a loop"
        said = acks(document)
        if refuses:
            for ack in said["acks"]:
                ack |= {"outcome": "refused", "sync_timestamp": None, "code": "other_source"}
        return 200, {}, said

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        for number in range(24):
            await one.registers(number)
        sending = shipper(one, url, "t", batch_rows=5)
        waits = [await sending._visit() for _ in range(4)]
        assert batches == [5, 5, 5, 5, 5], "up to what is remembered, and then one batch each time"
        assert sending.failures == 4
        assert waits[-1] > 5.0
        refuses = False
        await sending._visit()
        assert sending.failures == 0
        assert len(await one.store.changes(30)) == 10
        for number in range(10):  # Of what was refused there are newer versions now.
            await one.settles(await one.confirms(number))
        assert await sending.ship() == 10
        assert await one.store.changes(30) == []
        await sending.ship()
        assert not sending._refused
