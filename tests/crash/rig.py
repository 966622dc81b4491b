"""The test's side of the maker of servers."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

import msgspec

from tests.crash.life import Errand, Life, Link, Order

ROOT: Final = Path(__file__).parents[2]
LISTENERS: Final = 4
BACKLOG: Final = 1_024


class Rig:
    """Servers on demand, on a few sockets that outlive them."""

    def __init__(self, folder: Path, listeners: int = LISTENERS, inherited: tuple[int, ...] = ()) -> None:
        self._complaints = folder / "stderr.txt"
        self._living: set[int] = set()
        self._sockets = [_listening() for _ in range(listeners)]
        self.listeners = [listener.fileno() for listener in self._sockets]
        self.ports: list[int] = [listener.getsockname()[1] for listener in self._sockets]
        self._maker = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.crash.maker", str(self._complaints)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(*self.listeners, *inherited),
        )
        assert self._next() == "ready", self.complaints()

    def close(self) -> None:
        with self._maker:  # Closing its input ends it, and with it whatever still serves.
            self._input.close()
        for listener in self._sockets:
            listener.close()

    def begin(self, life: Life | Errand | Link) -> int:
        """Fork a server, or a caller; its process id. Connections may be made at once."""
        pid = self._ask(Order("begin", life=life))
        self._living.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """SIGKILL; returns when the process is gone."""
        self._living.discard(pid)
        assert self._ask(Order("kill", pid=pid)) == -9, self.complaints()

    def kill_all(self) -> None:
        """Whoever is left."""
        for pid in sorted(self._living):
            self.kill(pid)

    def stop(self, pid: int) -> None:
        """SIGTERM; returns when the server has shut down in good order."""
        self._living.discard(pid)
        assert self._ask(Order("stop", pid=pid)) in {0, -15}, self.complaints()  # uvicorn ends by the signal it got.

    def done(self, pid: int) -> None:
        """Wait for one that ends by itself when its errand is done."""
        self._living.discard(pid)
        assert self._ask(Order("wait", pid=pid)) == 0, self.complaints()

    def mourn(self, pid: int) -> None:
        """Wait for a server that kills itself."""
        self._living.discard(pid)
        assert self._ask(Order("wait", pid=pid)) == -9, self.complaints()

    def complaints(self) -> str:
        """What servers wrote to their standard error."""
        return self._complaints.read_text(encoding="utf-8")[-4_000:]

    @property
    def _input(self) -> IO[str]:
        assert self._maker.stdin is not None
        return self._maker.stdin

    def _next(self) -> str:
        assert self._maker.stdout is not None
        return self._maker.stdout.readline().strip()

    def _ask(self, order: Order) -> int:
        print(msgspec.json.encode(order).decode(), file=self._input, flush=True)
        return int(self._next())


def _listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    return listener
