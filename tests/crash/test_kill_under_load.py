"""kill -9 at random moments under load: whatever was answered stays true, and nothing runs twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import pytest

from tests.crash import caller, remains
from tests.crash.caller import Answer, Connection
from tests.crash.life import DELTA_MS, LATER_MS, TTL_MS, Life
from tests.crash.rig import Rig
from tests.patience import PATIENCE_S
from twophp.core.intent import Phase

SEED: Final = 2
KILLS: Final = 220
CALLERS: Final = 8
MOST_ANSWERS: Final = 120  # A life ends after that many at the latest, or the last replay of everything takes long.
LONGEST_S: Final = 0.35
EVERY: Final = 2  # Every other life sees a few answers, however slow the machine is.
FEW: Final = 6
REPLAYED: Final = 0.2  # How often, after a call, an old one is replayed.

Kind: TypeAlias = Literal["standard", "auto_confirm", "walks_away"]
KINDS: Final[tuple[Kind, ...]] = ("standard", "auto_confirm", "walks_away")


class Call(msgspec.Struct, kw_only=True):
    """One intent as its client knows it: what it asked for, and the first answers it was given."""

    client: str
    kind: Kind
    body: bytes
    registered: Answer | None = None
    final: Answer | None = None

    @property
    def server(self) -> str:
        answer = self.final if self.kind == "auto_confirm" else self.registered
        assert answer is not None
        return answer.server_id


class Storm:
    """Callers that never give up on a call, and a server that keeps dying."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.calls: list[Call] = []
        self._rig = rig
        self._chance = random.Random(SEED)  # noqa: S311 - A run that fails can be run again.
        self._life = Life(folder=str(folder), listener=rig.listeners[0])
        self._enough = False
        self._answers = 0
        self._kill_at = 0
        self._doomed = asyncio.Event()

    @property
    def life(self) -> Life:
        return self._life

    async def rage(self, kills: int) -> None:
        """Kill that many servers; when it is over a last one lives on, and every caller has finished what it began."""
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._call_on(number))
            for kill in range(kills):
                server = self._begin()
                await self._doom(surely=kill % EVERY == 0)
                self._rig.kill(server)
            self._enough = True
            self.server = self._begin()

    def _begin(self, later_ms: int = LATER_MS) -> int:
        self._life = msgspec.structs.replace(self._life, ahead_ms=self._life.ahead_ms + later_ms)
        return self._rig.begin(self._life)

    async def _doom(self, *, surely: bool) -> None:
        """Until a random number of answers was given, or for a random while: at times not even the start is over.

        ``surely`` waits for a few at least: on a loaded machine no life would be long enough.
        """
        self._doomed.clear()
        if surely:
            self._kill_at = self._answers + FEW
            async with asyncio.timeout(PATIENCE_S):
                await self._doomed.wait()
            self._doomed.clear()
        self._kill_at = self._answers + self._chance.randint(1, MOST_ANSWERS)
        try:
            async with asyncio.timeout(self._chance.uniform(0, LONGEST_S)):
                await self._doomed.wait()
        except TimeoutError:
            return

    async def _call_on(self, number: int) -> None:
        """One call after the other; now and then an old one again, whichever server is there by then."""
        connection = Connection(self._rig.ports[0])
        mine: list[Call] = []
        while not self._enough:
            call = self._next_call(number)
            self.calls.append(call)
            await self._walk(connection, call)
            mine.append(call)
            if self._chance.random() < REPLAYED:
                await _replay(connection, self._chance.choice(mine))
        await connection.close()

    def _next_call(self, number: int) -> Call:
        client = f"client-{number}-{len(self.calls)}"
        kind = self._chance.choices(KINDS, (8, 1, 1))[0]
        return Call(client=client, kind=kind, body=msgspec.json.encode({"client": client}))

    async def _walk(self, connection: Connection, call: Call) -> None:
        if call.kind == "auto_confirm":
            call.final = await self._ask(connection, caller.auto_confirm(call.client, call.body))
            return
        call.registered = await self._ask(connection, caller.register(call.client, call.body))
        if call.kind == "standard":
            call.final = await self._ask(connection, caller.confirm(call.client, call.server))

    async def _ask(self, connection: Connection, asked: bytes) -> Answer:
        answer = await connection.insist(asked)
        self._answers += 1
        if self._answers >= self._kill_at:
            self._doomed.set()
        return answer

    async def replay_everything(self) -> None:
        """Every call again, over as many connections: what the first answer said, the second says."""
        calls = iter(self.calls)

        async def replaying() -> None:
            connection = Connection(self._rig.ports[0])
            for call in calls:
                await _replay(connection, call)
            await connection.close()

        await asyncio.gather(*(replaying() for _ in range(CALLERS)))

    async def let_time_pass(self) -> None:
        """A life that begins when all that was not confirmed is long abandoned, sweeps, and ends in good order."""
        self._rig.kill(self.server)
        server = self._begin(TTL_MS + DELTA_MS)
        await self.replay_everything()
        self._rig.stop(server)  # It finishes the sweep that it began with.


async def _replay(connection: Connection, call: Call) -> None:
    if call.registered is not None:
        await _replay_phase_one(connection, call)
    if call.kind == "auto_confirm":
        assert await connection.insist(caller.auto_confirm(call.client, call.body)) == call.final
    elif call.final is not None:
        assert await connection.insist(caller.confirm(call.client, call.server)) == call.final
    status = await connection.insist(caller.status(call.client, call.server))
    assert call.final is None or status.phase == call.final.phase


async def _replay_phase_one(connection: Connection, call: Call) -> None:
    """The same intent. How far it has come, and how much time is left, is today's."""
    again = await connection.insist(caller.register(call.client, call.body))
    if call.final is None and again.status == 408:
        return  # Nobody confirmed it, and its time is over.
    assert (again.status, again.server_id) == (200, call.server)
    assert again.phase == (call.final.phase if call.final else "WAITING_CONFIRM")


def judge(calls: list[Call], left: remains.Remains) -> None:
    """The clients' side of the story against the ledger's and the handler's."""
    entries = {entry.client_correlation_id: entry for entry in left.entries}
    assert entries.keys() == {call.client for call in calls}
    assert len(left.entries) == len(calls)
    assert {entry.phase for entry in left.entries} <= remains.FINAL
    assert not left.unfinished
    for call in calls:
        entry = entries[call.client]
        assert entry.server_correlation_id == call.server
        assert entry.phase == (call.final.phase if call.final else Phase.ABANDONED)
        _judge_runs(call, left.marks.get(call.server, []))
    assert left.marks.keys() <= {call.server for call in calls}


def _judge_runs(call: Call, runs: list[str]) -> None:
    assert len(runs) <= 1, "a handler ran twice"
    if call.final is None:
        assert not runs, "a handler ran and nobody had confirmed"
    elif call.final.phase == "COMMITTED":
        assert runs == [call.final.run]
        assert msgspec.json.decode(call.final.body)["sent"] == {"client": call.client}
    else:
        assert (call.final.status, call.final["dtt-2php-message"]) == (500, "Outcome indeterminate.")


async def weather(rig: Rig, folder: Path) -> Storm:
    storm = Storm(rig, folder)
    await storm.rage(KILLS)
    await storm.replay_everything()
    await storm.let_time_pass()
    return storm


@pytest.mark.req("A-34", "P-2-a", "P-3.1-a", "P-6-a", "P-8.1-a", "P-8.1-b", "P-9.5-a")
def test_killed_at_random_under_load_nothing_is_lost_and_nothing_runs_twice(rig: Rig, tmp_path: Path) -> None:
    storm = asyncio.run(weather(rig, tmp_path))
    judge(storm.calls, remains.of(storm.life))
    phases = [call.final.phase for call in storm.calls if call.final]
    # It was a storm: kills met handlers at work, and most calls came through all the same.
    assert len(storm.calls) > KILLS
    assert 0 < phases.count("FAILED") < phases.count("COMMITTED")
