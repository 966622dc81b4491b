"""A server that dies at every boundary of one handshake, and what its client finds when it asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.crash import caller, remains
from tests.crash.caller import Answer, Connection
from tests.crash.life import LATER_MS, Life
from tests.crash.rig import Rig
from twophp.core.intent import Phase

CLIENT: Final = "client-1"
BODY: Final = b'{"item":"tea"}'
INDETERMINATE: Final = "Outcome indeterminate."
INTERRUPTED: Final = "Processing was interrupted and nothing happened; it is safe to resubmit."

BEFORE_PHASE_ONE: Final = ["register asked", "register written"]
REGISTERED: Final = [
    "register durable",
    "register decided",
    "register replying",
    "register replied",
    "confirm asked",
    "confirm written",
]
CONFIRMED: Final = ["confirm durable", "confirm decided", "handler entered"]
ACTED: Final = ["handler acted", "settle asked", "settle written"]
SETTLED: Final = ["settle durable", "settle decided", "settle replying", "settle replied"]
STANDARD: Final = [*BEFORE_PHASE_ONE, *REGISTERED, *CONFIRMED, *ACTED, *SETTLED]

# The server confirms by itself, in the change that registers: there is no WAITING_CONFIRM to be found (draft §5.5.7).
AUTO_CONFIRMED: Final = ["register durable", "register decided", "handler entered"]
AUTO: Final = [*BEFORE_PHASE_ONE, *AUTO_CONFIRMED, *ACTED, *SETTLED]

# The answer to a confirm is a 202 that leaves before the handler begins (draft §5.3.3); the outcome is polled for.
ACCEPTED: Final = ["confirm durable", "confirm decided", "confirm replying", "confirm replied", "handler entered"]
SETTLED_UNHEARD: Final = ["settle durable", "settle decided"]
ASYNC: Final = [*BEFORE_PHASE_ONE, *REGISTERED, *ACCEPTED, *ACTED, *SETTLED_UNHEARD]

MOST_POLLS: Final = 100_000

Walk = Callable[[Connection], Awaitable[Answer | None]]


class Listening(Connection):
    """Counts what it is told."""

    answers = 0

    async def ask(self, asked: bytes) -> Answer | None:
        answer = await super().ask(asked)
        self.answers += answer is not None
        return answer


class Story:
    """One client that walks both phases, through as many lives of the server as it takes."""

    def __init__(self, rig: Rig, folder: Path, **told: Any) -> None:
        self._rig = rig
        self.life = Life(folder=str(folder), listener=rig.listeners[0], **told)
        self.heard: list[Answer] = []  # Final answers, from lives that ended badly.
        self.answers = 0  # How many answers there were, of either phase.

    def dies_at(self, place: str, walk: Walk) -> remains.Remains:
        """A life that ends there; what is left of it."""
        pid = self._rig.begin(msgspec.structs.replace(self.life, dies_at=place))
        asyncio.run(self._heard_of(walk))
        self._rig.mourn(pid)
        self._later()
        return remains.of(self.life)

    def ends_well(self, walk: Walk) -> tuple[Answer, remains.Remains]:
        """A life that nothing happens to: the final answer, which every repetition gives again, and what is left."""
        pid = self._rig.begin(self.life)
        answer = asyncio.run(self._twice(walk))
        self._rig.kill(pid)
        self._later()
        return answer, remains.of(self.life)

    def _later(self) -> None:
        self.life = msgspec.structs.replace(self.life, ahead_ms=self.life.ahead_ms + LATER_MS)

    async def _heard_of(self, walk: Walk) -> None:
        connection = Listening(self._rig.ports[0])
        answer = await walk(connection)
        if answer is not None:
            self.heard.append(answer)
        self.answers += connection.answers
        await connection.close()

    async def _twice(self, walk: Walk) -> Answer:
        connection = Connection(self._rig.ports[0])
        first, again = await walk(connection), await walk(connection)
        assert first is not None
        assert again == first
        assert all(heard == first for heard in self.heard)
        await connection.close()
        return first


async def standard(connection: Connection) -> Answer | None:
    """Both phases, as far as the server lives."""
    registered = await connection.ask(caller.register(CLIENT, BODY))
    if registered is None:
        return None
    return await connection.ask(caller.confirm(CLIENT, registered.server_id))


async def nobody_asks(_connection: Connection) -> Answer | None:
    """A recovery needs no client."""
    return None


async def auto_confirm(connection: Connection) -> Answer | None:
    return await connection.ask(caller.auto_confirm(CLIENT, BODY))


async def polling(connection: Connection) -> Answer | None:
    """Both phases, then the status until it is a final one, as far as the server lives."""
    registered = await connection.ask(caller.register(CLIENT, BODY))
    if registered is None or await connection.ask(caller.confirm(CLIENT, registered.server_id)) is None:
        return None
    for _ in range(MOST_POLLS):
        read = await connection.ask(caller.status(CLIENT, registered.server_id))
        if read is None or read.phase != Phase.PROCESSING:
            return read
    raise AssertionError("it never ended")


def phase_at(place: str, *, auto: bool = False) -> Phase:
    """How far the intent has come, durably, when the server dies there."""
    if place in BEFORE_PHASE_ONE:
        return Phase.ABSENT
    if place in SETTLED:
        return Phase.COMMITTED
    return Phase.WAITING_CONFIRM if place in REGISTERED and not auto else Phase.PROCESSING


def most_answers(place: str) -> int:
    """How many answers can have left a server that dies there: none before what it says is durable."""
    return sum(STANDARD.index(place) >= STANDARD.index(replied) for replied in ("register replied", "settle replied"))


def is_found_unfinished(left: remains.Remains, phase: Phase) -> None:
    """P-3.1-a: whatever is open after a crash, a ledger query finds."""
    open_now = [phase] if phase in {Phase.WAITING_CONFIRM, Phase.PROCESSING} else []
    assert [entry.phase for entry in left.unfinished] == open_now


def server_ids(left: remains.Remains) -> set[str]:
    return {entry.server_correlation_id for entry in left.entries}


@pytest.mark.req("P-2-a", "P-3.1-a", "P-4-d", "P-5.2.2-a", "P-5.3.2-c", "P-6-a", "P-9.5-a", "P-9.5-b", "A-34")
@pytest.mark.parametrize("place", STANDARD)
def test_by_default_a_crashed_execution_fails_for_good(rig: Rig, tmp_path: Path, place: str) -> None:
    story = Story(rig, tmp_path)
    left = story.dies_at(place, standard)
    assert (left.phase, left.runs) == (phase_at(place), int(place in ACTED + SETTLED))
    assert story.answers <= most_answers(place)
    is_found_unfinished(left, left.phase)
    answer, after = story.ends_well(standard)
    if place in CONFIRMED + ACTED:
        assert (answer.status, answer.phase, after.phase) == (500, "FAILED", Phase.FAILED)
        assert answer["dtt-2php-message"] == INDETERMINATE
        assert after.runs == left.runs  # Never run again.
    else:
        assert (answer.status, answer.phase, after.phase) == (200, "COMMITTED", Phase.COMMITTED)
        assert list(after.marks.values()) == [[answer.run]]
    assert server_ids(left) <= server_ids(after)  # What was registered is what was answered: no second intent.


@pytest.mark.req("A-34", "P-8.1-a")
@pytest.mark.parametrize("place", STANDARD)
def test_where_the_endpoint_allows_it_a_crashed_execution_runs_again(rig: Rig, tmp_path: Path, place: str) -> None:
    story = Story(rig, tmp_path, on_crash="rerun")
    left = story.dies_at(place, standard)
    assert left.phase == phase_at(place)
    answer, after = story.ends_well(standard)
    assert (answer.status, answer.phase, after.phase) == (200, "COMMITTED", Phase.COMMITTED)
    [runs] = after.marks.values()
    assert len(runs) == (2 if place in ACTED else 1)
    assert answer.run == runs[-1]
    assert server_ids(left) <= server_ids(after)


@pytest.mark.req("A-34", "P-8.1-a")
@pytest.mark.parametrize("place", STANDARD)
def test_where_somebody_knows_the_outcome_is_what_they_say(rig: Rig, tmp_path: Path, place: str) -> None:
    story = Story(rig, tmp_path, reconciles=True)
    left = story.dies_at(place, standard)
    assert left.phase == phase_at(place)
    answer, after = story.ends_well(standard)
    if place in CONFIRMED:
        assert (answer.status, answer.phase, after.runs) == (500, "FAILED", 0)
        return
    [[run]] = after.marks.values()  # Once, wherever it died.
    assert (answer.status, answer.phase, after.phase) == (200, "COMMITTED", Phase.COMMITTED)
    assert answer["dtt-2php-resource-id"] == f"order-{run}"


@pytest.mark.req("A-34", "P-8.1-a", "P-8.1-b")
@pytest.mark.parametrize("place", AUTO)
def test_what_the_server_confirms_itself_recovers_alike(rig: Rig, tmp_path: Path, place: str) -> None:
    story = Story(rig, tmp_path)
    left = story.dies_at(place, auto_confirm)
    assert (left.phase, left.runs) == (phase_at(place, auto=True), int(place in ACTED + SETTLED))
    is_found_unfinished(left, left.phase)
    answer, after = story.ends_well(auto_confirm)
    if place in AUTO_CONFIRMED + ACTED:
        assert (answer.status, answer.phase, after.runs) == (500, "FAILED", left.runs)
    else:
        assert (answer.status, answer.phase) == (201, "COMMITTED")
        assert list(after.marks.values()) == [[answer.run]]
    assert server_ids(left) <= server_ids(after)


@pytest.mark.req("A-34", "A-04", "P-5.3.3-a", "P-8.1-a")
@pytest.mark.parametrize("place", ASYNC)
def test_what_runs_after_its_202_recovers_alike(rig: Rig, tmp_path: Path, place: str) -> None:
    story = Story(rig, tmp_path, mode="async")
    left = story.dies_at(place, polling)
    assert (left.phase, left.runs) == (phase_at(place), int(place in ACTED + SETTLED))
    is_found_unfinished(left, left.phase)
    answer, after = story.ends_well(polling)
    assert answer.status == 200  # A read that succeeded, of whatever it is.
    if place in ACCEPTED + ACTED:
        assert (answer.phase, after.phase, after.runs) == ("FAILED", Phase.FAILED, left.runs)
    else:
        assert (answer.phase, after.phase) == ("COMMITTED", Phase.COMMITTED)
        assert list(after.marks.values()) == [[answer.run]]
    assert server_ids(left) <= server_ids(after)


@pytest.mark.req("A-34", "A-108")
@pytest.mark.parametrize("place", STANDARD)
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
def test_business_rows_and_the_commit_are_both_there_or_neither(
    rig: Rig, tmp_path: Path, place: str, on_crash: str
) -> None:
    story = Story(rig, tmp_path, effect="row", effects="transaction", on_crash=on_crash)
    left = story.dies_at(place, standard)
    assert left.phase == phase_at(place)
    assert len(left.rows) == (left.phase is Phase.COMMITTED)
    answer, after = story.ends_well(standard)
    fails = on_crash == "fail" and place in CONFIRMED + ACTED
    assert answer.phase == after.phase == (Phase.FAILED if fails else Phase.COMMITTED)
    # Even where it ran twice: the first run's row went with the commit that did not happen.
    assert after.rows == ([] if fails else [(after.entries[0].server_correlation_id, answer.run)])
    # And where it failed the client is told that nothing happened (ADR 44).
    assert (dict(answer.headers).get("dtt-2php-message") == INTERRUPTED) is fails
    assert not any(entry.indeterminate for entry in after.entries)


RECOVERY: Final = [
    "sweep asked",
    "sweep written",
    "sweep durable",
    "sweep decided",
    "settle asked",
    "settle written",
    "settle durable",
]


@pytest.mark.req("A-34", "P-8.1-a")
@pytest.mark.parametrize("place", RECOVERY)
@pytest.mark.parametrize("on_crash", ["fail", "rerun"])
def test_a_recovery_that_dies_is_recovered(rig: Rig, tmp_path: Path, place: str, on_crash: str) -> None:
    story = Story(rig, tmp_path, effect="row", on_crash=on_crash)
    story.dies_at("handler acted", standard)
    left = story.dies_at(place, nobody_asks)
    settled = Phase.COMMITTED if on_crash == "rerun" else Phase.FAILED
    assert left.phase == (settled if place == "settle durable" else Phase.PROCESSING)
    answer, after = story.ends_well(standard)
    assert answer.phase == after.phase == settled
    assert len(after.rows) == (settled is Phase.COMMITTED)
