"""Every test here needs strace, which `make test` brings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.rig import STRACE, Rig


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if STRACE is None:
        pytest.skip("needs strace")
    found = Rig(tmp_path_factory.mktemp("rig"))
    yield found
    found.close()
