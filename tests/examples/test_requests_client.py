"""A client that dies before and after Phase 2, and finishes at its next start what it began."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.examples.tour import tour


@pytest.mark.req("A-42")
def test_the_readme(tmp_path: Path) -> None:
    with tour("requests-client", tmp_path) as walk:
        walk.serve("uvicorn office:app --port 8020")
        walk.run("python letters.py ann ben")
        walk.run("python unlucky.py before cleo", -signal.SIGKILL)
        walk.run("python letters.py")
        walk.run("python unlucky.py after dora", -signal.SIGKILL)
        walk.run("python letters.py dora emil")
        walk.run("twophp ledger tree letter-to-dora office.db letters.db")
        assert walk.is_over()
