"""One maker of servers for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.rig import Rig


@pytest.fixture(scope="package")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = Rig(tmp_path_factory.mktemp("servers"))
    yield found
    found.close()


@pytest.fixture
def rig(makers: Rig) -> Iterator[Rig]:
    """A test that fails leaves no server to the next."""
    yield makers
    makers.kill_all()
