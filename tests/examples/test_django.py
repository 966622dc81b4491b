"""A Django project whose rows are found again after a crash."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.examples.tour import tour


@pytest.mark.req("A-34")
def test_the_readme(tmp_path: Path) -> None:
    with tour("django", tmp_path) as walk:
        walk.export("export TWOPHP_SERVICE=bookshop TWOPHP_STORE=sqlite:///ledger.db TWOPHP_ALLOW_INSECURE=1")
        walk.run("python manage.py migrate --run-syncdb")
        shop = walk.serve("uvicorn bookshop.asgi:application --port 8010")
        walk.export("export TWOPHP_LEDGER=sqlite:///reader.db TWOPHP_SOURCE=reader TWOPHP_ALLOW_INSECURE=1")
        first = walk.run("python order.py order-1 Emma")
        assert walk.run("python order.py order-1 Emma") == first
        shop.stop()

        failing = walk.serve("uvicorn bookshop.power_cut:application --port 8010")
        waiting = walk.start("python order.py order-2 Persuasion")
        assert "the power fails before order 2 is settled" in failing.ends(-signal.SIGKILL)
        walk.serve("uvicorn bookshop.asgi:application --port 8010")
        walk.sees(waiting)
        walk.run("twophp ledger tree order-2 ledger.db reader.db")
        assert walk.is_over()
