"""A thousand confirms at once, to four processes on one file: one runs, everybody gets its answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from tests.crash import caller, remains
from tests.crash.caller import Answer, Connection
from tests.crash.life import Life
from tests.crash.rig import Rig
from tests.patience import PATIENCE_S
from twophp.core.intent import Phase

CONFIRMS: Final = 1_000
CLIENT: Final = "client-1"


def lives(rig: Rig, folder: Path) -> list[Life]:
    return [Life(folder=str(folder), listener=listener, gated=True) for listener in rig.listeners]


async def registered(port: int) -> str:
    connection = Connection(port)
    answer = await connection.insist(caller.register(CLIENT))
    await connection.close()
    return answer.server_id


async def all_at_once(rig: Rig, gate: Path) -> list[Answer]:
    """Everybody has asked before the handler may go on, so nobody finds a settled intent by being slow."""
    server_id = await registered(rig.ports[0])
    connections = [Connection(rig.ports[number % len(rig.ports)]) for number in range(CONFIRMS)]
    await asyncio.gather(*(connection.send(caller.confirm(CLIENT, server_id)) for connection in connections))
    await asyncio.to_thread(gate.write_bytes, b"go")  # Returns when a handler has opened the other end.
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(connection.read() for connection in connections))
    await asyncio.gather(*(connection.close() for connection in connections))
    return answers


@pytest.mark.req("A-33", "P-8.1-a", "P-8.1-b")
def test_one_of_a_thousand_confirms_runs_and_all_get_its_answer(rig: Rig, tmp_path: Path) -> None:
    told = lives(rig, tmp_path)
    gate = Path(told[0].gate)
    os.mkfifo(gate)
    for life in told:
        rig.begin(life)
    answers = asyncio.run(all_at_once(rig, gate))
    rig.kill_all()
    assert len(answers) == CONFIRMS
    assert set(answers) == {answers[0]}
    left = remains.of(told[0])
    assert (answers[0].status, answers[0].phase, left.phase) == (200, "COMMITTED", Phase.COMMITTED)
    assert list(left.marks.values()) == [[answers[0].run]]
    assert sum(line.event.after == Phase.PROCESSING for line in left.journal) == 1
