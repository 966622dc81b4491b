"""Order and charge in one commit, also when the machine fails in between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.examples.tour import tour


@pytest.mark.req("A-34", "P-4-e")
def test_the_readme(tmp_path: Path) -> None:
    with tour("fastapi-sqlalchemy", tmp_path) as walk:
        shop = walk.serve("uvicorn shop:app --port 8000")
        first = walk.run("python buy.py order-1 tea")
        assert walk.run("python buy.py order-1 tea") == first
        walk.run("python buy.py order-2 samovar")
        shop.stop()

        failing = walk.serve("uvicorn power_cut:app --port 8000")
        waiting = walk.start("python buy.py order-3 tea")
        assert "the power fails before order" in failing.ends(-signal.SIGKILL)
        walk.serve("uvicorn shop:app --port 8000")
        walk.sees(waiting)
        walk.run("twophp ledger tree order-3 shop.db buyer.db")
        assert walk.is_over()
