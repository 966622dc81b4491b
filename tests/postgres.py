"""A real PostgreSQL for the tests that need one: its own cluster, on a free port of loopback, with fsync on.

Import the fixture ``postgres_url`` into a conftest.py. The server runs as an unprivileged user (it refuses root) in a
folder of its own, and both go when the session ends.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")


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

    def __init__(self, folder: Path, follows: Server | None = None) -> None:
        """``follows`` is the primary that it is a streaming standby of, else it is a primary itself."""
        initdb, pg_ctl, backup = program("initdb"), program("pg_ctl"), program("pg_basebackup")
        if initdb is None or pg_ctl is None or backup is None:
            pytest.skip("needs postgresql")
        self._user = somebody()
        self._pg_ctl, self._data, self.port = pg_ctl, str(folder / "data"), free_port()
        if self._user is not None:
            shutil.chown(folder, self._user)
        if follows is None:
            how: tuple[str, ...] = ("-U", "twophp", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
            self._run(initdb, "-D", self._data, *how)
        else:
            how = ("-h", "127.0.0.1", "-p", str(follows.port), "-U", "twophp", "-R", "-c", "fast", "--no-sync")
            self._run(backup, "-D", self._data, *how)
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(folder), "fsync": "on"}
        options = " ".join(f"-c {name}={value}" for name, value in {**settings, "port": str(self.port)}.items())
        self._run(pg_ctl, "start", "-D", self._data, "-w", "-l", str(folder / "log"), "-o", options)
        self.url = f"postgresql://twophp@127.0.0.1:{self.port}/postgres"

    def _run(self, *command: str) -> None:
        """As the server's user. No pipe: the server would inherit it, and nobody would ever read it to its end."""
        done = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False, user=self._user, cwd="/"
        )
        assert done.returncode == 0, command

    def restart(self, mode: str) -> None:
        """Stop as ``mode`` says (fast, or immediate: as a crash) and start again, on the same port."""
        self._run(self._pg_ctl, "restart", "-D", self._data, "-m", mode, "-w", "-l", f"{self._data}/../log")

    def promote(self) -> None:
        """A standby becomes the primary."""
        self._run(self._pg_ctl, "promote", "-D", self._data, "-w")

    def close(self, mode: str = "fast") -> None:
        """A fast shutdown: who is connected is thrown out, what is committed is kept. ``immediate`` is a crash."""
        self._run(self._pg_ctl, "stop", "-D", self._data, "-m", mode, "-w")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server for this session; make what you need in a schema of your own."""
    with tempfile.TemporaryDirectory(prefix="twophp-postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        yield server.url
        server.close("immediate")  # Its folder goes with it: there is nothing to checkpoint.
