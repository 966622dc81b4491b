"""Which of httpx and httpx2 are here, and which of them made a request."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from twophp.core.errors import ConfigError

NAMES: Final = ("httpx2", "httpx")


def library_of(request: Any) -> Any:
    """The library that made this request."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def installed() -> list[Any]:
    """The installed ones of the two libraries, the newer first."""
    found = []
    for name in NAMES:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    return found


def any_library() -> Any:
    """One of the two, for what is sent before the first request of a caller."""
    for library in installed():
        return library
    raise ConfigError('neither httpx2 nor httpx is installed: pip install "twophp[httpx2]"', code="no_http_library")
