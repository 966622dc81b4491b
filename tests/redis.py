"""A real Redis for the tests that need one, with every change synced to the disk; alone, or three nodes as a cluster.

Import the fixtures ``redis_url`` and ``redis_cluster_url`` into a conftest.py. What a test keeps there it keeps under a
prefix of its own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

KEYS = f"one:{b64encode(b'k' * 32).decode()}"
PREFIXES = (f"ledger-{number}" for number in count(1))
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")


def free_port(*, for_cluster: bool = False) -> int:
    """A port that is free, and low enough that a cluster's second port, 10,000 higher, is one as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if not for_cluster or port < 55_000:
            return port


class Server:
    """A server in a folder of its own, and the process that serves it."""

    def __init__(self, folder: Path, *settings: str, port: int = 0) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("needs redis-server")
        self.port = port or free_port()
        where = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--logfile", "log")
        self._command = [program, *where, "--save", "", *(settings or DURABLE)]
        self._folder = folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers; it has read its log by then."""
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not self._is_up():
            if self._process.poll() is not None:
                raise AssertionError((self._folder / "log").read_text())

    def _is_up(self) -> bool:
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def ask(self, *words: str) -> str:
        """Send a command on a connection of its own, and return the first line of the answer."""
        said = "".join([f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)])
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(said.encode())
            with connection.makefile("rb") as answer:
                line = answer.readline().decode().rstrip("\r\n")
                return answer.readline().decode().rstrip("\r\n") if line.startswith("$") else line

    def kill(self) -> None:
        """As the kernel does when there is no memory left."""
        self._process.kill()
        self._process.wait()

    close = kill


class Cluster:
    """Three nodes that share the slots."""

    def __init__(self, folder: Path) -> None:
        self.nodes: list[Server] = []
        for number in range(3):
            (folder / str(number)).mkdir()
            port = free_port(for_cluster=True)
            self.nodes.append(Server(folder / str(number), *DURABLE, *CLUSTER, port=port))
        self.url = self.nodes[0].url
        self._share()

    def _share(self) -> None:
        """The slots, a third each, and then wait until all of them know it."""
        bounds = (0, 5_461, 10_923, 16_384)
        for node, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port))
        while not all(self._is_whole(node) for node in self.nodes):
            pass

    def _is_whole(self, node: Server) -> bool:
        return node.ask("CLUSTER", "INFO") == "cluster_state:ok" and node.ask("CLUSTER", "COUNTKEYSINSLOT", "1") == ":0"

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server for this session."""
    with (
        tempfile.TemporaryDirectory(prefix="twophp-redis-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        server = Server(Path(folder))
        stack.callback(server.close)
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A cluster for this session; the URL names one of its nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="twophp-redis-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        cluster = Cluster(Path(folder))
        stack.callback(cluster.close)
        yield cluster.url
