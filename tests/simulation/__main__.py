"""``make simulate``: run seeds until one finds something, and show it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.planted import BUGS, with_bug
from tests.simulation.report import shown
from tests.simulation.world import EVENTS, Result, simulate, simulating

AT_A_TIME: Final = 20
SEEDS: Final = 1_000


def main() -> int:
    """0 if every promise held in every run."""
    asked = _arguments()
    out = Console(highlight=False, soft_wrap=True)
    if asked.json:
        results = [result for some in _runs(asked) for result in some]
        out.print(json.dumps({str(result.seed): result.digest for result in results}), markup=False)
        return int(any(result.findings for result in results))
    columns = TextColumn("simulate: {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    count = events = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("seeds", total=asked.seeds)
        for results in _runs(asked):
            for result in results:
                count, events = count + 1, events + result.events
                if asked.trace or result.findings:
                    lines = sys.maxsize if asked.trace else asked.lines
                    progress.stop()
                    out.print(shown(result, lines=lines, events=asked.events, bug=asked.bug), markup=False)
                if result.findings:
                    return 1
            progress.advance(bar, len(results))
    out.print(f"{count:,} seeds, {events:,} events: every promise held")
    return 0


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--events", type=int, default=EVENTS, help="events in each run before faults end")
    parser.add_argument("--bug", default="", choices=["", *BUGS], help="plant this bug")
    parser.add_argument("--lines", type=int, default=60, help="lines of the trace to show of a failure")
    parser.add_argument("--trace", action="store_true", help="show the whole trace of every run")
    parser.add_argument("--json", action="store_true", help="print the digest of every run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser.parse_args()


def _runs(asked: Any) -> Iterator[list[Result]]:
    """The runs in the order of their seeds, some at a time."""
    starts = range(asked.first, asked.first + asked.seeds, AT_A_TIME)
    work = [(start, min(AT_A_TIME, asked.first + asked.seeds - start), asked.events, asked.bug) for start in starts]
    if asked.jobs < 2 or len(work) < 2:
        yield from map(_some, work)
        return
    with ProcessPoolExecutor(asked.jobs) as pool:
        try:
            yield from pool.map(_some, work)
        finally:
            pool.shutdown(cancel_futures=True)


def _some(work: tuple[int, int, int, str]) -> list[Result]:
    first, count, events, bug = work
    found = []
    with simulating(), with_bug(bug):
        for seed in range(first, first + count):
            result = simulate(seed, events)
            found.append(result)
            if result.findings:
                break
    return found


if __name__ == "__main__":
    sys.exit(main())
