"""What the kernel knows about owners: real processes, real locks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from twophp.stores.owners import SUFFIX, Owners
from twophp.stores.sqlite import SQLiteStore

# Registers an owner and waits. Its name is said, with "fork" by a child that has inherited every descriptor.
HOLDER = """
import os, sys
from twophp.stores.owners import Owners
owner = Owners(sys.argv[1]).register("holder")
if sys.argv[2] != "fork" or os.fork() == 0:
    print(owner, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    path.touch(0o600)
    return path


@contextmanager
def holder(database: Path, how: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", HOLDER, str(database), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def open_now() -> int:
    return sum(1 for _file in Path("/proc/self/fd").iterdir())


@pytest.mark.req("A-34")
def test_an_owner_lives_until_its_process_ends_however_it_ends(database: Path) -> None:
    owners = Owners(str(database))
    with holder(database) as (process, owner):
        assert owners.state(owner) == "alive"
        process.send_signal(signal.SIGSTOP)
        assert owners.state(owner) == "alive"
        process.kill()
        process.wait()
        assert owners.state(owner) == "dead"


@pytest.mark.req("A-34")
def test_a_forked_child_does_not_keep_its_dead_parent_alive(database: Path) -> None:
    with holder(database, "fork") as (process, owner):
        assert Owners(str(database)).state(owner) == "alive"
        process.kill()
        process.wait()
        assert Owners(str(database)).state(owner) == "dead"


@pytest.mark.req("A-34")
def test_a_forked_child_does_not_release_its_living_parent(database: Path) -> None:
    owners = Owners(str(database))
    ours = owners.register("ours")
    child = os.fork()
    if child == 0:
        os._exit(0 if Owners(str(database)).state(ours) == "alive" else 1)
    assert os.waitpid(child, 0)[1] == 0
    probe = f"from twophp.stores.owners import Owners; print(Owners({str(database)!r}).state({ours!r}))"
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)  # noqa: S603
    assert told.stdout.strip() == "alive"
    owners.release(ours)


def test_owners_of_one_process_are_told_apart_and_share_a_descriptor(database: Path) -> None:
    owners, others = Owners(str(database)), Owners(str(database))
    first = owners.register("first")
    before = open_now()
    second = others.register("second")
    assert open_now() == before
    assert (owners.state(second), others.state(first)) == ("alive", "alive")
    owners.release(first)
    assert (others.state(first), owners.state(second)) == ("dead", "alive")
    others.release(second)
    assert open_now() == before - 1


@pytest.mark.parametrize("owner", ["worker-1", "3f2c-77", "3f2c.no-inode", "3f2c.1", ""])
def test_nothing_is_known_about_an_owner_that_took_no_lock_here(database: Path, owner: str) -> None:
    owners = Owners(str(database))
    assert owners.state(owner) == "unknown"  # Not even a file.
    owners.release(owners.register("somebody"))
    assert owners.state(owner) == "unknown"


def test_nothing_is_known_once_the_file_was_replaced(database: Path) -> None:
    owners = Owners(str(database))
    with holder(database) as (_process, owner):
        Path(f"{database}{SUFFIX}").unlink()
        assert owners.state(owner) == "unknown"
        ours = owners.register("ours")  # Makes a new file.
        assert (owners.state(owner), owners.state(ours)) == ("unknown", "alive")
        owners.release(ours)


def test_where_no_lock_can_be_had_it_says_so_and_leases_decide(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owners = Owners(str(tmp_path / "gone" / "orders.db"))
    with caplog.at_level(logging.WARNING):
        owner = owners.register("ours")
    assert (owner, owners.state(owner)) == ("ours", "unknown")
    assert "when its lease has run out" in caplog.text
    owners.release(owner)


def test_the_file_is_as_private_as_the_database(database: Path) -> None:
    owners = Owners(str(database))
    owners.release(owners.register("ours"))
    lock_file = Path(f"{database}{SUFFIX}")
    assert (lock_file.stat().st_mode & 0o777, lock_file.stat().st_size) == (0o600, 0)


@pytest.mark.anyio
async def test_a_store_tells_of_the_owners_of_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with SQLiteStore("orders.db") as store:
        monkeypatch.chdir("/")  # The process may change its folder.
        owner = store.owners.register("ours")
        assert store.owners.state(owner) == "alive"
        store.owners.release(owner)
    assert (tmp_path / f"orders.db{SUFFIX}").exists()
