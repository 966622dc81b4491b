"""Three services: the second step of a trip fails, and the first is undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.tour import tour

SERVICES = {"flights": 8031, "hotels": 8032, "trips": 8033}


@pytest.mark.req("P-10.2-c", "OBL-RBK-2")
def test_the_readme(tmp_path: Path) -> None:
    with tour("saga", tmp_path) as walk:
        starting = [walk.start(f"uvicorn {name}:app --port {port}") for name, port in SERVICES.items()]
        for service in starting:
            service.until("Uvicorn running on")
        walk.run("python book.py trip-1")
        walk.run("python book.py trip-2")
        trips = starting[-1]
        trips.until("trip-2: the seat is cancelled\n")
        trips.until("trip-2: the traveller is told\n")
        walk.run("python book.py")
        walk.run("twophp ledger tree trip-2 traveller.db trips.db flights.db hotels.db")
        walk.run("twophp obligations list trips.db --flow seat")
        assert walk.is_over()
