"""Repeat tests while every processor is busy: ``make stress ARGS="tests/x -k y"``.

A test that depends on the machine's speed passes on an idle one. What is written after ``--`` goes to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

BUSY = "while True: pass"


@contextmanager
def load(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that only compute, until the end."""
    busy: list[subprocess.Popen[bytes]] = []
    with ExitStack() as ends:
        for _ in range(processes):
            busy.append(ends.enter_context(subprocess.Popen([sys.executable, "-S", "-c", BUSY])))  # noqa: S603
            ends.callback(busy[-1].kill)
        yield busy


def repeat(times: int, arguments: Sequence[str]) -> int:
    """Run pytest up to so many times. Return the first status that is not 0."""
    for number in range(1, times + 1):
        print(f"stress: run {number} of {times}", flush=True)
        status = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode  # noqa: S603
        if status:
            return status
    return 0


def main(given: Sequence[str] | None = None) -> int:
    """Read the command line, and repeat."""
    parser = argparse.ArgumentParser(prog="python -m tools.stress", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="at most how many runs (%(default)s)")
    parser.add_argument("--busy", type=int, default=4 * (os.cpu_count() or 1), help="busy processes (%(default)s)")
    parser.add_argument("arguments", nargs="*", help="what to give to pytest")
    asked = parser.parse_args(given)
    if not asked.arguments:
        parser.error('say which tests, as in make stress ARGS="tests/core -k name": all of them take hours')
    with load(asked.busy):
        return repeat(asked.times, asked.arguments)


if __name__ == "__main__":
    sys.exit(main())
