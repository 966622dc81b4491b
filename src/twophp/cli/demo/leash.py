"""The manners of a child of the demo.

Its standard input is its leash: when the other end is closed, by a word, a crash or a closed terminal, it ends in good
order. Its standard output says when it is ready, and its standard error is its log.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from typing import Any, Final

import uvicorn

READY: Final = b"ready\n"
DRAIN_S: Final = 3


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
