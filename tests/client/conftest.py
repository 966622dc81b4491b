"""Every kind of client, and a shop to call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.callers import KINDS
from tests.client.shop import Shop, shop
from tests.memory import tmp_path

__all__ = ["tmp_path"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path) as made:
        yield made
