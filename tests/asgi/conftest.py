"""Every test here runs on asyncio, the loop that ASGI servers use; the handshake's a second time over a socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory import tmp_path
from tests.redis import KEYS, PREFIXES, redis_url
from twophp.uvicorn import Protocol

__all__ = ["redis_url", "tmp_path"]

TWICE = {
    f"tests.asgi.test_{name}"
    for name in ("t1", "t2", "phase_one", "phase_two", "server_confirms", "status", "redirects", "hardening")
}
"""The modules whose requests are made as calls of the middleware, and then over a socket through the short-cut."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a fresh store, of each kind in turn."""
    if request.param == "redis":
        monkeypatch.setenv("TWOPHP_KEYS", KEYS)
        return f"{request.getfixturevalue('redis_url')}?prefix={next(PREFIXES)}"
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in TWICE and "through" in metafunc.fixturenames:
        once = metafunc.definition.get_closest_marker("asgi_only") is not None
        metafunc.parametrize("through", ["asgi"] if once else ["asgi", "uvicorn"], indirect=True)


@pytest.fixture(autouse=True)
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the requests of ``driver.Service`` are made."""
    if getattr(request, "param", "asgi") == "uvicorn":
        monkeypatch.setattr("tests.asgi.driver.through", Protocol)
