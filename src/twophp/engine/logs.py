"""Logs as JSON, one object per line, each with both correlation ids of the intent it is about.

The ids come from ``extra``, as twophp's own lines bring them, or else from the intent that is being executed where the
line was written: a handler's own lines, and those of the libraries it calls, need not be changed.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from twophp.engine.current import current_intent

IDS: Final = ("client_correlation_id", "server_correlation_id")
# What every record has; the rest is what the caller said in ``extra``.
_ORDINARY: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``handler.setFormatter(JsonFormatter())``. Every line is one JSON object in pure ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        said = {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_current_ids(),
            **said,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return _one_line(line)


def _current_ids() -> dict[str, str]:
    intent = current_intent()
    if intent is None:
        return {}
    return {name: getattr(intent, name) for name in IDS}


def _one_line(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # A cycle, a strange key, no number: better shown than lost.
        return json.dumps({name: value if isinstance(value, str) else repr(value) for name, value in line.items()})
