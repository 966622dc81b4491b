"""``twophp ledger tree | show | pairs``: calls, both sides of each, joined over any number of ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from twophp.cli.evidence import print_evidence
from twophp.cli.output import FOUND, INDETERMINATE, counted, examples, note, out, print_json, safe, show, table
from twophp.cli.rows import (
    both_sides,
    call_tree_text,
    lasted,
    pair_document,
    rows_document,
    state_text,
    tree_document,
    verdict_text,
    worked_table,
)
from twophp.cli.sources import Ledgers, joined
from twophp.core.calltree import MAX_DEPTH, CallTree
from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConfigError
from twophp.core.pairing import Pair, Verdict
from twophp.core.records import Instant
from twophp.ports import MOST_ROWS, Find
from twophp.stores.clock import system_clock

LEDGERS: Final = click.argument("ledgers", nargs=-1, required=True, metavar="LEDGER...")
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON: rows have the draft's sixteen names.")
CUT: Final = f"there may be more: no question is answered with more than {MOST_ROWS:,} rows"


@click.command(
    short_help="Draw the call tree that an id belongs to.",
    epilog=examples(
        "ledger tree 5f0c9a1e-... checkout.db orders.db stock.db",
        "ledger tree 5f0c9a1e-... *.db --rows",
        "ledger tree 5f0c9a1e-... sqlite:///orders.db --json",
    ),
)
@click.argument("correlation_id")
@LEDGERS
@click.option(
    "--rows", "as_rows", is_flag=True, help="The rows as a table, in the order of the draft's (E01, E02, ...)."
)
@JSON
@click.pass_context
def tree(ctx: click.Context, correlation_id: str, ledgers: tuple[str, ...], *, as_rows: bool, as_json: bool) -> None:
    """Draw the call tree that CORRELATION_ID belongs to: up to its root, then everything below.

    Any id of any call will do, the client's or the server's. Each participant keeps its own ledger, so name them all:
    they are joined. A side whose row is not there is shown as such, with the reason.

    Exits with 1 if a call is in CONFLICT, or a row is missing that must be there; else with 3 if a call is
    indeterminate: it FAILED, and nobody knows whether its effects happened.
    """
    with joined(ledgers) as sources:
        found, cut = sources.tree(correlation_id)
        if not found.roots:
            raise _unknown(correlation_id)
        if as_json:
            calls = {"calls": tree_document(found, sources.ledger_of)}
            rows = {"rows": rows_document(found.rows(), sources.ledger_of)}
            above = {"above": found.above, "too_deep": found.too_deep, "cut": cut}
            print_json((rows if as_rows else calls) | above)
        elif as_rows:
            show(worked_table(found.rows()))
        else:
            _print_tree(found, call_tree_text(found))
    _say_what_is_left_out(found, cut=cut)
    ctx.exit(_code(call.pair for call in found.calls()))


def _print_tree(found: CallTree, trees: Sequence[Any]) -> None:
    for drawn in trees:
        show(drawn)
    pairs = [call.pair for call in found.calls()]
    out().print(
        f"\n{counted(len(pairs), 'call')}, {counted(len(found.rows()), 'row')}: {_summary(pairs)}", markup=False
    )


def _say_what_is_left_out(found: CallTree, *, cut: bool) -> None:
    if found.above is not None:
        note(f"they were made for the call {safe(found.above)}, of which no row is in these ledgers")
    elif any(root.pair.client is None for root in found.roots):
        note("the caller's row of the topmost call is in none of these ledgers; there may be calls above it")
    if found.too_deep:
        note(f"calls below the {MAX_DEPTH}th level are left out")
    if cut:
        note(CUT)


@click.command(
    "show",
    short_help="Show all about one call: both rows, its history.",
    epilog=examples("ledger show 5f0c9a1e-... orders.db", "ledger show 5f0c9a1e-... checkout.db orders.db --json"),
)
@click.argument("correlation_id")
@LEDGERS
@JSON
@click.pass_context
def show_(ctx: click.Context, correlation_id: str, ledgers: tuple[str, ...], *, as_json: bool) -> None:
    """Show all about one call: both rows side by side, its history, what it owes to others, what it reserved.

    CORRELATION_ID is the client's id or the server's. A central ledger has rows alone; it asks the services for the
    rest, if they can be asked and you may pull. Exits with 1 if the call is in CONFLICT, or a row is missing that
    must be there; else with 3 if it is indeterminate: it FAILED, and nobody knows whether its effects happened.
    """
    with joined(ledgers) as sources:
        pairs = sources.pairs_of(sources.ask(Find(correlation_id)).entries)
        if not pairs:
            raise _unknown(correlation_id)
        if as_json:
            print_json({"calls": [_call_document(pair, sources) for pair in pairs]})
        else:
            for pair in pairs:
                _print_call(pair, sources)
    ctx.exit(_code(pairs))


def _call_document(pair: Pair, sources: Ledgers) -> dict[str, Any]:
    evidence = [{"ledger": name} | told for name, told in sources.told_about(pair)]
    return pair_document(pair, sources.ledger_of) | {"evidence": evidence}


def _print_call(pair: Pair, sources: Ledgers) -> None:
    console = out()
    console.print(Text.assemble(verdict_text(pair), f": {pair.words}\n"))
    if pair.indeterminate:
        console.print(
            "Indeterminate: it failed, and nobody knows whether its effects happened. Look before you retry.\n"
        )
    show(both_sides(pair))
    for name, told in sources.told_about(pair):
        print_evidence(name, told)
    console.print()


@click.command(
    short_help="Say of every call whether both sides agree.",
    epilog=examples(
        "ledger pairs checkout.db orders.db", "ledger pairs *.db --verdict CONFLICT --verdict CLIENT_ONLY --json"
    ),
)
@LEDGERS
@click.option(
    "--verdict",
    "wanted",
    multiple=True,
    type=click.Choice([*Verdict]),
    help="Only calls with this verdict; repeatable.",
)
@click.option("--indeterminate", "only_indeterminate", is_flag=True, help="Only calls that are indeterminate.")
@click.option(
    "--limit",
    default=1_000,
    show_default=True,
    type=click.IntRange(1, MOST_ROWS),
    help="How many of the newest rows to look at.",
)
@JSON
@click.pass_context
def pairs(
    ctx: click.Context,
    ledgers: tuple[str, ...],
    wanted: tuple[Verdict, ...],
    limit: int,
    *,
    only_indeterminate: bool,
    as_json: bool,
) -> None:
    """Say of every call whether both sides registered it, and whether they agree.

    \b
    PAIRED                 both rows are there and agree
    SERVER_ONLY            no client's row: its answer was lost, or its ledger is not named
    SERVER_ONLY_BY_DESIGN  a transparent call: its client keeps no ledger
    CLIENT_ONLY            no server's row: its ledger is not named, or the row is gone
    CONFLICT               the rows contradict each other

    A call may be indeterminate beside its verdict: it FAILED, and nobody knows whether its effects happened. Look at
    the business side before you make it anew.

    Exits with 1 if a call is in CONFLICT, or a row is missing that must be there; else with 3 if a call is
    indeterminate.
    """  # noqa: D301 - click's mark for lines that stay as they are
    with joined(ledgers) as sources:
        rows = sources.newest(limit)
        found = sources.pairs_of(rows.entries)
        chosen = [pair for pair in found if not wanted or pair.verdict in wanted]
        chosen = [pair for pair in chosen if pair.indeterminate or not only_indeterminate]
        if as_json:
            documents = [pair_document(pair, sources.ledger_of) for pair in chosen]
            verdicts = Counter(pair.verdict for pair in found)
            indeterminate = sum(pair.indeterminate for pair in found)
            print_json({"calls": documents, "verdicts": verdicts, "indeterminate": indeterminate, "cut": rows.cut})
        else:
            _print_pairs(chosen, system_clock())
            out().print(f"\n{counted(len(found), 'call')}: {_summary(found)}", markup=False)
    if rows.cut:
        note(f"only the newest {counted(limit, 'row')} and their other sides; see --limit")
    ctx.exit(_code(found))


def _print_pairs(chosen: Sequence[Pair], now: Instant) -> None:
    if not chosen:
        return
    listed = table("verdict", "age", "endpoint", "client", "phase", "server", "phase", "client id / server id", "why")
    for pair in chosen:
        endpoint = pair.rows[0].service_endpoint
        listed.add_row(
            verdict_text(pair),
            lasted(max(now - pair.started_at, 0)),
            safe(endpoint),
            *_side_cells(pair.client),
            *_side_cells(pair.server),
            " / ".join(map(safe, pair.key)),
            _why(pair),
        )
    show(listed, narrow=Group(*_blocks(chosen, now)))


def _blocks(chosen: Sequence[Pair], now: Instant) -> Iterator[RenderableType]:
    """The same without lines that a narrow terminal would fold: each call is a line, and one for each of its sides."""
    sides = [(_side_cells(pair.client), _side_cells(pair.server)) for pair in chosen]
    widths = [max(len(side[column]) for both in sides for side in both) for column in (0, 1)]
    for pair, both in zip(chosen, sides, strict=True):
        age = lasted(max(now - pair.started_at, 0))
        yield Text.assemble(verdict_text(pair), f"  {age}  {safe(pair.rows[0].service_endpoint)}")
        lines = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for width in (len("  client"), *widths):
            lines.add_column(min_width=width, overflow="fold")
        lines.add_column(no_wrap=True, overflow="fold")  # An id is there to be copied.
        for role, side, id_ in zip(("  client", "  server"), both, pair.key, strict=True):
            lines.add_row(role, *side, safe(id_))
        yield lines
        if why := _why(pair):
            yield Padding(why, (0, 0, 0, 2))


def _why(pair: Pair) -> str:
    told = [] if pair.verdict is Verdict.PAIRED else [pair.words]
    return "; ".join([*told, "indeterminate: nobody knows whether it happened"] if pair.indeterminate else told)


def _side_cells(entry: LedgerEntry | None) -> tuple[Text, Text]:
    if entry is None:
        return Text("no row", "dim"), Text("")
    return Text(safe(entry.source)), state_text(entry)


def _summary(found: Iterable[Pair]) -> str:
    found = list(found)
    verdicts = Counter(pair.verdict for pair in found)
    told = [f"{verdicts[verdict]:,} {verdict}" for verdict in Verdict if verdicts[verdict]]
    if indeterminate := sum(pair.indeterminate for pair in found):
        told.append(f"{indeterminate:,} of them indeterminate")
    return ", ".join(told) or "none"


def _code(found: Iterable[Pair]) -> int:
    found = list(found)
    if any(pair.is_alarm for pair in found):
        return FOUND
    return INDETERMINATE if any(pair.indeterminate for pair in found) else 0


def _unknown(correlation_id: str) -> ConfigError:
    message = f"no row with the id {safe(correlation_id)} is in these ledgers"
    return ConfigError(message, code="no_such_call")
