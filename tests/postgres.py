"""A real PostgreSQL for the tests that need one: its own cluster, on a free port of loopback, with fsync on.

Import the fixture ``postgres_url`` into a conftest.py. The server runs as an unprivileged user (it refuses root) in a
folder of its own, and both go when the session ends.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")
READY = "database system is ready to accept connections"


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is; Debian puts it under its version."""
    versions = sorted(DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
    return next((found for folder in versions if (found := shutil.which(name, path=str(folder)))), shutil.which(name))


def somebody() -> str | None:
    """Whom the server runs as: us, unless we are root."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return next(user for user in USERS if user in known)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A cluster and the process that serves it."""

    def __init__(self, folder: Path) -> None:
        initdb, postgres = program("initdb"), program("postgres")
        if initdb is None or postgres is None:
            pytest.skip("needs postgresql")
        self._user = somebody()
        data, port = folder / "data", free_port()
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run(
            initdb, "-D", str(data), "-U", "twophp", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"
        )
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(folder), "fsync": "on"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(  # noqa: S603
            [postgres, "-D", str(data), "-p", str(port), *options],
            stderr=subprocess.PIPE,
            text=True,
            user=self._user,
            cwd=folder,
        )
        self.url = f"postgresql://twophp@127.0.0.1:{port}/postgres"
        self._wait()

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, user=self._user, cwd="/")  # noqa: S603
        assert done.returncode == 0, done.stderr

    def _wait(self) -> None:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if READY in line:
                return
        pytest.fail(f"PostgreSQL did not start:\n{''.join(said)}")

    def close(self) -> None:
        """A fast shutdown: who is connected is thrown out, what is committed is kept."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server for this session; make what you need in a schema of your own."""
    with tempfile.TemporaryDirectory(prefix="twophp-postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        yield server.url
        server.close()
