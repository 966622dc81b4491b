"""Folders in memory, for tests that show nothing of the disk: import the fixture ``tmp_path`` into a conftest.py.

Each test of a client or a server opens two ledgers and syncs dozens of times, which on a slow disk takes most of its
time. What survives a crash or a power cut, and what a store promises, is shown on the disk: tests/crash, tests/faults,
tests/storm, tests/stores.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - A folder of our own is made in it.
ROOM: Final = 1 << 30  # Far more than any test writes; a container may have next to none.


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder for one test, in memory where there is room."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    with TemporaryDirectory(prefix="twophp-", dir=MEMORY if has_room else None, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
