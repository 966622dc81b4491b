"""Exact, whoever else writes and whoever dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.quotas.counting import counted_and_open

ROOT = Path(__file__).parents[2]


def worker(path: str, name: str, tries: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.quotas.worker", path, name, str(tries)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module


def test_of_all_processes_together_as_many_are_admitted_as_the_quota_says(tmp_path: Path) -> None:
    path = f"{tmp_path}/shop.db"
    workers = [worker(path, name, 40) for name in "abcd"]
    admitted = [int(process.communicate(timeout=PATIENCE_S)[0]) for process in workers]
    assert sum(admitted) == 50
    counted, there = counted_and_open(path)
    assert counted == there
    assert [(who, count) for who, count, _size in counted] == [("alice", 50)]


def test_processes_that_are_killed_leave_the_count_as_exact_as_before(tmp_path: Path) -> None:
    path = f"{tmp_path}/shop.db"
    for cycle in range(4):
        workers = [worker(path, f"{cycle}{name}") for name in "ab"]
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "under way\n"
        for process in workers:
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        counted, there = counted_and_open(path)
        assert counted == there
        assert counted
