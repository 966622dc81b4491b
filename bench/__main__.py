"""``make bench``: measure, print the bars, write ``bench/latest.json``. Ratios count; this machine's seconds do not."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
from rich.console import Console

from bench import (
    central,
    client,
    handshakes,
    obligations,
    own,
    peers,
    postgres,
    redis,
    server,
    stall,
    stored,
    sweep,
    workers,
)
from bench.bars import judged
from bench.tables import show
from tools import docs

LATEST = Path(__file__).with_name("latest.json")
CALLERS = {1: 400, 16: 4_000, 64: 12_000, 256: 12_000}
FIGURES = ("calls", "resumed", "files", "opcodes")
QUICK_STORED = 6_000
QUICK_FRAMEWORKS = ("starlette",)
WIDTH = 160


class Run(msgspec.Struct, frozen=True):
    """How one run is made."""

    folder: Path
    rounds: int
    seconds: float
    """Of each run of wrk."""
    scale: int
    """What amounts are divided by."""
    stored: int
    say: Callable[[str], None]
    frameworks: tuple[str, ...] = server.FRAMEWORKS


def _store(run: Run) -> list[dict[str, float]]:
    found = []
    for callers, amount in CALLERS.items():
        run.say(f"store: {callers} callers, {run.rounds} rounds")
        rounds = handshakes.measure(run.folder, callers, max(callers, amount // run.scale), run.rounds)
        found.append(handshakes.summary(callers, rounds))
    return found


def _trace(_run: Run) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "tools.trace", "--json"]
    walks = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)  # noqa: S603 - our own
    return {name: {figure: walk[figure] for figure in FIGURES} for name, walk in walks.items()}


SECTIONS: dict[str, Callable[[Run], Any]] = {
    "server": lambda run: server.measure(run.folder, run.rounds, run.seconds, run.say, run.frameworks),
    "workers": lambda run: workers.measure(run.folder, run.rounds, run.seconds, run.say),
    "stored": lambda run: stored.measure(run.folder, run.rounds, run.seconds, run.stored, run.say),
    "sweep": lambda run: sweep.measure(run.folder, run.rounds, run.stored, run.say),
    "store": _store,
    "redis": lambda run: redis.measure(run.folder, run.rounds, run.scale, run.say),
    "stall": lambda run: stall.measure(run.folder, run.rounds, run.seconds),
    "trace": _trace,
    "obligations": lambda run: obligations.measure(run.folder, run.rounds, run.scale),
    "client": lambda run: client.measure(run.folder, run.rounds, run.scale),
    "central": lambda run: central.measure(run.folder, run.rounds, run.scale),
    "own": lambda run: own.measure(run.folder, run.rounds, run.seconds, run.say),
    "postgres": lambda run: postgres.measure(run.folder, run.rounds, run.seconds, run.say),
    "peers": lambda run: peers.measure(run.folder, run.rounds, run.seconds, run.say),
}
UNASKED = tuple(name for name in SECTIONS if name != "peers")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians over (default: 5)")
    parser.add_argument("--seconds", type=float, default=2, help="how long each load lasts (default: 2)")
    parser.add_argument("--only", choices=SECTIONS, help="one section alone; the others' figures stay as they were")
    parser.add_argument("--peers", action="store_true", help="measure other packages too; installs them in .venv/peers")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written: does it still run?")
    return parser.parse_args()


def main() -> None:
    """Run everything, one section, or a quick look at it."""
    options, console = _options(), _console()
    logging.getLogger("twophp").setLevel(logging.ERROR)  # That a key ring was made, and the like.
    sections = (options.only,) if options.only else (*UNASKED, *(("peers",) if options.peers else ()))
    before = json.loads(LATEST.read_text(encoding="utf-8")) if options.only and LATEST.exists() else {}
    found: dict[str, Any] = {"machine": _machine(), "rounds": 1 if options.quick else options.rounds}
    found["seconds_taken"], failed = before.get("seconds_taken", {}), []
    with tempfile.TemporaryDirectory(prefix="twophp-bench-", dir=".") as here:

        def say(text: str) -> None:
            console.print(text, style="dim", highlight=False)

        folder = Path(here).resolve()
        if options.quick:
            run = Run(
                folder, rounds=1, seconds=0.5, scale=10, stored=QUICK_STORED, say=say, frameworks=QUICK_FRAMEWORKS
            )
        else:
            run = Run(folder, options.rounds, options.seconds, scale=1, stored=stored.STORED, say=say)
        for section in sections:
            say(f"{section}: {run.rounds} rounds")
            began = time.monotonic()
            try:
                found[section] = SECTIONS[section](run)
            except Exception:  # noqa: BLE001 - a section that fails does not cost the others' figures.
                failed.append(section)
                traceback.print_exc()
            found["seconds_taken"][section] = round(time.monotonic() - began)
    found["machine"]["load_after"] = os.getloadavg()
    show(console, found)
    took = {section: found["seconds_taken"][section] for section in sections}
    each = ", ".join(f"{section} {seconds}" for section, seconds in took.items())
    say(f"took {sum(took.values())} s ({each}); load before: {found['machine']['load_before'][0]:.1f}")
    if not options.quick:
        _write({**before, **found})
        say(f"written: bench/{LATEST.name}")
        docs.main()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _console() -> Console:
    """As wide as the bars need where the output has no width of its own."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _write(found: dict[str, Any]) -> None:
    found["bars"] = [msgspec.to_builtins(verdict) for verdict in judged(found)]
    LATEST.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _machine() -> dict[str, Any]:
    facts = {"python": platform.python_version(), "sqlite": apsw.sqlite_lib_version(), "machine": platform.machine()}
    return {**facts, "cores": os.cpu_count(), "load_before": os.getloadavg()}


if __name__ == "__main__":
    main()
