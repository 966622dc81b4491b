"""Several replicas of one service as real processes on one database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stores.schemas import Schema

ROOT = Path(__file__).parents[3]
KEYS = f"one:{b64encode(b'k' * 32).decode()}"


class Replicas:
    """Started on sockets that listen from the beginning: whoever connects early waits."""

    def __init__(self, url: str, folder: Path, count: int) -> None:
        self.folder = folder
        self._url = url
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=1_024) for _ in range(count)]
        self.ports: list[int] = [listener.getsockname()[1] for listener in self._listeners]
        self._processes = [self._begin(listener.fileno()) for listener in self._listeners]

    def _begin(self, listener: int) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "TWOPHP_KEYS": KEYS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "tests.stores.postgres.replica", self._url, str(listener), str(self.folder)]
        return subprocess.Popen(command, pass_fds=[listener], cwd=ROOT, env=environ)  # noqa: S603

    def begin_anew(self, number: int) -> None:
        """In the place of one that was killed, on the same port."""
        self._listeners[number] = socket.create_server(("127.0.0.1", self.ports[number]), backlog=1_024)
        self._processes[number] = self._begin(self._listeners[number].fileno())

    def kill(self, number: int) -> None:
        """As the kernel does when there is no memory left. Whoever connects after that is refused."""
        self._listeners[number].close()
        process = self._processes[number]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def set_clock(self, number: int, how: signal.Signals) -> None:
        """Its machine's clock is set, as the signal says; see ``replica.STEPS``."""
        self._processes[number].send_signal(how)

    def stop(self, number: int) -> None:
        """It stands still, as a machine does that is moved elsewhere."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """It knows nothing of the time that has passed."""
        self._processes[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Whoever is left."""
        for number in range(len(self._processes)):
            self.kill(number)


@pytest.fixture
def replicas(schema: Schema, tmp_path: Path) -> Iterator[Callable[[int], Replicas]]:
    """Start so many."""
    started: list[Replicas] = []

    def start(count: int) -> Replicas:
        started.append(Replicas(schema.url, tmp_path, count))
        return started[-1]

    yield start
    for one in started:
        one.close()
