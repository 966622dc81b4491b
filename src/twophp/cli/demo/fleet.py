"""The children of the demo: started together, waited for, watched, and stopped without leaving one behind.

Each has a session of its own, so that Ctrl-C reaches the demo alone, and a leash, so that none outlives the demo
however that ends: its standard input. When the other end of that is closed, by a word, a crash or a closed terminal,
``serve`` ends in good order. Its standard output says when it is ready, and its standard error is its log.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import uvicorn

from twophp.core.errors import TwoPHPError
from twophp.stores.clock import steady_clock

READY: Final = b"ready\n"
DRAIN_S: Final = 3
START_S: Final = 60.0
STOP_S: Final = 8.0
_LAST_BYTES: Final = 2_000


class ChildFailed(TwoPHPError):
    """A process of the demo ended, or did not get ready. The message names its log."""

    default_code = "demo_child_failed"


class Child:
    """One process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self.pid = process.pid
        self._process = process

    @property
    def says(self) -> IO[bytes]:
        """The output on which the process says that it is ready."""
        assert self._process.stdout is not None
        return self._process.stdout

    def check(self) -> None:
        """Raise ChildFailed if it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise self.failed(how)

    def failed(self, what: str) -> ChildFailed:
        """What happened to it, and where to read why."""
        last = self._last_line()
        return ChildFailed(f"{self.name} (process {self.pid}) {what}; {last or 'its log is empty'}: {self.log}")

    def let_go(self) -> None:
        """Ask it to end, twice: while it still starts it gets the signal alone, and needs no good order yet."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()

    def gone(self, by: int) -> None:
        """Wait for its end, and see to it when the time is up."""
        try:
            self._process.wait(max(by - steady_clock(), 1) / 1_000)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.says.close()

    def _last_line(self) -> str:
        written = self.log.read_bytes()[-_LAST_BYTES:].decode("utf-8", "replace").strip()
        return f"its log ends with {written.splitlines()[-1].strip()!r}" if written else ""


class Fleet:
    """All processes of the demo."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.children: list[Child] = []

    def start(self, name: str, module: str, *arguments: str, listener: socket.socket) -> None:
        """Start ``python -m module arguments``. It is given the socket, and no other process keeps it."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as errors, listener:
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self.children.append(Child(name, process, log))

    def wait_until_ready(self, patience_s: float = START_S) -> None:
        """Return when every child has said so. Raises ChildFailed for one that ended or took too long."""
        until = steady_clock() + round(patience_s * 1_000)
        with selectors.DefaultSelector() as selector:
            for child in self.children:
                selector.register(child.says, selectors.EVENT_READ, child)
            while waiting := [key.data for key in selector.get_map().values()]:
                left_ms = until - steady_clock()
                if left_ms <= 0:
                    raise waiting[0].failed(f"was not ready after {patience_s:g} s")
                for key, _events in selector.select(left_ms / 1_000):
                    self._heard(key.data)
                    selector.unregister(key.fileobj)

    def check(self) -> None:
        """Raise ChildFailed if any has ended."""
        for child in self.children:
            child.check()

    def stop(self) -> None:
        """End them all; returns when none is left. The first is needed by the others until they have ended."""
        children, self.children = self.children, []
        for group in (children[1:], children[:1]):
            for child in group:
                child.let_go()
            by = steady_clock() + round(STOP_S * 1_000)
            for child in group:
                child.gone(by)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _heard(self, child: Child) -> None:
        if not child.says.readline():
            child.gone(steady_clock() + round(STOP_S * 1_000))
            child.check()


def listening(names: Sequence[str]) -> dict[str, socket.socket]:
    """A socket on a free port of loopback for each; it takes connections at once."""
    return {name: socket.create_server(("127.0.0.1", 0)) for name in names}


def url_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


# In the child.


async def serve(app: Any, listener: int) -> None:
    """Serve the socket with this number until the leash is let go."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config: dict[str, Any] = {"lifespan": "on", "access_log": False, "log_config": None}
    server = _Server(uvicorn.Config(app, timeout_graceful_shutdown=DRAIN_S, **config))
    threading.Thread(target=_hold, args=(server,), daemon=True).start()
    with socket.socket(fileno=listener) as taken:
        await server.serve(sockets=[taken])
    if not server.started:
        sys.exit(1)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            os.write(sys.stdout.fileno(), READY)


def _hold(server: uvicorn.Server) -> None:
    while os.read(sys.stdin.fileno(), 1_024):
        continue
    server.should_exit = True
