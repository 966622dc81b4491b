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

from bench import handshakes, sweep

LATEST = Path(__file__).with_name("latest.json")
CALLERS = {1: 400, 16: 4_000, 64: 12_000, 256: 12_000}


def main() -> None:
    """Run everything, or a quick look at it."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians over (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written: does it still run?")
    options = parser.parse_args()
    rounds, scale = (1, 10) if options.quick else (options.rounds, 1)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="twophp-bench-", dir=".") as folder:
        found: dict[str, Any] = {"machine": _machine(), "rounds": rounds, "store": [], "sweep": {}}
        for callers, amount in CALLERS.items():
            console.print(f"store: {callers} callers, {rounds} rounds", style="dim")
            measured = handshakes.measure(Path(folder), callers, max(callers, amount // scale), rounds)
            found["store"].append(handshakes.summary(callers, measured))
        console.print(f"sweep: {sweep.DUE:,} due among {sweep.FEW:,} and {sweep.MANY:,} stored", style="dim")
        found["sweep"] = sweep.measure(Path(folder), rounds)
    _show(console, found)
    if not options.quick:
        LATEST.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        console.print(f"written: bench/{LATEST.name}", style="dim")


def _machine() -> dict[str, str]:
    return {"python": platform.python_version(), "sqlite": apsw.sqlite_lib_version(), "machine": platform.machine()}


COLUMNS = {
    "callers": ("callers", "{:.0f}"),
    "per s": ("handshakes_per_second", "{:,.0f}"),
    "p99 ms": ("p99_ms", "{:.1f}"),
    "changes a commit": ("changes_per_commit", "{:.0f}"),
    "x one each": ("ratio_to_one_transaction_each", "{:.1f}"),
    "one each per s": ("one_transaction_each_per_second", "{:,.0f}"),
    "of ceiling": ("ratio_to_ceiling", "{:.2f}"),
    "ceiling per s": ("ceiling_per_second", "{:,.0f}"),
}


def _show(console: Console, found: dict[str, Any]) -> None:
    table = Table(title="register + confirm + settle, durable (SQLite, synchronous=FULL, sealed)")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in found["store"]:
        table.add_row(*(form.format(row[name]) for name, form in COLUMNS.values()))
    console.print(table)
    swept = found["sweep"]
    console.print(
        f"sweep of {swept['due']:,} due: {swept['seconds_among_1000'] * 1e3:.0f} ms among 1,000 stored, "
        f"{swept['seconds_among_1000000'] * 1e3:.0f} ms among 1,000,000: ratio {swept['ratio']:.2f}; "
        f"peak memory grew by {swept['peak_memory_growth_mib']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
