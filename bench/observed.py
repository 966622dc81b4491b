"""What a server of the bench says of itself at ``GET /observed``: the collector's pauses and the bytes of its log.

The pauses are those of Python's garbage collector, from ``gc.callbacks``. The bytes are what SQLite writes to files
whose name ends in ``-wal``: a shim in front of the file system counts them, exactly and without the checkpoints. It is
there only where ``BENCH_COUNT_LOG`` is set, in a server whose speed is not measured.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import apsw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

PATH = "/observed"
COUNT_LOG = "BENCH_COUNT_LOG"
BASE = "unix"
LOG = "-wal"


class Pauses:
    """How long each collection took, since the last question."""

    def __init__(self) -> None:
        self._began = 0.0
        self._took: list[float] = []

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        """What ``gc.callbacks`` calls before and after each collection."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._took.append(time.perf_counter() - self._began)

    def taken(self) -> list[float]:
        """The pauses in milliseconds; the next answer begins anew."""
        found, self._took = self._took, []
        return [seconds * 1e3 for seconds in found]


class CountingDisk(apsw.VFS):
    """SQLite's own file system; counts the bytes written to a log."""

    def __init__(self) -> None:
        super().__init__("counting-disk", BASE, makedefault=True)
        self.log_bytes = 0

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's names.
        """A log is counted; everything else is SQLite's own file."""
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name
        if filename is not None and filename.endswith(LOG):
            return CountedFile(self, name, flags)
        return apsw.VFSFile(BASE, name, flags)


class CountedFile(apsw.VFSFile):
    """One log."""

    def __init__(self, disk: CountingDisk, name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._disk = disk

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        """Count, then write."""
        self._disk.log_bytes += len(data)
        super().xWrite(data, offset)


def observe(app: Starlette) -> Starlette:
    """Add the report to the application. Its route is the last one: no other request is slower for it."""
    pauses, disk = Pauses(), CountingDisk() if os.environ.get(COUNT_LOG) else None
    gc.callbacks.append(pauses)

    async def observed(_request: Request) -> JSONResponse:
        return JSONResponse({"gc_ms": pauses.taken(), "log_bytes": disk.log_bytes if disk else 0})

    app.add_route(PATH, observed)
    return app
