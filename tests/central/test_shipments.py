"""Rows leave under an obligation, and nothing is lost with one (OBL-OV-1, A-57)."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.central.test_ship import REGISTERED, acks, shipper, stand_in
from tests.cli.world import Clock, Participant, participants
from tests.patience import PATIENCE_S
from twophp.core.errors import ConfigError
from twophp.core.obligation import Obligation, ObligationError, State
from twophp.engine.obligations.audit import leak_report
from twophp.engine.obligations.flow import Obligations as Flow
from twophp.engine.obligations.rules import Rules
from twophp.ports import Obligations
from twophp.shipping.shipments import SHIPMENT
from twophp.shipping.shipper import Shipping
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite.verify import verify
from twophp.stores.vault import ClearVault

pytestmark = [pytest.mark.anyio, pytest.mark.req("OBL-OV-1", "A-57")]

LEAK_MS = 60_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Central:
    """A central ledger that can be made to hang, and notes which rows it was sent."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.sent: list[list[str]] = []

    async def __call__(self, path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        self.sent.append([row["client_correlation_id"] for row in document["rows"]])
        self.asked.set()
        await self.answers.wait()
        return 200, {}, acks(document)

    def hang(self) -> None:
        self.asked.clear()
        self.answers.clear()


async def shipments(one: Participant) -> list[Obligation]:
    return list(reversed(await one.store.obligations(Obligations(flow=SHIPMENT))))


async def states(one: Participant) -> list[tuple[str, str]]:
    return [(found.state.value, found.resolution) for found in await shipments(one)]


async def events(one: Participant) -> list[str]:
    return [line.event.event for line in await one.store.journal(0, 1_000) if line.event.kind == "obligation"]


def unanswered() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


async def test_a_batch_is_reserved_before_it_leaves_and_committed_with_the_marks_of_its_rows(tmp_path: Path) -> None:
    central = Central()
    async with participants(tmp_path, "serviceA") as who, stand_in(central) as url:
        one = who["serviceA"]
        for number in range(5):
            await one.registers(number)
        central.hang()
        shipping = asyncio.create_task(shipper(one, url, "t", batch_rows=3).ship())
        async with asyncio.timeout(PATIENCE_S):
            await central.asked.wait()
        (under_way,) = await shipments(one)
        assert (under_way.state, under_way.flow) == (State.RESERVED, "tier2_shipment")
        assert len(await one.store.changes(10)) == 5
        central.answers.set()
        assert await shipping == 5
        assert await states(one) == [("Committed", "caller")] * 2
        assert await events(one) == ["OBL-001", "OBL-002"] * 2
        assert await one.store.changes(10) == []
    assert verify(str(tmp_path / "serviceA.db")).holds


async def test_rows_cannot_be_sent_without_an_open_shipment(tmp_path: Path) -> None:
    central = Central()
    async with participants(tmp_path, "serviceA") as who, stand_in(central) as url:
        one = who["serviceA"]
        await one.registers(1)
        sending = shipper(one, url, "t")
        await sending.ship()
        (committed,) = await shipments(one)
        await one.registers(2)
        for shown in (None, committed):
            with pytest.raises(ObligationError) as error:
                await sending._send(await one.store.changes(10), shown, drained=True)
            assert error.value.code == "ERR_OBL_NOT_FOUND"
        assert central.sent == [["client-corr-id1"]]


async def test_killed_between_reserve_and_commit_the_next_worker_goes_on_under_the_same_shipment(
    tmp_path: Path,
) -> None:
    central, clock = Central(), Clock()
    central.hang()
    async with stand_in(central) as url:
        command = (sys.executable, "-m", "tests.central.shipping_victim", str(tmp_path), url)
        victim = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(PATIENCE_S):
            await central.asked.wait()
        victim.kill()
        assert await victim.wait() == -signal.SIGKILL
        central.answers.set()
        async with participants(tmp_path, "serviceA", clock=clock) as who:
            one = who["serviceA"]
            assert await states(one) == [("Reserved", "")]
            next_worker = shipper(one, url, "t", ledger_id="l")
            assert await next_worker.ship() == 0, "the worker that reserved it may be waiting for its answer"
            clock.now += 10_000
            assert await next_worker.ship() == 1
            assert await states(one) == [("Committed", "caller")]
            assert await events(one) == ["OBL-001", "OBL-002"]
            assert await one.store.changes(10) == []


@pytest.mark.req("OBL-INV-2", "OBL-LEAK-5", "OBL-LEAK-6")
async def test_an_outage_opens_one_shipment_and_the_leak_scan_finds_it(tmp_path: Path) -> None:
    central, clock = Central(), Clock()
    async with participants(tmp_path, "serviceA", clock=clock) as who:
        one = who["serviceA"]
        await one.registers(1)
        down = shipper(one, unanswered(), "t", ledger_id="l")
        for _ in range(3):
            await down._visit()
        assert await states(one) == [("Reserved", "")]
        assert (await leak_report(one.store)).verdict == "NO_LEAKS"
        clock.now += LEAK_MS
        assert (await leak_report(one.store)).overdue == 1
        service = Flow(one.store, ClearVault(), "serviceA", mint=mint_uuid, rules=Rules())
        assert len((await service.scan()).leaked) == 1
        for number in range(2, 6):  # A day goes by; calls are served, and central does not answer.
            await one.registers(number)
            clock.now += 21_600_000
            await down._visit()
        report = await leak_report(one.store)
        assert (report.verdict, report.leaked_by_flow) == ("LEAKS", {"tier2_shipment": 1})
        assert await events(one) == ["OBL-001", "OBL-004", "OBL-005"]
        async with stand_in(central) as url:
            assert await shipper(one, url, "t", ledger_id="l").ship() == 5
        assert await states(one) == [("RolledBack", "leak_scan"), ("Committed", "caller")]


@pytest.mark.req("OBL-INV-2")
async def test_where_nobody_else_scans_the_shipper_does(tmp_path: Path) -> None:
    clock = Clock()
    async with participants(tmp_path, "serviceA", clock=clock) as who:
        await who["serviceA"].registers(1)
        down = shipper(who["serviceA"], unanswered(), "t")
        await down._visit()
        clock.now += LEAK_MS
        await down._visit()
        assert await states(who["serviceA"]) == [("RolledBack", "leak_scan")]
        assert await events(who["serviceA"]) == ["OBL-001", "OBL-004"]


@pytest.mark.req("A-73")
async def test_an_acknowledgement_that_comes_after_the_leak_marks_nothing_and_the_rows_are_sent_again(
    tmp_path: Path,
) -> None:
    central, clock = Central(), Clock()
    async with participants(tmp_path, "serviceA", clock=clock) as who, stand_in(central) as url:
        one = who["serviceA"]
        await one.registers(1)
        central.hang()
        sending = shipper(one, url, "t")
        visit = asyncio.create_task(sending._visit())
        async with asyncio.timeout(PATIENCE_S):
            await central.asked.wait()
        clock.now += LEAK_MS
        central.answers.set()
        await visit
        assert (sending.failures, len(await one.store.changes(10))) == (1, 1)
        await sending._visit()
        assert sending.failures == 0
        assert await one.store.changes(10) == []
        assert await states(one) == [("RolledBack", "leak_scan"), ("Committed", "caller")]
        assert central.sent == [["client-corr-id1"]] * 2


@pytest.mark.req("OBL-RBK-1")
async def test_a_shipment_that_is_refused_for_good_is_rolled_back(tmp_path: Path) -> None:
    async def answer(path: str, document: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path.endswith("services"):
            return REGISTERED
        ids = [row["client_correlation_id"] for row in document["rows"]]
        if "client-corr-id1" in ids:
            return 400, {}, {"code": "bad_batch"}
        said = acks(document)
        if ids == ["client-corr-id3"]:
            said["acks"][0] |= {"outcome": "refused", "sync_timestamp": None, "code": "version_conflict"}
        return 200, {}, said

    async with participants(tmp_path, "serviceA") as who, stand_in(answer) as url:
        one = who["serviceA"]
        for number in (1, 2, 3):
            await one.registers(number)
        assert await shipper(one, url, "t", batch_rows=2).ship() == 1
        # Both rows, the first alone, the second alone; then the third.
        assert [state for state, _by in await states(one)] == ["RolledBack", "RolledBack", "Committed", "RolledBack"]
        assert {by for _state, by in await states(one)} == {"caller"}


async def test_of_several_workers_one_sends(tmp_path: Path) -> None:
    central, clock = Central(), Clock()
    async with participants(tmp_path, "serviceA", clock=clock) as who, stand_in(central) as url:
        one = who["serviceA"]
        for number in range(20):
            await one.registers(number)
        central.hang()
        workers = [shipper(one, url, "t", batch_rows=4, ledger_id="l") for _ in range(4)]
        first = asyncio.create_task(workers[0].ship())
        async with asyncio.timeout(PATIENCE_S):
            await central.asked.wait()
        assert await asyncio.gather(*(worker.ship() for worker in workers[1:])) == [0, 0, 0]
        central.answers.set()
        assert await first == 20
        sent = Counter(id_ for batch in central.sent for id_ in batch)
        assert set(sent.values()) == {1}
        # Together, and with a holder that seems dead to all of them: a row that is sent twice is marked once.
        central.sent.clear()
        await one.registers(20)
        clock.now += 10_000
        taken = await asyncio.gather(*(worker.ship() for worker in workers), return_exceptions=True)
        assert sum(found for found in taken if isinstance(found, int)) == 1
        assert await one.store.changes(10) == []
        assert {state for state, _by in await states(one)} == {"Committed"}


def test_the_leak_timeout_is_longer_than_one_attempt() -> None:
    with pytest.raises(ConfigError):
        Shipping(url="https://central.example", token="t", timeout_s=60.0)
