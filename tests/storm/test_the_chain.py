"""The draft's chain of eight while its participants are killed: fourteen rows, seven pairs, and each effect once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import pytest

from tests.crash.life import LATER_MS, Link
from tests.crash.rig import Rig
from tests.storm.chain import insist
from twophp.client import AsyncTwoPhaseTransport
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict, pair_up
from twophp.ports import Tail
from twophp.stores.clock import system_clock
from twophp.stores.sqlite import SQLiteStore

SEED: Final = 10
CHAINS: Final = 4
CHAIN: Final = {"A": ("B1", "B2", "B3"), "B1": ("C1",), "B2": ("D1",), "B3": ("E1",), "C1": (), "D1": (), "E1": ()}
LONGEST_S: Final = 0.15


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "made").mkdir()
    found = Rig(tmp_path / "made", listeners=len(CHAIN))
    yield found
    found.kill_all()
    found.close()


class Fleet:
    """Seven services, and whoever kills them."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self._chance = random.Random(SEED)  # noqa: S311 - A run that fails can be run again.
        self.ports = dict(zip(CHAIN, rig.ports, strict=True))
        self.links = {
            name: Link(
                folder=str(folder),
                listener=listener,
                name=name,
                calls={below: self.ports[below] for below in CHAIN[name]},
            )
            for name, listener in zip(CHAIN, rig.listeners, strict=True)
        }
        self._pids = {name: rig.begin(link) for name, link in self.links.items()}

    async def kill_while(self, working: asyncio.Task[httpx2.Response]) -> int:
        """Kill one participant after the other, for as long as the chain is at work and a little longer."""
        kills = 0
        while not working.done() and kills < len(CHAIN):
            await asyncio.wait([working], timeout=self._chance.uniform(0, LONGEST_S))
            name = self._chance.choice(list(CHAIN))
            self._rig.kill(self._pids[name])
            self.links[name] = msgspec.structs.replace(self.links[name], ahead_ms=self.links[name].ahead_ms + LATER_MS)
            self._pids[name] = self._rig.begin(self.links[name])
            kills += 1
        return kills


async def storm(fleet: Fleet, folder: Path) -> tuple[list[httpx2.Response], int]:
    transport = AsyncTwoPhaseTransport(
        ledger=f"sqlite:///{folder}/client-calls.db",
        source="client",
        allow_insecure=True,
        require_2php=True,
        targets={f"http://127.0.0.1:{fleet.ports['A']}": "A"},
        reconcile_every_s=None,
        clock=system_clock,
    )
    answers, kills = [], 0
    async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
        for number in range(CHAINS):
            working = asyncio.create_task(insist(http, f"http://127.0.0.1:{fleet.ports['A']}/orders", f"root{number}"))
            kills += await fleet.kill_while(working)
            answers.append(await working)
    return answers, kills


async def rows_of(paths: list[Path]) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    for path in paths:
        async with SQLiteStore(str(path)) as store:
            found += await store.entries(Tail(10_000))
    return found


def settled_rows(folder: Path) -> list[LedgerEntry]:
    """All rows, once the last outcomes are written: behind the answers, or by the next life of who was killed."""
    for _ in range(600):
        rows = asyncio.run(rows_of(sorted(folder.glob("*.db"))))
        if all(row.outcome is not None for row in rows):
            break
        threading.Event().wait(0.05)
    return rows


@pytest.mark.req("A-34", "A-50", "A-51", "P-10.2-d", "P-10.3-a", "P-10.3-c")
def test_fourteen_rows_whoever_dies(rig: Rig, tmp_path: Path) -> None:
    fleet = Fleet(rig, tmp_path)
    answers, kills = asyncio.run(storm(fleet, tmp_path))
    assert kills >= CHAINS
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    rows = settled_rows(tmp_path)
    rig.kill_all()
    assert len(rows) == 14 * CHAINS
    calls = pair_up(rows, read={"client", *CHAIN})
    assert {call.verdict for call in calls} == {Verdict.PAIRED}
    assert {row.phase for row in rows} == {Phase.COMMITTED}
    parents = {call.client_correlation_id: call.client.parent_reference_id for call in calls if call.client}
    assert parents["root0"] == "root0"
    assert {id_: parents[id_] for id_ in ("root0.B1", "root0.B2", "root0.B3")} == dict.fromkeys(
        ("root0.B1", "root0.B2", "root0.B3"), "root0"
    )
    assert parents["root0.B1.C1"] == "root0.B1"
