"""A replica of a shop as a process. It imports nothing anew: it is forked from a server that has done so once."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import httptools
import uvicorn
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl
import uvloop

from tests.own.shops import SHOPS
from twophp import Policy, Quota, anonymous
from twophp.asgi import TwoPhaseMiddleware
from twophp.stores.postgres.lent.transaction import LentTransaction

PR_SET_PDEATHSIG: Final = 1
IMPORTED: Final = (httptools, uvloop)  # So that no server has to.
KEYS: Final = f"one:{b64encode(b'k' * 32).decode()}"
LEASE_MS: Final = 1_000
SOON_S: Final = 0.0003  # A COMMIT takes about as long: it is on its way, or has just been answered.
PLACES: Final = ("began", "wrote", "left", "settling", "written", "committing", "committed", "told")
"""Where a replica dies: in the handler's block, after it, and around each step of the settlement."""
COMMITTED: Final = ("committed", "told", "on_commit")
POLICIES: Final = {
    "POST /orders": Policy.standard(lease_ms=LEASE_MS, effects="transaction"),
    "POST /again": Policy.standard(lease_ms=LEASE_MS, effects="transaction", on_crash="rerun"),
}


def dying_at(place: str) -> Callable[[str], None]:
    """Called at every place; at this one the kernel ends the process."""

    def at(here: str) -> None:
        if here == place:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def die_in_settlement(at: Callable[[str], None]) -> None:
    """Look at each step of a transaction, in this process."""
    begin, decided, commit, settle = (
        getattr(LentTransaction, name) for name in ("begin", "_decided", "_commit", "settle")
    )

    async def beginning(self: Any) -> Any:
        handed = await begin(self)
        at("began")
        return handed

    async def deciding(self: Any, *command: Any) -> Any:
        at("settling")
        answer = await decided(self, *command)
        at("written")
        return answer

    async def committing(self: Any) -> None:
        threading.Timer(SOON_S, at, ["committing"]).start()
        await commit(self)
        at("committed")

    async def settling(self: Any, command: Any) -> Any:
        answer = await settle(self, command)
        at("told")
        return answer

    for name, step in (("begin", beginning), ("_decided", deciding), ("_commit", committing), ("settle", settling)):
        setattr(LentTransaction, name, step)


def serve(library: str, url: str, schema: str, listener: socket.socket, place: str) -> None:
    """Until somebody kills us, or we die at that place."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.environ["TWOPHP_KEYS"] = KEYS
    at = dying_at(place)
    die_in_settlement(at)
    app = TwoPhaseMiddleware(
        SHOPS[library](url, schema, at),
        service="shop",
        store=f"{url}?schema={schema}",
        identify=anonymous,
        policies=POLICIES,
        quota=Quota(open_intents=1_000),
        allow_insecure=True,
        sweep_interval_s=0.1,
        replay_wait_ms=60_000,
    )
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", access_log=False, lifespan="auto")
    uvicorn.Server(config).run(sockets=[listener])


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class Replica:
    """One process, and the socket that it serves: whoever connects early waits."""

    def __init__(self, library: str, url: str, schema: str, place: str = "") -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1_024) as listener:
            self.port: int = listener.getsockname()[1]
            self._process = _context.Process(target=serve, args=(library, url, schema, listener, place), daemon=True)
            self._process.start()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join()

    async def dead(self) -> None:
        """Wait until it has killed itself."""
        await asyncio.to_thread(self._process.join, 30)
        assert self._process.exitcode == -signal.SIGKILL
