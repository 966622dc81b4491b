from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.obligations.scene import KEYS, STORES, Scene
from tests.postgres import postgres_url
from tests.stores.schemas import Schema, schema
from twophp.obligations import ObligationTracker

__all__ = ["postgres_url", "schema"]


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPHP_KEYS", raising=False)
    monkeypatch.delenv("TWOPHP_KEYS_FILE", raising=False)


@pytest.fixture(params=STORES)
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    if request.param == "postgresql":
        monkeypatch.setenv("TWOPHP_KEYS", KEYS)
        found: Schema = request.getfixturevalue("schema")
        return Scene(request.param, tmp_path, found.url)
    return Scene(request.param, tmp_path)


@pytest.fixture
def tracker(scene: Scene) -> Iterator[ObligationTracker]:
    with scene.tracker() as tracker:
        yield tracker
