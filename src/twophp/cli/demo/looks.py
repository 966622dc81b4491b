"""How the things of the story look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from twophp.cli.demo.caller import Message
from twophp.cli.demo.chain import CHAIN, id_within
from twophp.cli.demo.scenes import FAILING, GOOD, REPEATS, STALLED
from twophp.cli.output import counted, safe
from twophp.cli.rows import phase_text, state_text, worked_table
from twophp.core.calltree import Branch, CallTree
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.wire.instant import format_instant

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
