"""One maker of servers for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.rig import Rig


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = Rig(tmp_path_factory.mktemp("servers"))
    yield found
    found.close()
