"""Whether the process that executes an intent lives, as another process on the same database finds out."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.crash import caller, remains
from tests.crash.caller import Answer, Connection
from tests.crash.life import LATER_MS, Life
from tests.crash.rig import Rig
from tests.patience import PATIENCE_S
from twophp.core.intent import Phase

CLIENT: Final = "client-1"
LONG_LEASE_MS: Final = 600_000  # Nobody here waits for its end.
BOUND_S: Final = PATIENCE_S


def at_the_gate(rig: Rig, folder: Path, **told: Any) -> tuple[Life, int]:
    """A server whose handler waits at the gate for as long as the test wants."""
    life = Life(folder=str(folder), listener=rig.listeners[0], gated=True, **told)
    os.mkfifo(life.gate)
    return life, rig.begin(life)


async def running(rig: Rig, life: Life) -> tuple[str, Connection, int]:
    """Both phases, until the handler runs: the server's id, whoever waits for the answer, and the gate to open."""
    connection = Connection(rig.ports[0])
    registered = await connection.insist(caller.register(CLIENT))
    await connection.send(caller.confirm(CLIENT, registered.server_id))
    gate = await asyncio.to_thread(os.open, life.gate, os.O_WRONLY)  # Returns when the handler has opened its end.
    return registered.server_id, connection, gate


async def asked(port: int, server_id: str) -> Answer:
    """The answer to a repeated confirm, in less time than any lease takes."""
    connection = Connection(port)
    async with asyncio.timeout(BOUND_S):
        answer = await connection.insist(caller.confirm(CLIENT, server_id))
    await connection.close()
    return answer


@pytest.mark.req("A-34", "A-33")
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
@pytest.mark.parametrize("who", ["the next start", "a sibling"])
def test_a_crash_is_answered_long_before_the_lease_ends(rig: Rig, tmp_path: Path, who: str, on_crash: str) -> None:
    life, pid = at_the_gate(rig, tmp_path, on_crash=on_crash, lease_ms=LONG_LEASE_MS)
    heir = msgspec.structs.replace(life, listener=rig.listeners[1], gated=False)

    async def story() -> Answer:
        if who == "a sibling":
            rig.begin(heir)
            sibling = Connection(rig.ports[1])
            await sibling.insist(caller.register("another"))  # It serves before the other dies.
            await sibling.close()
        server_id, connection, gate = await running(rig, life)
        rig.kill(pid)
        os.close(gate)
        if who == "the next start":
            rig.begin(heir)
        await connection.close()
        return await asked(rig.ports[1], server_id)

    answer = asyncio.run(story())
    rig.kill_all()
    left = remains.of(life)
    assert answer.phase == ("FAILED" if on_crash == "fail" else "COMMITTED")
    assert list(map(len, left.marks.values())) == ([] if on_crash == "fail" else [1])


@pytest.mark.req("A-34")
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
def test_a_stopped_process_is_not_taken_over_and_goes_on_when_it_wakes(rig: Rig, tmp_path: Path, on_crash: str) -> None:
    life, pid = at_the_gate(rig, tmp_path, on_crash=on_crash)
    # By its clock the lease of the other has run out long ago when it starts: as after a step of the wall clock, too.
    later = msgspec.structs.replace(life, listener=rig.listeners[1], gated=False, ahead_ms=2 * LATER_MS)
    said_before = rig.complaints().count("has not renewed its lease")

    async def story() -> tuple[Answer, Answer]:
        server_id, connection, gate = await running(rig, life)
        os.kill(pid, signal.SIGSTOP)
        rig.begin(later)
        other = Connection(rig.ports[1])
        async with asyncio.timeout(BOUND_S):
            while rig.complaints().count("has not renewed its lease") == said_before:
                read = await other.ask(caller.status(CLIENT, server_id))
                assert read is not None
                assert read.phase == Phase.PROCESSING
        os.kill(pid, signal.SIGCONT)
        os.close(gate)
        async with asyncio.timeout(BOUND_S):
            heard = await connection.read()
        await connection.close()
        await other.close()
        return heard, await asked(rig.ports[1], server_id)

    heard, again = asyncio.run(story())
    rig.kill_all()
    left = remains.of(life)
    assert heard == again
    assert (heard.phase, left.phase) == ("COMMITTED", Phase.COMMITTED)
    assert list(left.marks.values()) == [[heard.run]]
    assert {line.event.fence for line in left.journal if line.event.after == "COMMITTED"} == {1}
