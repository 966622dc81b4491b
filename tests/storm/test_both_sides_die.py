"""kill -9 of the client, of the server and of both, under load: every call ends alike on both sides, and runs once."""

from __future__ import annotations

import asyncio
import os
import random
import select
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.crash import remains
from tests.crash.life import LATER_MS, Errand, Life
from tests.crash.rig import Rig
from tests.patience import PATIENCE_S
from twophp.core.entry import LedgerEntry
from twophp.core.intent import SETTLED, UNCONFIRMED, Phase
from twophp.core.pairing import Verdict, pair_up
from twophp.ports import Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import verify

SEED: Final = 4
CYCLES: Final = 201
VICTIMS: Final = (("client",), ("server",), ("client", "server"))
MOST_ANSWERS: Final = 30
LONGEST_S: Final = 0.35
EVERY: Final = 4  # Coprime to the number of victims, so that each of them dies at work.
NEVER_RAN: Final = UNCONFIRMED | {Phase.ABANDONED}
CLIENT_LATER_MS: Final = 1_100  # Past the lease of the last life.
MOST_VISITS: Final = 20  # Well within the 30 s in which a call may be confirmed.


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def rig(tmp_path: Path, pipe: tuple[int, int]) -> Iterator[Rig]:
    (tmp_path / "made").mkdir()
    found = Rig(tmp_path / "made", listeners=1, inherited=(pipe[1],))
    yield found
    found.kill_all()
    found.close()


class Storm:
    """A server and a client, each with its ledger, and whoever kills them."""

    def __init__(self, rig: Rig, folder: Path, pipe: tuple[int, int]) -> None:
        self._rig = rig
        self._told, telling = pipe
        self._chance = random.Random(SEED)  # noqa: S311 - A run that fails can be run again.
        self.life = Life(folder=str(folder), listener=rig.listeners[0])
        self.errand = Errand(folder=str(folder), port=rig.ports[0], told=telling, name="c0")
        self.colours = {self.errand.name: self.errand.is_blocking}
        self._pids = {"server": rig.begin(self.life), "client": rig.begin(self.errand)}

    def rage(self, cycles: int) -> None:
        for cycle in range(cycles):
            self._let_them_work(surely=cycle % EVERY == 0)
            victims = VICTIMS[cycle % len(VICTIMS)]
            for victim in victims:
                self._rig.kill(self._pids[victim])
            for victim in victims:
                self._pids[victim] = self._begin(victim, cycle)

    def calm_down(self) -> None:
        """The last clients take every call to its outcome.

        A call that could not be asked about is left alone for a growing while, so one visit may find it not due yet.
        Each further visit is a lease later.
        """
        self._rig.kill(self._pids["client"])
        for _visit in range(MOST_VISITS):
            later = self.errand.ahead_ms + CLIENT_LATER_MS
            self.errand = msgspec.structs.replace(self.errand, ahead_ms=later, only_reconciles=True, is_blocking=False)
            self._rig.done(self._rig.begin(self.errand))
            if not _has_open_rows(self.errand.ledger):
                break
        self._rig.stop(self._pids["server"])

    def _begin(self, victim: str, cycle: int) -> int:
        if victim == "server":
            self.life = msgspec.structs.replace(self.life, ahead_ms=self.life.ahead_ms + LATER_MS)
            return self._rig.begin(self.life)
        ahead_ms = self.errand.ahead_ms + CLIENT_LATER_MS
        changes = {"name": f"c{cycle + 1}", "is_blocking": not self.errand.is_blocking}
        self.errand = msgspec.structs.replace(self.errand, ahead_ms=ahead_ms, **changes)
        self.colours[self.errand.name] = self.errand.is_blocking
        return self._rig.begin(self.errand)

    def _let_them_work(self, *, surely: bool) -> None:
        """Until a random number of calls has come back, or for a random while: at times not even the start is over.

        ``surely`` waits for one at least: on a loaded machine no life would be long enough.
        """
        if surely and select.select([self._told], [], [], PATIENCE_S)[0]:
            os.read(self._told, 1)
        enough = self._chance.randint(1, MOST_ANSWERS)
        while enough > 0 and select.select([self._told], [], [], self._chance.uniform(0, LONGEST_S))[0]:
            enough -= len(os.read(self._told, enough))


async def _rows(path: str) -> list[LedgerEntry]:
    async with SQLiteStore(path) as store:
        return list(await store.entries(Tail(remains.EVERYTHING)))


def _has_open_rows(path: str) -> bool:
    return any(row.outcome is None for row in asyncio.run(_rows(path)))


def _answers(file: str) -> dict[tuple[str, str], str]:
    lines = [line.split() for line in Path(file).read_text(encoding="ascii").splitlines()]
    return {(name, server_id): phase for name, server_id, phase, _status in lines}


@pytest.mark.req("A-42", "A-43", "A-49", "P-2-a", "P-3.1-a", "P-10.2-b", "P-10.2-d")
def test_every_call_ends_alike_on_both_sides_and_runs_once(rig: Rig, tmp_path: Path, pipe: tuple[int, int]) -> None:
    storm = Storm(rig, tmp_path, pipe)
    storm.rage(CYCLES)
    storm.calm_down()
    left = remains.of(storm.life)
    verify(storm.errand.ledger).require()
    client_rows = asyncio.run(_rows(storm.errand.ledger))
    calls = pair_up([*client_rows, *left.entries], read={"orders", "checkout"})

    for call in calls:
        runs = len(left.marks.get(call.server_correlation_id, []))
        assert call.server is not None, "the server registered everything that its clients know of"
        assert not call.rivals, "each side has one row of a call"
        if call.client is None:  # It died before it had the ids on its disk, so it cannot have confirmed.
            assert call.server.phase in NEVER_RAN
            assert not runs
            continue
        assert call.verdict is Verdict.PAIRED
        assert call.client.phase == call.server.phase, "both sides say the same"
        assert call.client.phase in SETTLED
        assert runs == 1 if call.server.phase is Phase.COMMITTED else runs <= 1, "a handler ran twice, or not at all"

    ended = {call.key: call.server.phase for call in calls if call.server}
    answers = _answers(storm.errand.answers)
    assert {key: str(ended[key]) for key in answers} == answers, "what a caller was told stays true"
    phases = Counter(call.client.phase for call in calls if call.client)
    assert phases[Phase.COMMITTED] > CYCLES, "most calls came through"
    assert phases[Phase.FAILED], "kills met handlers at work"
    assert len(answers) < phases.total(), "and callers that were still waiting"
    assert {storm.colours[name.partition("-")[0]] for name, _id in answers} == {True, False}, "tasks and threads alike"
