"""Every line about an intent names both of its ids, twophp's lines and those of a handler or a library."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observability.calls import Caller, calling
from twophp.engine.logs import JsonFormatter


class Lines:
    """What was logged, line by line."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(JsonFormatter())

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    found, root = Lines(), logging.getLogger()
    before = root.level
    root.addHandler(found.handler)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(found.handler)
    root.setLevel(before)


def test_a_handlers_own_line_has_the_ids_of_its_intent(tmp_path: Path, lines: Lines) -> None:
    ids: dict[str, str] = {}

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        ids.update(await caller.register("POST", "/orders"))
        await caller.confirm("/orders", ids)
        await caller.http.post("/orders")  # A plain call: the same handler, and no intent.

    calling(tmp_path, scenario)
    two_phase, plain = (line for line in lines.read() if line["logger"] == "shop")
    assert two_phase["client_correlation_id"] == ids["DTT-2PHP-Client-Correlation-ID"]
    assert two_phase["server_correlation_id"] == ids["DTT-2PHP-Server-Correlation-ID"]
    assert (two_phase["message"], two_phase["level"]) == ("making it", "INFO")
    assert "client_correlation_id" not in plain


def test_our_own_line_about_a_failed_handler_has_them_and_the_traceback(tmp_path: Path, lines: Lines) -> None:
    ids: dict[str, str] = {}

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("out of\nstock")

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        ids.update(await caller.register("POST", "/orders"))
        assert (await caller.confirm("/orders", ids)).status_code == 500

    calling(tmp_path, scenario, app=app)
    [failed] = [line for line in lines.read() if "exception" in line]
    assert failed["client_correlation_id"] == ids["DTT-2PHP-Client-Correlation-ID"]
    assert failed["server_correlation_id"] == ids["DTT-2PHP-Server-Correlation-ID"]
    assert "out of\nstock" in failed["exception"]


def test_our_own_line_about_a_failed_guard_has_them(tmp_path: Path, lines: Lines) -> None:
    ids: dict[str, str] = {}

    def guard(_head: Any, _intent: Any) -> bool:
        raise ValueError("no such partner")

    async def scenario(caller: Caller, _two_phase: Any) -> None:
        ids.update(await caller.register("POST", "/orders"))
        await caller.confirm("/orders", ids)

    calling(tmp_path, scenario, late_confirm_guard=guard)
    [failed] = [line for line in lines.read() if "guard failed" in line["message"]]
    assert failed["client_correlation_id"] == ids["DTT-2PHP-Client-Correlation-ID"]
    assert failed["server_correlation_id"] == ids["DTT-2PHP-Server-Correlation-ID"]


STRANGE: list[Any] = [math.nan, {1, 2}, {("a", 1): 2}, object(), "\ud800", "two\nlines", b"\xff", None]
STRANGE.append([STRANGE])


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_whatever_is_said_it_is_one_line_of_json(value: Any, lines: Lines) -> None:
    logging.getLogger("shop").info("line one\nline two %s", "\u2028", extra={"value": value})
    [line] = lines.read()
    assert line["message"] == "line one\nline two \u2028"
    assert "value" in line


def test_an_instant_has_its_zone() -> None:
    record = logging.makeLogRecord({"created": 0.25, "msg": "hello", "name": "shop", "levelname": "INFO"})
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "INFO",
        "logger": "shop",
        "message": "hello",
    }
