"""``twophp ledger stalled | initiated | tail``: rows, as the draft's questions find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec
from rich.text import Text

from twophp.cli.ledger_calls import CUT, JSON, LEDGERS
from twophp.cli.output import FOUND, counted, examples, note, out, print_json, safe, show, table
from twophp.cli.rows import LedgerOf, lasted, row_document, row_line, rows_document, state_text
from twophp.cli.sources import Watch, joined
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.records import Instant
from twophp.ports import MOST_ROWS, Initiated, Stalled
from twophp.stores.clock import pause, system_clock
from twophp.wire.instant import format_instant


@click.command(
    epilog=examples("ledger stalled orders.db", "ledger stalled *.db --json"),
    short_help="List what was not confirmed, or not in time.",
)
@LEDGERS
@JSON
@click.pass_context
def stalled(ctx: click.Context, ledgers: tuple[str, ...], *, as_json: bool) -> None:
    """List what is not getting on: registered and not confirmed, or not confirmed in time.

    These are the draft's two phases, WAITING_CONFIRM and TTL_EXPIRED, oldest first. What is PROCESSING though its
    process has not been heard of since its lease ended is listed apart.

    Exits with 1 if there is anything to list, so that a script can say: twophp ledger stalled orders.db || alert.
    """
    now = system_clock()
    with joined(ledgers) as sources:
        found = sources.ask(Stalled(lease_ended_by=now))
        silent = [row for row in found.entries if row.phase is Phase.PROCESSING]
        others = (row for row in found.entries if row.phase is not Phase.PROCESSING)
        waiting = sorted(others, key=lambda row: row.phase_1_timestamp)
        if as_json:
            document = {"stalled": waiting, "processing_past_lease": silent}
            print_json(
                {name: [_aged(row, sources.ledger_of, now) for row in rows] for name, rows in document.items()}
                | {"cut": found.cut}
            )
        else:
            _print_stalled(waiting, silent, now)
    if found.cut:
        note(CUT)
    ctx.exit(FOUND if found.entries else 0)


def _aged(row: LedgerEntry, ledger_of: LedgerOf, now: Instant) -> dict[str, Any]:
    return row_document(row, ledger_of(row)) | {"age_ms": now - row.phase_1_timestamp, "advice": _advice(row, now)}


def _print_stalled(waiting: Sequence[LedgerEntry], silent: Sequence[LedgerEntry], now: Instant) -> None:
    for title, rows in (("", waiting), ("Running, and not heard of since the lease ended", silent)):
        if not rows:
            continue
        if title:
            out().print(f"\n{title}")
        listed = table("age", "phase", "side", "source", "endpoint", "client id / server id", "what it means")
        for row in rows:
            listed.add_row(
                lasted(max(now - row.phase_1_timestamp, 0)),
                state_text(row),
                row.actor,
                safe(row.source),
                safe(row.service_endpoint),
                f"{safe(row.client_correlation_id)} / {safe(row.server_correlation_id)}",
                _advice(row, now),
            )
        show(listed)
    text = f"{counted(len(waiting), 'row')} stalled, {len(silent):,} running past the lease"
    out().print(Text("nothing is stalled", "green") if not (waiting or silent) else f"\n{text}")


def _advice(row: LedgerEntry, now: Instant) -> str:
    left_ms = row.phase_1_timestamp + row.ttl_ms - now
    if row.phase is Phase.PROCESSING:
        return "its process is gone; the service recovers it at its next sweep, if it runs"
    if row.phase is Phase.TTL_EXPIRED:
        kept = "its payload goes when the grace ends" if row.actor == "server" else "it never ran"
        return f"it was not confirmed in time; {kept}"
    if left_ms > 0 and row.actor == "client":  # Its row says what the client knows: the server may know more.
        return f"the client has heard of no outcome; unless it has confirmed already, it may for {lasted(left_ms)}"
    if left_ms > 0:
        return f"may still be confirmed for {lasted(left_ms)}"
    who = "the service sweeps it up" if row.actor == "server" else "the client finds out what became of it"
    return f"its time was up {lasted(-left_ms)} ago; {who}, if it runs"


@click.command(
    epilog=examples("ledger initiated checkout checkout.db", "ledger initiated orders orders.db --json"),
    short_help="List every call that a service made.",
)
@click.argument("source")
@LEDGERS
@JSON
def initiated(source: str, ledgers: tuple[str, ...], *, as_json: bool) -> None:
    """List every call that the service SOURCE made, in the order it made them."""
    with joined(ledgers) as sources:
        found = sources.ask(Initiated(source))
        if as_json:
            print_json({"rows": rows_document(found.entries, sources.ledger_of), "cut": found.cut})
        else:
            _print_initiated(found.entries)
            out().print(f"{safe(source)} made {counted(len(found.entries), 'call')}", markup=False)
    if found.cut:
        note(CUT)


def _print_initiated(rows: Sequence[LedgerEntry]) -> None:
    if not rows:
        return
    listed = table("at", "phase", "target", "endpoint", "client id", "server id", "made for")
    for row in rows:
        is_root = row.parent_reference_id == row.client_correlation_id
        listed.add_row(
            format_instant(row.phase_1_timestamp),
            state_text(row),
            safe(row.target or ""),
            safe(row.service_endpoint),
            safe(row.client_correlation_id),
            safe(row.server_correlation_id),
            "itself" if is_root else safe(row.parent_reference_id),
        )
    show(listed)


@click.command(epilog=examples("ledger tail orders.db", "ledger tail *.db --follow", "ledger tail orders.db -f --json"))
@LEDGERS
@click.option(
    "--limit",
    "-n",
    default=20,
    show_default=True,
    type=click.IntRange(0, MOST_ROWS),
    help="How many rows to begin with.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on and print each row whenever it changes, until Ctrl-C.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.05, 60), help="Seconds between two looks."
)
@JSON
def tail(ledgers: tuple[str, ...], limit: int, interval: float, *, follow: bool, as_json: bool) -> None:
    """Print the newest rows, the newest last.

    With --follow, --json prints one row on each line. A row that changes twice between two looks is printed once, as
    it then is.
    """
    watch = Watch(ledgers) if follow else None  # Before the first rows are read: a change in between comes twice.
    with joined(ledgers) as sources:
        newest = sources.newest(limit)
        oldest_first = newest.entries[::-1]
        if as_json and not follow:
            print_json({"rows": rows_document(oldest_first, sources.ledger_of), "cut": newest.cut})
        else:
            for row in oldest_first:
                _print_row(row, sources.ledger_of(row), as_json=as_json)
    if watch is not None:
        _follow(watch, interval, as_json=as_json)
    elif newest.cut:
        note(f"only the newest {counted(limit, 'row')}; see --limit")


def _follow(watch: Watch, interval_s: float, *, as_json: bool) -> None:
    try:
        while True:
            changed = watch.look()
            for row, ledger in changed:
                _print_row(row, ledger, as_json=as_json)
            if len(changed) >= MOST_ROWS:
                note(CUT)
            pause(interval_s)
    except KeyboardInterrupt:  # How it is meant to end.
        return


def _print_row(row: LedgerEntry, ledger: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(row_document(row, ledger)))
    else:
        out().print(row_line(row, ledger))
