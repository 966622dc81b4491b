"""What ``make bench`` says of a figure, and that its driver of fixed rate counts a wait."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from bench.bars import BARS, Bar, judged, rows, verdict_of
from bench.paced import Line, drive

LEAST = Bar("rate", ("rate",), 0.2, 0.3, 0.4)
MOST = Bar("cost", ("cost",), 5.0, 4.0, at_most=True)


@pytest.mark.parametrize(
    ("bar", "figure", "verdict"),
    [
        (LEAST, 0.19, "missed"),
        (LEAST, 0.2, "met"),
        (LEAST, 0.3, "met: goal"),
        (LEAST, 0.5, "met: moonshot"),
        (MOST, 5.1, "missed"),
        (MOST, 5.0, "met"),
        (MOST, 3.9, "met: goal"),
        (MOST, None, "not measured"),
    ],
)
def test_a_figure_is_held_to_its_bar(bar: Bar, figure: float | None, verdict: str) -> None:
    assert verdict_of(bar, figure) == verdict


def _found(figure: float) -> dict[str, Any]:
    """Every figure that a bar looks for, where it looks for it."""
    found: dict[str, Any] = {"store": [{}, {}, {}]}
    for bar in BARS:
        place: Any = found
        for step in bar.path[:-1]:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        place[bar.path[-1]] = figure
    return found


def test_every_bar_finds_its_figure() -> None:
    assert [verdict.figure for verdict in judged(_found(1.5))] == [1.5] * len(BARS)
    assert len(rows(_found(1.5))) == len(BARS)


def test_a_section_that_did_not_run_has_no_row() -> None:
    assert {row[0] for row in rows({"workers": {}})} == {bar.name for bar in BARS if bar.path[0] == "workers"}


def test_a_wait_for_the_server_is_part_of_the_latency() -> None:
    """The only answer comes after all were due: each pays from the instant at which it was."""
    rate, amount = 1_000.0, 20
    all_due = threading.Event()

    def serve(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            for _ in range(amount):
                assert line.recv(65_536)
                all_due.wait(30)
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        threading.Timer(amount / rate * 5, all_due.set).start()
        one = Line(f"http://127.0.0.1:{listener.getsockname()[1]}", "plain", "test")
        found = drive([one], rate, amount / rate)
        one.socket.close()
        server.join(30)
    assert (found.done, found.errors) == (amount, 0)
    assert found.p50_ms > amount / rate * 1e3 * 3
