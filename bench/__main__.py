"""``make bench``: measure, print a table, write ``bench/latest.json``. Ratios count; this machine's seconds do not."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.table import Table

from bench import central, client, handshakes, obligations, server, sweep

SECTIONS = ("store", "sweep", "obligations", "server", "client", "central")
LATEST = Path(__file__).with_name("latest.json")
CALLERS = {1: 400, 16: 4_000, 64: 12_000, 256: 12_000}


def main() -> None:
    """Run everything, or a quick look at it."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians over (default: 5)")
    parser.add_argument("--only", choices=SECTIONS, help="one section alone; the others' figures stay as they were")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written: does it still run?")
    options = parser.parse_args()
    rounds, scale = (1, 10) if options.quick else (options.rounds, 1)
    sections = (options.only,) if options.only else SECTIONS
    console = Console()
    found: dict[str, Any] = {"machine": _machine(), "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="twophp-bench-", dir=".") as here:
        folder = Path(here).resolve()
        if "store" in sections:
            found["store"] = [_store(console, folder, callers, rounds, scale) for callers in CALLERS]
        if "sweep" in sections:
            console.print(f"sweep: {sweep.DUE:,} due among {sweep.FEW:,} and {sweep.MANY:,} stored", style="dim")
            found["sweep"] = sweep.measure(folder, rounds)
        if "obligations" in sections:
            console.print(f"obligations: memory, {obligations.THREADS} threads, scan; {rounds} rounds", style="dim")
            found["obligations"] = obligations.measure(folder, rounds, scale)
        if "server" in sections:
            console.print(f"server: {server.CONNECTIONS} connections and one, {rounds} rounds", style="dim")
            found["server"] = server.measure(folder, rounds, seconds=1 if options.quick else 3)
        if "client" in sections:
            console.print(f"client: {client.CALLERS} callers, sync and async, {rounds} rounds", style="dim")
            found["client"] = client.measure(folder, rounds, scale)
        if "central" in sections:
            console.print(f"central: ingest, and trees among {central.MANY // scale:,} rows", style="dim")
            found["central"] = central.measure(folder, rounds, scale)
    _show(console, found)
    if not options.quick:
        before = json.loads(LATEST.read_text(encoding="utf-8")) if options.only and LATEST.exists() else {}
        LATEST.write_text(json.dumps({**before, **found}, indent=2) + "\n", encoding="utf-8")
        console.print(f"written: bench/{LATEST.name}", style="dim")


def _store(console: Console, folder: Path, callers: int, rounds: int, scale: int) -> dict[str, float]:
    console.print(f"store: {callers} callers, {rounds} rounds", style="dim")
    amount = max(callers, CALLERS[callers] // scale)
    return handshakes.summary(callers, handshakes.measure(folder, callers, amount, rounds))


def _machine() -> dict[str, str]:
    return {"python": platform.python_version(), "sqlite": apsw.sqlite_lib_version(), "machine": platform.machine()}


COLUMNS = {
    "callers": ("callers", "{:.0f}"),
    "per s": ("handshakes_per_second", "{:,.0f}"),
    "p99 ms": ("p99_ms", "{:.1f}"),
    "changes a commit": ("changes_per_commit", "{:.0f}"),
    "x one each": ("ratio_to_one_transaction_each", "{:.1f}"),
    "one each per s": ("one_transaction_each_per_second", "{:,.0f}"),
    "x in thread": ("ratio_to_one_each_in_a_thread", "{:.1f}"),
    "of ceiling": ("ratio_to_ceiling", "{:.2f}"),
    "ceiling per s": ("ceiling_per_second", "{:,.0f}"),
}


def _show(console: Console, found: dict[str, Any]) -> None:
    if "store" in found:
        table = Table(title="register + confirm + settle, durable (SQLite, synchronous=FULL, sealed)")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for row in found["store"]:
            table.add_row(*(form.format(row[name]) for name, form in COLUMNS.values()))
        console.print(table)
    if "sweep" in found:
        swept = found["sweep"]
        console.print(
            f"sweep of {swept['due']:,} due: {swept['seconds_among_1000'] * 1e3:.0f} ms among 1,000 stored, "
            f"{swept['seconds_among_1000000'] * 1e3:.0f} ms among 1,000,000: ratio {swept['ratio']:.2f}; "
            f"peak memory grew by {swept['peak_memory_growth_mib']:.0f} MiB"
        )
    if "obligations" in found:
        _show_obligations(console, found["obligations"])
    if "server" in found:
        _show_server(console, found["server"])
    if "client" in found:
        _show_client(console, found["client"])
    if "central" in found:
        _show_central(console, found["central"])


def _show_obligations(console: Console, found: dict[str, Any]) -> None:
    memory, durable, scan = found["memory"], found["sqlite"], found["scan"]
    console.print(
        f"reserve + commit in memory: {memory['tracker_us']:.1f} µs, {memory['ratio_to_bare']:.1f} x two bare dict "
        f"updates and an event, {memory['ratio']:.1f} x the same facts kept in dicts"
    )
    console.print(
        f"reserve + commit on SQLite, {durable['threads']} threads: {durable['obligations_per_second']:,.0f} per s, "
        f"{durable['changes_per_commit']:.0f} changes a commit; the disk syncs {durable['fdatasync_per_second']:,.0f} "
        f"times per s: {durable['obligations_per_fdatasync']:.1f} obligations a sync"
    )
    console.print(
        f"leak scan of {scan['overdue']:,} overdue: {scan['seconds_among_1000'] * 1e3:.0f} ms among 1,000 stored, "
        f"{scan['seconds_among_1000000'] * 1e3:.0f} ms among 1,000,000: ratio {scan['ratio']:.2f}"
    )


def _show_server(console: Console, frameworks: dict[str, Any]) -> None:
    table = Table(title="through the middleware, as a share of the bare application (64 connections)")
    modes = {"handshake": "handshake", "auto": "auto-confirm", "callback": "with callback", "replay": "replay"}
    for column in ("", "bare per s", *modes.values(), "untouched", "one handshake, alone"):
        table.add_column(column, justify="right")
    for name, figures in frameworks.items():
        many, one = figures["connections_64"], figures["connections_1"]
        ratios = [f"{many[f'{mode}_ratio']:.2f}" for mode in (*modes, "untouched")]
        alone = f"{one['handshake_ms']:.1f} ms = {one['ratio']:.2f} x (2 trips + 3 fsyncs)"
        table.add_row(name, f"{many['bare_per_second']:,.0f}", *ratios, alone)
    console.print(table)


def _show_client(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="through the client's transport, as a share of two plain POSTs and one fsync")
    for column in ("", "callers", "plain per s", "ours per s", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = f"{row['plain_per_second']:,.0f}", f"{row['calls_per_second']:,.0f}", f"{row['ratio']:.2f}"
        table.add_row(row["colour"], str(row["callers"]), *figures)
    console.print(table)


def _show_central(console: Console, databases: dict[str, Any]) -> None:
    table = Table(title="rows into the central ledger, as a share of the raw limit")
    for column in ("", "batch", "at once", "raw per s", "ours per s", "ratio", "sent again, x new"):
        table.add_column(column, justify="right")
    for name, figures in databases.items():
        for row in figures["ingest"].values():
            rates = f"{row['raw_per_second']:,.0f}", f"{row['rows_per_second']:,.0f}", f"{row['ratio']:.2f}"
            size = f"{row['batch']:,}", str(row["at_once"])
            table.add_row(name, *size, *rates, f"{row['sent_again_cost']:.2f}")
    console.print(table)
    for name, figures in databases.items():
        few, many = figures["tree"]["among_few"], figures["tree"]["among_many"]
        console.print(
            f"{name}: a tree of 14 rows, p99 {few['p99_ms']:.2f} ms among {few['stored']:,}, "
            f"{many['p99_ms']:.2f} ms among {many['stored']:,}: ratio {figures['tree']['p99_ratio']:.2f}; "
            f"ingest there {many['ratio_at_the_end']:.2f} of raw"
        )


if __name__ == "__main__":
    main()
