"""Processes that share one tracker's file, each driven by its seed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.obligations.walk import Walk, acting
from tests.patience import PATIENCE_S
from twophp.obligations import BudgetExhausted, Effect, ObligationError, ObligationTracker

ROOT = Path(__file__).parents[2]
BUDGET = 20


def start_worker(path: Path, part: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.obligations.processes", str(path), part, str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module


def run_workers(path: Path, part: str, seeds: Sequence[int]) -> list[str]:
    """Run one process for each seed at the same time; what each printed."""
    workers = [start_worker(path, part, seed) for seed in seeds]
    outputs = [worker.communicate(timeout=PATIENCE_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return outputs


def fence(url: str, _seed: int) -> None:
    with ObligationTracker(url, scan_interval_secs=None) as tracker:
        for _ in range(40):
            try:
                token = tracker.acquire("printer", "t")
            except ObligationError:
                continue
            tracker.check("printer", token.number)
            tracker.release(token, "t")
            print(token.number)  # noqa: T201 - what its parent reads


def budget(url: str, _seed: int) -> None:
    admitted = 0
    with ObligationTracker(url, scan_interval_secs=None, flow_budget=BUDGET) as tracker:
        for _ in range(BUDGET):
            try:
                tracker.reserve("publish", None, "t")
            except BudgetExhausted:
                continue
            admitted += 1
    print(admitted)  # noqa: T201


def walk(url: str, seed: int) -> None:
    with acting(url) as tracker:
        steps = Walk(tracker, random.Random(seed))  # noqa: S311 - a walk must be the same every time
        steps.go(60)
        print("under way", flush=True)  # noqa: T201
        steps.go(60)


def stuck(url: str, _seed: int) -> None:
    """Ends while a function that makes effects visible does not."""
    called = threading.Event()

    def publish(_effect: Effect) -> None:
        called.set()
        threading.Event().wait()

    tracker = ObligationTracker(url, effects={"publish": publish})
    tracker.commit(tracker.reserve("publish", None, "t"), "t")
    called.wait()
    print("at the end", flush=True)  # noqa: T201


PARTS: dict[str, Callable[[str, int], None]] = {"fence": fence, "budget": budget, "walk": walk, "stuck": stuck}

if __name__ == "__main__":
    PARTS[sys.argv[2]](f"sqlite:///{sys.argv[1]}", int(sys.argv[3]))
