"""A worker that dies with a parcel in its hands, and the scan that puts it back."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.examples.tour import tour


@pytest.mark.req("OBL-LEAK-2", "OBL-LEAK-5", "OBL-INV-2")
def test_the_readme(tmp_path: Path) -> None:
    with tour("obligations-worker", tmp_path) as walk:
        walk.run("python worker.py tea vase anvil", -signal.SIGKILL)
        worker = walk.start("python worker.py")
        worker.until("anvil: put back (leak_scan)\n")
        worker.stop()
        walk.sees(worker)
        walk.run("twophp obligations report warehouse.db", 1)
        assert walk.is_over()
