"""Three services: the second step of a trip fails, and the first is undone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.examples.tour import tour
from tests.patience import PATIENCE_S

SERVICES = {"flights": 8031, "hotels": 8032, "trips": 8033}


@pytest.mark.req("P-10.2-c", "OBL-RBK-2")
def test_the_readme(tmp_path: Path) -> None:
    with tour("saga", tmp_path) as walk:
        starting = [walk.start(f"uvicorn {name}:app --port {port}") for name, port in SERVICES.items()]
        for service in starting:
            service.serves()
        walk.run("python book.py trip-1")
        walk.run("python book.py trip-2")
        trips = starting[-1]
        trips.until("trip-2: the seat is cancelled\n")
        trips.until("trip-2: the traveller is told\n")
        walk.run("python book.py")
        walk.run("twophp ledger tree trip-2 traveller.db trips.db flights.db hotels.db")
        assert walk.is_over()


@pytest.mark.req("A-34", "OBL-RBK-2")
def test_a_seat_is_cancelled_when_the_trip_dies_between_its_steps(tmp_path: Path) -> None:
    with tour("saga", tmp_path) as walk, socket.create_server(("127.0.0.1", walk.port(8032))) as silent_hotels:
        silent_hotels.settimeout(PATIENCE_S)
        flights = walk.aside("uvicorn flights:app --port 8031")
        trips = walk.aside("uvicorn trips:app --port 8033").serves()
        flights.serves()
        traveller = walk.aside("python book.py trip-3")
        with silent_hotels.accept()[0]:  # The seat is booked by now.
            trips.kill()
        assert "DELETE" not in flights.said
        walk.aside("uvicorn trips:app --port 8033").until("trip-3: the seat is cancelled\n")
        assert "DELETE /seats/trip-3" in flights.said
        assert "FAILED 500" in traveller.ends()
