"""The demo's output for people: what went over the wire, what the ledgers hold, and a verdict for each scene."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from twophp.cli.demo.caller import Message
from twophp.cli.demo.chain import CHAIN, PICTURE, id_within
from twophp.cli.demo.scenes import FAILING, GOOD, REPEATS, SHORT_TTL_MS, STALLED, Check, Scene
from twophp.cli.demo.show import Ending, Stage
from twophp.cli.output import Stdout, counted, safe
from twophp.cli.rows import call_tree_text, phase_text, state_text, worked_table
from twophp.core.calltree import Branch, CallTree, call_tree
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.stores.clock import pause
from twophp.wire.instant import format_instant

PIPED_WIDTH: Final = 110
BEAT_S: Final = 0.8

TITLES: Final[Mapping[str, str]] = {
    "good": "A call that succeeds",
    "failing": "A call that fails",
    "stalled": "A call that is never confirmed",
    "replayed": "The same confirm again",
}
OPENINGS: Final[Mapping[str, str]] = {
    "good": "The client orders tea with one ordinary POST. Its HTTP transport makes two phases of it:",
    "failing": "Coffee is sold out at the far end, in serviceE1. Every service on the way there learns of it:",
    "stalled": "No confirm gets through, as if the client had crashed after Phase 1:",
    "replayed": "A client that missed the answer cannot know whether its order ran. It simply confirms again:",
}
ASIDES: Final[Mapping[tuple[str, str], str]] = {
    (
        "good",
        Phase.WAITING_CONFIRM,
    ): "serviceA has stored the order; nothing runs yet. The client writes down both ids.",
    ("good", Phase.COMMITTED): "Both have it in writing, so now the handler ran. Its answer is kept for every repeat.",
}
MEANINGS: Final[Mapping[str, str]] = {
    "good": "While it ran, serviceA's handler called three services in the same way, and they three more:",
    "failing": "A failure is an outcome like any other: both sides wrote it down, and it answers every repeat.",
    "stalled": "Nothing ran, and nothing ever will under these ids: the client may safely ask anew.",
    "replayed": "It was given the stored answer, byte for byte. Nothing ran a second time, nowhere in the chain.",
}
LOOKS: Final = (
    ("the tree again, from any id in it; --rows shows the table", f"tree {id_within(GOOD, 5)}"),
    ("both rows of the call that failed, and its history", f"show {id_within(FAILING, 7)}"),
    ("what was never confirmed", "stalled"),
    ("every call, and whether both sides agree", "pairs"),
)

SHORT_ID: Final = 8
STEP_WIDTH: Final = 9
LINE_WIDTH: Final = 26
WIDE: Final = 100

CLIENT_ID: Final = "bold magenta"
SERVER_ID: Final = "bold yellow"

_ID_STYLES: Final = {
    "client_correlation_id": "magenta",
    "server_correlation_id": "yellow",
    "parent_reference_id": "magenta",
}
_FOLDED_HEADERS: Final = {
    "client_correlation_id": "client_\ncorrelation_id",
    "server_correlation_id": "server_\ncorrelation_id",
    "parent_reference_id": "parent_\nreference_id",
}
_SHORT_HEADERS: Final = {
    "client_correlation_id": "client id",
    "server_correlation_id": "server id",
    "parent_reference_id": "parent",
}


class Story:
    """Prints to a terminal, or to what takes its place."""

    def __init__(self) -> None:
        self._console = Stdout(highlight=False)
        if not self._console.is_terminal and self._console.width < PIPED_WIDTH:
            self._console.width = PIPED_WIDTH
        self._number = 0

    # The beginning.

    def begin(self) -> None:
        """What this is about."""
        self._console.print()
        self._title("Two-Phase HTTP in one minute")
        self._say("A change asked for over HTTP is first registered by both sides, and only then run: once.")
        self._say("Nine processes on loopback: eight with ledgers of their own, and a central one that gathers them:")
        self._console.print()
        self._show(Text(PICTURE, "cyan"), 4)

    def starting(self) -> AbstractContextManager[object]:
        """A sign of life while the services start."""
        return self._console.status("starting seven services and the central ledger")

    def playing(self, name: str) -> AbstractContextManager[object]:
        """A scene's heading, and a sign of life while it is played."""
        if self._console.is_terminal and self._number:
            pause(BEAT_S)
        self._number += 1
        self._console.print()
        self._title(f"{self._number}  {TITLES[name]}")
        self._say(OPENINGS[name])
        waiting = f"waiting {SHORT_TTL_MS / 1_000:g} s for a confirm that does not come"
        return self._console.status(waiting if name == "stalled" else "calling")

    # The scenes.

    def told(self, scene: Scene) -> None:
        """What happened in a scene, and the verdict."""
        self._console.print()
        self._conversation(scene)
        if scene.name == "stalled":
            self._two_moments(scene.tree)
        self._console.print()
        self._say(MEANINGS[scene.name])
        if scene.name == "good":
            self._whole_tree(scene.tree)
        elif scene.name == "failing":
            self._console.print()
            self._show(outline(scene.tree))
        self._console.print()
        self._verdicts(scene.checks)

    def _conversation(self, scene: Scene) -> None:
        """Each request with its answer; a repeat is only counted."""
        for message, times in Counter[Message](scene.messages).items():
            for line in spoken(message, times):
                self._show(line)
            if aside := ASIDES.get((scene.name, message.phase)):
                self._show(Text(aside, "italic dim"), 13)

    def _whole_tree(self, tree: CallTree) -> None:
        rows = [_with_short_id(row) for row in tree.rows()]
        self._console.print()
        for drawn in call_tree_text(call_tree(rows, GOOD)) if self._console.width >= WIDE else [outline(tree)]:
            self._show(drawn)
        self._console.print()
        self._say(
            "The same as ledger rows, two for each call: who called, and who was called. This is the worked table of "
            "the draft (§10.3), joined from eight ledgers that know nothing of each other:"
        )
        self._console.print()
        self._show(worked(rows, self._console.width))

    def _two_moments(self, tree: CallTree) -> None:
        self._console.print()
        for row in tree.rows():
            whose = f"{safe(row.source)}'s row".ljust(16)
            self._show(Text.assemble((whose, "bold"), phase_text(Phase.WAITING_CONFIRM), " → ", state_text(row)))

    def _verdicts(self, checks: Iterable[Check]) -> None:
        for check in checks:
            mark = ("✓ ", "bold green") if check.holds else ("✗ ", "bold red")
            self._show(Text.assemble(mark, (check.says, "" if check.holds else "bold red")))

    # The end.

    def end(self, ending: Ending) -> None:
        """The counts, the verdict of all, and what to look at next."""
        self._console.print()
        self._title("What ran")
        self._say("Every handler writes a line whenever it runs, beside the protocol. The lines, counted:")
        self._console.print()
        self._show(runs_table(ending.runs))
        self._console.print()
        self._verdicts(ending.checks)
        good, bad = ("Exactly once, everywhere, and both sides can prove it.", "Something is not as it was promised.")
        self._console.print()
        self._say(good if ending.holds else bad, "bold green" if ending.holds else "bold red")
        self._look_on(ending.stage)

    def going_on(self, ending: Ending) -> None:
        """Before the live part."""
        center = ending.stage.center
        self._console.print()
        self._title("Live")
        self._say("A call every second. The central ledger has pages: trees, what is stalled, latencies, proofs.")
        self._console.print()
        self._say(f"  open       {center.url}/tree?id={GOOD}", "bold cyan", in_one_line=True)
        self._say(f"  log in as  {center.token}", "bold cyan", in_one_line=True)
        self._console.print()
        self._say("Below, every row that changes in any of the eight ledgers. Ctrl-C ends it.")
        self._console.print()

    def changed(self, entry: LedgerEntry, _ledger: str) -> None:
        """A row on a line."""
        self._console.print(live_line(entry), soft_wrap=True)

    def _look_on(self, stage: Stage) -> None:
        folder, command = stage.folder, _command_name()
        self._console.print()
        self._title("Look for yourself")
        self._say(f"Ledgers and logs stay in {folder}", in_one_line=True)
        for what, arguments in LOOKS:
            self._console.print()
            self._say(f"# {what}", "dim")
            self._say(f"{command} ledger {arguments} {folder}/*.db", "cyan", in_one_line=True)
        self._console.print()
        self._say("# the central ledger's pages; log in with the token", "dim")
        self._say(f"export TWOPHP_OPERATOR_TOKEN={stage.center.token}", "cyan", in_one_line=True)
        self._say(f"{command} central serve --store {stage.center.store}", "cyan", in_one_line=True)

    # One thing at a time.

    def _title(self, title: str) -> None:
        self._console.print(Rule(Text(f" {title} ", "bold reverse"), align="left", style="dim", characters="─"))

    def _say(self, text: str, style: str = "", *, in_one_line: bool = False) -> None:
        self._console.print(Text(text, style), soft_wrap=in_one_line)

    def _show(self, shown: RenderableType, indent: int = 2) -> None:
        self._console.print(Padding(shown, (0, 0, 0, indent), expand=False))


def _with_short_id(entry: LedgerEntry) -> LedgerEntry:
    return msgspec.structs.replace(entry, server_correlation_id=short(entry.server_correlation_id))


def _command_name() -> str:
    """As it was called, so that a line can be copied."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "twophp" and shutil.which("twophp") is None else "twophp"


# How things look.


def short(id_: str) -> str:
    """Enough of a server's id to distinguish it from the others."""
    return f"{safe(id_)[:SHORT_ID]}…"


def spoken(message: Message, times: int) -> tuple[Text, Text]:
    """A request and its answer, ids in colour."""
    step = "status" if message.method == "GET" else "Phase 2" if message.is_confirm else "Phase 1"
    asked = Text(f"→ {message.method} {safe(message.path)}".ljust(LINE_WIDTH))
    asked.append(safe(message.client_correlation_id), CLIENT_ID)
    if message.is_confirm:
        asked.append(" + ").append(short(message.server_correlation_id), SERVER_ID)
    return Text.assemble((step.ljust(STEP_WIDTH), "bold"), asked), Text(" " * STEP_WIDTH) + _answer(message, times)


def _answer(message: Message, times: int) -> Text:
    if message.status is None:
        return Text.assemble(("✗ does not get through".ljust(LINE_WIDTH), "red"), f"tried {counted(times, 'time')}")
    answer = Text(f"← {message.status} ")
    if message.phase:
        answer.append_text(phase_text(Phase(message.phase)))
    answer.append(" " * (LINE_WIDTH - len(answer)))
    if message.phase == Phase.WAITING_CONFIRM:
        answer.append(short(message.server_correlation_id), SERVER_ID)
        return answer.append(f"  to be confirmed within {int(message.ttl_ms) / 1_000:g} s")
    return answer.append(safe(message.body)).append(f"  {times} times" if times > 1 else "", "bold")


def worked(rows: Sequence[LedgerEntry], width: int) -> Table:
    """The draft's table, with headings that fit; a narrow terminal is spared the phases, which are all the same."""
    made = worked_table(rows)
    headers = _FOLDED_HEADERS if width >= WIDE else _SHORT_HEADERS
    for column in made.columns:
        column.style = _ID_STYLES.get(str(column.header), "")
        column.header = headers.get(str(column.header), column.header)
    if width < WIDE:
        made.columns.pop()
    return made


def outline(tree: CallTree) -> Tree:
    """A tree with one line for each call."""
    top = Tree("", hide_root=True)
    ahead: list[tuple[Branch, Tree]] = [(root, top) for root in tree.roots]
    while ahead:
        call, above = ahead.pop(0)
        here = above.add(_outlined(call))
        ahead += [(child, here) for child in call.children]
    return top


def _outlined(call: Branch) -> Text:
    pair = call.pair
    who = pair.server.source if pair.server is not None else "?"
    line = Text.assemble((safe(who), "bold"), "  ", (safe(pair.client_correlation_id), CLIENT_ID), "  ")
    if pair.client is not None and pair.server is not None and pair.client.phase == pair.server.phase:
        return line.append_text(state_text(pair.server)).append(" on both sides")
    for side, row in (("caller", pair.client), ("callee", pair.server)):
        line.append(f" {side} ").append_text(state_text(row) if row is not None else Text("no row", "dim"))
    return line


def runs_table(runs: Mapping[str, Counter[str]]) -> Table:
    """How often every handler ran for each of the three orders."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    made.add_column("")
    for title in (f"succeeded,\nconfirmed {1 + REPEATS} times", "\nfailed", "never\nconfirmed"):
        made.add_column(title, justify="right")
    for number, _source, target in CHAIN:
        counts = [runs[target][id_within(root, number)] for root in (GOOD, FAILING, STALLED)]
        made.add_row(Text(target, "bold"), *map(str, counts))
    return made


def live_line(entry: LedgerEntry) -> Text:
    """A row as it is now."""
    times = (entry.phase_1_timestamp, entry.phase_2_timestamp, entry.settled_at)
    latest = format_instant(max(at for at in times if at is not None)).partition("T")[2]
    whom = safe(entry.source) + (f" → {safe(entry.target)}" if entry.target is not None else "")
    return Text.assemble(
        (latest.ljust(14), "dim"),
        f"{entry.actor}  {whom:<23}",
        (safe(entry.client_correlation_id).ljust(19), CLIENT_ID),
        state_text(entry),
    )
