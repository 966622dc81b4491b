"""How rows and calls look: in words and colours for people, with the draft's sixteen names for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from twophp.cli.output import safe, table
from twophp.core.calltree import Branch, CallTree
from twophp.core.entry import FIELDS, LedgerEntry
from twophp.core.intent import SETTLED, Phase
from twophp.core.pairing import Pair, Verdict
from twophp.core.policy import DAY_MS, HOUR_MS, SECOND_MS
from twophp.wire.instant import format_instant, spelled

MINUTE_MS: Final = 60 * SECOND_MS

LedgerOf: TypeAlias = Callable[[LedgerEntry], str]

_PHASE_STYLES: Final = {
    Phase.WAITING_CONFIRM: "yellow",
    Phase.PROCESSING: "blue",
    Phase.COMMITTED: "green",
    Phase.FAILED: "red",
    Phase.TTL_EXPIRED: "magenta",
    Phase.ABANDONED: "dim",
}
_PHASE_WORDS: Final = {
    Phase.WAITING_CONFIRM: "registered, not confirmed",
    Phase.PROCESSING: "confirmed, running",
    Phase.COMMITTED: "done",
    Phase.FAILED: "failed",
    Phase.TTL_EXPIRED: "not confirmed in time",
    Phase.ABANDONED: "never confirmed, payload destroyed",
}
_INDETERMINATE_STYLE: Final = "bold red"
_INDETERMINATE_WORDS: Final = "indeterminate: nobody knows whether it happened"
_VERDICT_STYLES: Final = {
    Verdict.PAIRED: "green",
    Verdict.CLIENT_ONLY: "yellow",
    Verdict.SERVER_ONLY: "yellow",
    Verdict.SERVER_ONLY_BY_DESIGN: "cyan",
    Verdict.CONFLICT: "bold red",
}
WORKED_COLUMNS: Final = (
    "row",
    "client_correlation_id",
    "server_correlation_id",
    "actor",
    "source",
    "target",
    "parent_reference_id",
    "phase",
)


# For people.


def lasted(duration_ms: int) -> str:
    """``3 ms``, ``1.2 s``, ``4 min``, ``5 h``, ``6 d``."""
    if duration_ms < SECOND_MS:
        return f"{duration_ms} ms"
    if duration_ms < MINUTE_MS:
        return f"{duration_ms / SECOND_MS:.1f} s"
    for unit_ms, name, below_ms in ((MINUTE_MS, "min", HOUR_MS), (HOUR_MS, "h", 2 * DAY_MS)):
        if duration_ms < below_ms:
            return f"{duration_ms // unit_ms} {name}"
    return f"{duration_ms // DAY_MS} d"


def phase_text(phase: Phase) -> Text:
    """The draft's word, coloured."""
    return Text(phase.value, _PHASE_STYLES.get(phase, ""))


def state_text(entry: LedgerEntry) -> Text:
    """The phase of a row, and whether it is indeterminate."""
    if entry.indeterminate:
        return Text(f"{entry.phase.value} (indeterminate)", _INDETERMINATE_STYLE)
    return phase_text(entry.phase)


def verdict_text(pair: Pair) -> Text:
    """The verdict, coloured; an alarm stands out."""
    return Text(pair.verdict.value, "bold red" if pair.is_alarm else _VERDICT_STYLES[pair.verdict])


def worked_table(entries: Iterable[LedgerEntry]) -> Table:
    """The draft's table of a tree (§10.3): its columns, its names for the rows, its nulls."""
    made = table(*WORKED_COLUMNS)
    for number, entry in enumerate(entries, 1):
        cells = [_cell(entry, name) for name in WORKED_COLUMNS[1:-1]]
        made.add_row(f"E{number:02}", *cells, state_text(entry))
    return made


def call_tree_text(tree: CallTree) -> list[Tree]:
    """One tree for each root: of every call what became of it, and both its sides."""
    return [_branch(root) for root in tree.roots]


def _branch(root: Branch) -> Tree:
    """Without recursion, so that no depth is too much."""
    top = Tree(_label(root.pair))
    ahead = [(root, top)]
    while ahead:
        call, branch = ahead.pop()
        ahead += [(child, branch.add(_label(child.pair))) for child in call.children]
    return top


def _label(pair: Pair) -> Text:
    known = pair.server or pair.client
    assert known is not None, "a pair has a row"
    words = f"{_who_called(pair)} -> {safe(known.service_endpoint)}  "
    became = (_PHASE_WORDS[known.phase], _PHASE_STYLES[known.phase])
    if pair.indeterminate:
        became = (_INDETERMINATE_WORDS, _INDETERMINATE_STYLE)
    label = Text.assemble((words, "bold"), became, "  ")
    label.append_text(verdict_text(pair))
    if pair.verdict is not Verdict.PAIRED:
        label.append(f" ({pair.words})")
    for actor, entry, id_ in (
        ("client", pair.client, pair.client_correlation_id),
        ("server", pair.server, pair.server_correlation_id),
    ):
        label.append(f"\n{actor}  ")
        label.append_text(Text("no row", "dim") if entry is None else state_text(entry))
        label.append(f"  {safe(id_)}")
        label.append("" if entry is None else _told_by(entry))
    return label


def _who_called(pair: Pair) -> str:
    return safe(pair.client.source) if pair.client is not None else "?"


def _told_by(entry: LedgerEntry) -> str:
    times = latencies(entry).items()
    spans = (f"{_SPANS[name]} {lasted(duration_ms)}" for name, duration_ms in times)
    return f"  by {safe(entry.source)}" + "".join(f", {span}" for span in spans)


_SPANS: Final = {
    "answered_after_ms": "Phase 2 answered after",  # So it is no less than what the server says it ran for.
    "confirmed_after_ms": "confirmed after",
    "ran_for_ms": "ran for",
}


def latencies(entry: LedgerEntry) -> dict[str, int]:
    """The durations in a row, each by the clock of its writer (A-56).

    A server's: from Phase 1 to Phase 2, then to the outcome. A client's: from the answer to Phase 1 to that to Phase 2.
    """
    begin, found = entry.phase_1_timestamp, dict[str, int]()
    if entry.phase_2_timestamp is not None:
        found["answered_after_ms" if entry.actor == "client" else "confirmed_after_ms"] = (
            entry.phase_2_timestamp - begin
        )
        begin = entry.phase_2_timestamp
    if entry.actor == "server" and entry.phase in SETTLED and entry.settled_at is not None:
        found["ran_for_ms"] = entry.settled_at - begin
    return found


def both_sides(pair: Pair) -> Table:
    """The sixteen fields of every row of a call, side by side."""
    made = table("", *(entry.actor for entry in pair.rows))
    for name in FIELDS:
        made.add_row(name, *(state_text(e) if name == "phase" else Text(_cell(e, name)) for e in pair.rows))
    return made


def row_line(entry: LedgerEntry, ledger: str = "") -> Text:
    """A row on one line, as ``tail`` prints it."""
    whom = (
        f"{safe(entry.source)} -> {safe(entry.service_endpoint)}" if entry.actor == "client" else entry.service_endpoint
    )
    latest = max(at for at in (entry.phase_1_timestamp, entry.phase_2_timestamp) if at is not None)
    phase = state_text(entry)
    return Text.assemble(
        f"{format_instant(latest)}  {entry.actor}  ",
        phase,
        " " * (max(len(Phase.WAITING_CONFIRM) - len(phase), 0) + 2),
        f"{safe(whom)}  {safe(entry.client_correlation_id)} / {safe(entry.server_correlation_id)}",
        (f"  {safe(ledger)}" if ledger else "", "dim"),
    )


def _cell(entry: LedgerEntry, name: str) -> str:
    value = spelled(entry, (name,))[name]
    return "null" if value is None else safe(str(value))


# For programs.


def row_document(entry: LedgerEntry, ledger: str) -> dict[str, Any]:
    """The draft's sixteen fields in its order with its ISO 8601 times, then ours, then where the row was found."""
    return spelled(entry) | {"ledger": ledger}


def rows_document(entries: Sequence[LedgerEntry], ledger_of: LedgerOf) -> list[dict[str, Any]]:
    """Several of them."""
    return [row_document(entry, ledger_of(entry)) for entry in entries]


def pair_document(pair: Pair, ledger_of: LedgerOf) -> dict[str, Any]:
    """A call: its verdict, its rows, and their durations."""

    def side(entry: LedgerEntry | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        return row_document(entry, ledger_of(entry)) | latencies(entry)

    return {
        "client_correlation_id": pair.client_correlation_id,
        "server_correlation_id": pair.server_correlation_id,
        "verdict": pair.verdict,
        "reason": pair.reason,
        "alarm": pair.is_alarm,
        "indeterminate": pair.indeterminate,
        "client": side(pair.client),
        "server": side(pair.server),
        "rivals": [side(entry) for entry in pair.rivals],
    }


def tree_document(tree: CallTree, ledger_of: LedgerOf) -> list[dict[str, Any]]:
    """The calls of a tree, each with its children. Depth is bounded, so nesting is harmless."""

    def document(call: Branch) -> dict[str, Any]:
        below = [document(child) for child in call.children]
        return pair_document(call.pair, ledger_of) | {"depth": call.depth, "children": below}

    return [document(root) for root in tree.roots]
