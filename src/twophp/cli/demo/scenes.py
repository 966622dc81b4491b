"""What the demo does, and what must come of it: four scenes, played against real processes, each with its checks.

Nothing here prints. A scene says what was sent, what the ledgers then held, and whether that is what was promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from twophp.cli.demo.caller import Caller, Message
from twophp.cli.demo.chain import CHAIN, PARTICIPANTS, SERVICES, STEM, WORKED, as_worked
from twophp.cli.output import counted
from twophp.cli.remote import Remote
from twophp.cli.sources import joined
from twophp.core.calltree import CallTree
from twophp.core.entry import LedgerEntry
from twophp.core.errors import Advice, PhaseError, TwoPHPError
from twophp.core.intent import Phase
from twophp.core.pairing import Verdict
from twophp.stores.clock import pause, steady_clock
from twophp.stores.sqlite.verify import verify

GOOD: Final = f"{STEM}1"
FAILING: Final = "failing-corr-id1"
STALLED: Final = "stalled-corr-id1"

ORDER: Final = {"item": "tea"}
SOLD_OUT: Final = {"item": "coffee", "sold_out_at": "serviceE1"}
FAILED_CALLS: Final = frozenset({1, 4, 7})
"""The calls on the way to where the coffee is sold out."""

SHORT_TTL_MS: Final = 2_500
PATIENCE_MS: Final = 15_000
LOOK_EVERY_S: Final = 0.05
REPEATS: Final = 3


class CallFailed(TwoPHPError):
    """A call of the demo came to no answer, though every process lives."""

    default_code = "demo_call_failed"


class Check(msgspec.Struct, frozen=True):
    """Something that must be so, and whether it is."""

    says: str
    holds: bool


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One call and what came of it."""

    name: str
    client_correlation_id: str
    messages: tuple[Message, ...]
    tree: CallTree
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether everything is as it must be."""
        return all(check.holds for check in self.checks)


class World:
    """The client, every participant's ledger, and the central one."""

    def __init__(self, folder: Path, caller: Caller, central: Remote) -> None:
        self.caller = caller
        self.central = central
        self.ledgers = ledgers_in(folder)
        self._folder = folder

    def tree(self, member: str) -> CallTree:
        """The call tree, joined from every participant's own ledger."""
        with joined([str(path) for path in self.ledgers.values()]) as sources:
            return sources.tree(member)[0]

    def ended_tree(self, member: str) -> CallTree:
        """The tree when every row has its outcome: a client writes it behind the answer. Bounded; else as it is."""
        by = steady_clock() + PATIENCE_MS
        tree = self.tree(member)
        while any(row.outcome is None for row in tree.rows()) and steady_clock() < by:
            pause(LOOK_EVERY_S)
            tree = self.tree(member)
        return tree

    def runs(self) -> dict[str, Counter[str]]:
        """How often each service's handler ran, by client correlation id. The handlers count, not the protocol."""
        return {name: _lines_of(runs_file(self._folder, name)) for name in SERVICES}

    def heard_while(self, call: Callable[[], object]) -> tuple[Message, ...]:
        """What went over the client's wire during a call."""
        before = len(self.caller.ear.heard)
        call()
        return tuple(self.caller.ear.heard[before:])

    def until(self, member: str, phase: Phase) -> bool:
        """Wait until both rows of a call say this phase. Bounded; false if they do not."""
        by = steady_clock() + PATIENCE_MS
        while _phases(self.tree(member)) != [phase, phase]:
            if steady_clock() >= by:
                return False
            pause(LOOK_EVERY_S)
        return True


def ledgers_in(folder: Path) -> dict[str, Path]:
    """Every participant's ledger, by name."""
    return {name: folder / f"{name}.db" for name in PARTICIPANTS}


def runs_file(folder: Path, service: str) -> Path:
    """The file in which a service's handler notes that it ran."""
    return folder / f"{service}.runs"


def _lines_of(file: Path) -> Counter[str]:
    return Counter(file.read_text(encoding="ascii").splitlines() if file.exists() else ())


def _unsent(tree: CallTree) -> list[LedgerEntry]:
    """Rows without the time they reached the central ledger, which is no part of what happened."""
    return [msgspec.structs.replace(row, sync_timestamp=None) for row in tree.rows()]


def _phases(tree: CallTree) -> list[Phase]:
    return [row.phase for row in tree.rows()]


# The scenes.


def good(world: World) -> Scene:
    """A call that succeeds, and causes six more."""
    answers: list[httpx2.Response] = []
    messages = world.heard_while(lambda: answers.append(world.caller.order(GOOD, ORDER)))
    tree = world.ended_tree(GOOD)
    return Scene(
        name="good",
        client_correlation_id=GOOD,
        messages=messages,
        tree=tree,
        checks=(
            Check("the client was answered COMMITTED", _answered(answers[0], 200, Phase.COMMITTED)),
            *_worked_out(tree),
            _ran_once(world, GOOD),
        ),
    )


def failing(world: World) -> Scene:
    """A call whose last handler says no."""
    answers: list[httpx2.Response] = []
    messages = world.heard_while(lambda: answers.append(world.caller.order(FAILING, SOLD_OUT)))
    tree = world.ended_tree(FAILING)
    expected = [Phase.FAILED if number in FAILED_CALLS else Phase.COMMITTED for number, *_ends in CHAIN]
    both_sides = [phase for phase in expected for _side in ("client", "server")]
    return Scene(
        name="failing",
        client_correlation_id=FAILING,
        messages=messages,
        tree=tree,
        checks=(
            Check("the client was answered FAILED, with the reason", _answered(answers[0], 409, Phase.FAILED)),
            Check("FAILED on both sides, all the way up; COMMITTED on both elsewhere", _phases(tree) == both_sides),
            _all_paired(tree, len(CHAIN)),
            _ran_once(world, FAILING),
        ),
    )


def stalled(world: World) -> Scene:
    """A call that is registered and never confirmed: no confirm gets through, and its time runs out."""
    world.caller.ear.cut = True
    moments: list[bool] = []
    errors: list[BaseException | None] = []

    def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            call: Future[httpx2.Response] = pool.submit(world.caller.order, STALLED, ORDER, SHORT_TTL_MS)
            moments.append(world.until(STALLED, Phase.WAITING_CONFIRM))
            errors.append(call.exception(PATIENCE_MS / 1_000))
        moments.append(world.until(STALLED, Phase.TTL_EXPIRED))

    try:
        messages = world.heard_while(play)
    finally:
        world.caller.ear.cut = False
    runs = sum(counts[STALLED] for counts in world.runs().values())
    return Scene(
        name="stalled",
        client_correlation_id=STALLED,
        messages=messages,
        tree=world.tree(STALLED),
        checks=(
            Check("WAITING_CONFIRM on both sides while there was time", moments[0]),
            Check("TTL_EXPIRED on both sides when it was over", moments[1]),
            Check("the client learned that it may safely begin anew", _may_begin_anew(errors[0])),
            Check("no handler ran", runs == 0),
        ),
    )


def replayed(world: World) -> Scene:
    """The first call, confirmed again and again, as a client does that missed the answer."""
    before = world.tree(GOOD)
    first = _confirmed(world.caller.ear.heard)
    messages = world.heard_while(
        lambda: [world.caller.confirm(GOOD, first.server_correlation_id) for _again in range(REPEATS)]
    )
    tree = world.tree(GOOD)
    return Scene(
        name="replayed",
        client_correlation_id=GOOD,
        messages=messages,
        tree=tree,
        checks=(
            Check(f"{REPEATS} more confirms, {REPEATS} times the same answer", messages == (first,) * REPEATS),
            Check(
                f"still {counted(len(WORKED), 'row')}, and none of them has changed", _unsent(tree) == _unsent(before)
            ),
            _ran_once(world, GOOD),
        ),
    )


SCENES: Final[Mapping[str, Callable[[World], Scene]]] = {
    "good": good,
    "failing": failing,
    "stalled": stalled,
    "replayed": replayed,
}


def gathered(world: World) -> Check:
    """Whether the central ledger has what the local ones have. They send their rows twice a second."""
    says = f"the central ledger has gathered the same {counted(len(WORKED), 'row')}, and finds the tree complete"
    expected = {(row.client_correlation_id, row.actor, row.phase) for row in world.tree(GOOD).rows()}
    by = steady_clock() + PATIENCE_MS
    while _at_center(world.central.find(f"/v1/trees/{GOOD}")) != expected:
        if steady_clock() >= by:
            return Check(says, holds=False)
        pause(LOOK_EVERY_S)
    return Check(says, holds=True)


def _at_center(tree: Any) -> set[tuple[str, str, str]]:
    """The rows of a tree that is complete; nothing before that."""
    if tree is None or not tree["complete"]:
        return set()
    rows = [row for call in tree["calls"] for row in (call["client"], call["server"])]
    return {(row["client_correlation_id"], row["actor"], row["phase"]) for row in rows}


def journals(world: World) -> Check:
    """Whether every ledger's history is as it was written."""
    reports = [verify(str(path)) for path in world.ledgers.values()]
    lines = sum(report.lines for report in reports)
    says = f"{len(reports)} journals, {counted(lines, 'line')}, each chained to the one before by its hash"
    return Check(says, all(report.holds for report in reports))


# What is checked.


def _worked_out(tree: CallTree) -> tuple[Check, ...]:
    rows = f"{counted(len(WORKED), 'row')} in {len(PARTICIPANTS)} ledgers, exactly those of the draft's table"
    return Check(rows, as_worked(tree.rows()) == WORKED), _all_paired(tree, len(CHAIN))


def _all_paired(tree: CallTree, calls: int) -> Check:
    verdicts = [call.pair.verdict for call in tree.calls()]
    return Check(f"{calls} calls, each registered by both sides: PAIRED", verdicts == [Verdict.PAIRED] * calls)


def _ran_once(world: World, root: str) -> Check:
    stem = root.removesuffix("1")
    runs = world.runs()
    ran = [runs[target][f"{stem}{number}"] for number, _source, target in CHAIN]
    return Check(f"{len(CHAIN)} handlers ran, each exactly once", ran == [1] * len(CHAIN))


def _answered(answer: httpx2.Response, status: int, phase: Phase) -> bool:
    return answer.status_code == status and answer.extensions["twophp"]["phase"] == phase


def _may_begin_anew(error: BaseException | None) -> bool:
    return isinstance(error, PhaseError) and error.advice is Advice.RESUBMIT


def _confirmed(heard: Sequence[Message]) -> Message:
    """The confirm that is to be repeated."""
    for message in heard:
        if message.is_confirm and message.client_correlation_id == GOOD:
            return message
    raise CallFailed(f"{GOOD} was never confirmed, so there is nothing to repeat")
