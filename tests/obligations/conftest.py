from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.obligations.scene import STORES, Scene
from twophp.obligations import ObligationTracker


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)


@pytest.fixture(params=STORES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(request.param, tmp_path)


@pytest.fixture
def tracker(scene: Scene) -> Iterator[ObligationTracker]:
    with scene.tracker() as tracker:
        yield tracker
