"""Makes servers and callers: imports once and forks each of them, because importing takes longer than a life.

Orders come as JSON lines on the standard input. ``begin`` is answered with the new process's id at once: the listening
sockets are inherited and outlive every server, so whoever connects too early waits in their queue. ``kill`` (SIGKILL),
``stop`` (SIGTERM) and ``wait`` (for one that kills itself) are answered with the exit status.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import socket
import sys
from typing import Final, NoReturn

import httptools
import msgspec
import uvicorn
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl
import uvloop

from tests.crash.life import Errand, Life, Link, Order
from tests.crash.service import Service
from tests.patience import PATIENCE_S
from tests.storm.chain import link_app
from tests.storm.errands import run_errand
from twophp.asgi.messages import App
from twophp.stores.sqlite.new_file import left_by
from twophp.stores.sqlite.sql import migrations

PR_SET_PDEATHSIG: Final = 1
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}
IMPORTED: Final = (httptools, uvloop)  # So that no server has to.


def live(life: Life | Errand | Link) -> NoReturn:
    """Until killed. Whoever is made here dies with its maker, so nothing is left behind when a test fails."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if isinstance(life, Errand):
        asyncio.run(run_errand(life))
    else:
        serve(Service(life).app if isinstance(life, Life) else link_app(life), life.listener)
    os._exit(0)


def serve(app: App, listener: int) -> None:
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


def begin(life: Life | Errand | Link) -> int:
    pid = os.fork()
    if not pid:
        try:
            live(life)
        except BaseException as error:  # noqa: BLE001 - A forked child must not run on as its parent.
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return pid


def end(order: Order) -> int:
    if order.verb in SIGNALS:
        os.kill(order.pid, SIGNALS[order.verb])
    handle = os.pidfd_open(order.pid)
    ended, _, _ = select.select([handle], [], [], PATIENCE_S)
    os.close(handle)
    if not ended:  # It was to die by itself and does not: an exit status that no test expects.
        os.kill(order.pid, signal.SIGABRT)
    return os.waitstatus_to_exitcode(os.waitpid(order.pid, 0)[1])


def main() -> None:
    left_by(migrations())  # Found out once, before anybody needs it.
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        answer = begin(order.life) if order.life is not None else end(order)
        print(answer, flush=True)  # noqa: T201


if __name__ == "__main__":
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    main()
