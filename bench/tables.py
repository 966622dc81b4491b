"""What ``make bench`` prints: the bars first, then each section's own figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.bars import HEAD, rows

COLUMNS = {
    "callers": ("callers", "{:.0f}"),
    "per s": ("handshakes_per_second", "{:,.0f}"),
    "p99 ms": ("p99_ms", "{:.1f}"),
    "changes a commit": ("changes_per_commit", "{:.0f}"),
    "x one each": ("ratio_to_one_transaction_each", "{:.1f}"),
    "one each per s": ("one_transaction_each_per_second", "{:,.0f}"),
    "x one each by so many": ("ratio_to_one_each_by_so_many", "{:.1f}"),
    "of ceiling": ("ratio_to_ceiling", "{:.2f}"),
    "ceiling per s": ("ceiling_per_second", "{:,.0f}"),
}


def show(console: Console, found: dict[str, Any]) -> None:
    """Everything that was measured."""
    if "store" in found:
        _show_store(console, found["store"])
    if "sweep" in found:
        _show_sweep(console, found["sweep"])
    if "obligations" in found:
        _show_obligations(console, found["obligations"])
    for framework, ways in found.get("server", {}).items():
        for way, figures in ways.items():
            _show_server(console, f"{framework}, {way}", figures)
    _show_files(console, found)
    later: dict[str, Callable[[Console, Any], None]] = {
        "client": _show_client,
        "central": _show_central,
        "own": _show_own,
        "peers": _show_peers,
    }
    for section, shown in later.items():
        if found.get(section):
            shown(console, found[section])
    if "trace" in found:
        walk = found["trace"]["handshake"]
        console.print(f"one handshake: {walk['calls']} calls in {walk['files']} files, {walk['opcodes']:,} opcodes")
    _show_bars(console, found)


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


def _show_server(console: Console, name: str, figures: dict[str, Any]) -> None:
    many, one, cost = figures["connections_64"], figures["connections_1"], figures["cost"]
    table = Table(title=f"{name}: 64 connections, as a share of the bare application")
    for column in ("", "per s", "÷ bare", "p99 at half of it", "errors"):
        table.add_column(column, justify="right")
    table.add_row("bare", f"{many['bare_per_second']:,.0f}", "", f"{many['bare_p99_ms']:.1f} ms", "")
    for mode in ("handshake", "auto", "callback", "replay", "untouched"):
        if f"{mode}_ratio" in many:
            p99 = f"{many[f'{mode}_p99_ms']:.1f} ms" if f"{mode}_p99_ms" in many else ""
            rate, ratio = f"{many[f'{mode}_per_second']:,.0f}", f"{many[f'{mode}_ratio']:.2f}"
            table.add_row(mode, rate, ratio, p99, f"{many[f'{mode}_errors']:.0f}")
    console.print(table)
    console.print(
        f"{name}: one connection {one['handshake_ms']:.2f} ms = {one['ratio']:.2f} x (2 trips of "
        f"{one['bare_round_trip_ms']:.2f} ms + 3 fsyncs of {one['fsync_ms']:.2f} ms)\n"
        f"{name}: CPU {cost['handshake_cpu_us']:.0f} µs a handshake, {cost['bare_cpu_us']:.0f} a bare request: ratio "
        f"{cost['cpu_ratio']:.2f}; {cost['log_bytes']:,.0f} bytes of log, {cost['written_bytes']:,.0f} in all\n"
        f"{name}: {cost['gc_pauses']} collections, p99.9 {cost['gc_p999_ms']:.1f} ms, max {cost['gc_max_ms']:.1f} ms"
    )


def _show_files(console: Console, found: dict[str, Any]) -> None:
    if "workers" in found:
        workers = found["workers"]
        rates = ", ".join(f"{workers[f'{number}_per_second']:,.0f} by {number}" for number in (1, 2, 4))
        console.print(
            f"workers on one file: {rates}; two ÷ one {workers['two_to_one']:.2f} (worst round "
            f"{workers['least_two_to_one']:.2f}), four ÷ two {workers['four_to_two']:.2f}"
        )
    if "stored" in found:
        stored = found["stored"]
        console.print(
            f"{stored['stored']:,} stored intents ({stored['file_mib']:,.0f} MiB): {stored['full_per_second']:,.0f} "
            f"handshakes per s, {stored['empty_per_second']:,.0f} on an empty file: ratio {stored['ratio']:.2f}"
        )
    if "redis" in found:
        redis = found["redis"]
        console.print(
            f"Redis, synced, {redis['callers']} callers: {redis['changes_per_second']:,.0f} changes per s, "
            f"{redis['one_each_per_second']:,.0f} with a script for each change: ratio {redis['ratio']:.1f}"
        )
    if "stall" in found:
        stall = found["stall"]
        console.print(
            f"a disk that takes {stall['sync_ms']} ms longer to sync: the loop stalls {stall['worst_ms']:.1f} ms "
            f"({stall['worst_on_a_quick_disk_ms']:.1f} on a quick one), {stall['long_stalls']:.0f} times > half a sync"
        )


def _show_bars(console: Console, found: dict[str, Any]) -> None:
    table = Table(title="the bars")
    for column in HEAD:
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in rows(found):
        colour = {"missed": "red", "not measured": "dim"}.get(row[-2], "green")
        table.add_row(*row[:-2], f"[{colour}]{row[-2]}[/]", row[-1])
    console.print(table)


def _show_peers(console: Console, peers: list[dict[str, Any]]) -> None:
    table = Table(title="others, and ours, as a share of bare FastAPI (64 connections, one request each)")
    for column in ("", "version", "kept in", "per s", "÷ bare", "errors"):
        table.add_column(column, justify="left" if column in {"", "kept in"} else "right")
    for peer in peers:
        if "why" in peer:
            table.add_row(peer["name"], peer["version"], f"not measured: {peer['why']}", "", "", "")
        else:
            rate, ratio = f"{peer['per_second']:,.0f}", f"{peer['ratio']:.3f}"
            table.add_row(peer["name"], peer["version"], peer["kept_in"], rate, ratio, f"{peer['errors']:.0f}")
    console.print(table)


def _show_client(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="through the client's transport, as a share of two plain POSTs and one fsync")
    for column in ("", "callers", "plain per s", "ours per s", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = f"{row['plain_per_second']:,.0f}", f"{row['calls_per_second']:,.0f}", f"{row['ratio']:.2f}"
        table.add_row(row["colour"], str(row["callers"]), *figures)
    console.print(table)


def _show_own(console: Console, found: dict[str, float]) -> None:
    table = Table(title="one row of SQLAlchemy's: without 2PHP, committed beside it, settled in one commit")
    for column in ("", "per s", "CPU us", "errors"):
        table.add_column(column, justify="right")
    for name in ("plain", "beside", "own"):
        rate, cpu, errors = (found[f"{name}_{figure}"] for figure in ("per_second", "cpu_us", "errors"))
        table.add_row(name, f"{rate:,.0f}", f"{cpu:,.0f}", f"{errors:,.0f}")
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


def _show_store(console: Console, measured: list[dict[str, Any]]) -> None:
    table = Table(title="register + confirm + settle, durable (SQLite, synchronous=FULL, sealed)")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in measured:
        table.add_row(*(form.format(row[name]) for name, form in COLUMNS.values()))
    console.print(table)


def _show_sweep(console: Console, swept: dict[str, Any]) -> None:
    console.print(
        f"sweep of {swept['due']:,} due: {swept['seconds_among_few'] * 1e3:.0f} ms among {swept['few']:,} stored, "
        f"{swept['seconds_among_many'] * 1e3:.0f} ms among {swept['many']:,}: ratio {swept['ratio']:.2f}; "
        f"peak memory grew by {swept['peak_memory_growth_mib']:.0f} MiB"
    )
