"""One attempt in a process of its own: ``python -m tests.registrar.victim URL REQUEST WHEN``.

``WHEN`` says what happens to it: ``before_commit`` and ``after_commit`` kill it there; ``waiting`` makes it stop after
its first look, say ``looked``, and go on when the test writes a line. The answer it got goes to stdout as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec

from tests.registrar.scene import T0
from twophp.registrar import AsyncRegistrar, Registrar, RegistrationRequest
from twophp.stores.postgres.writer import Writer as PostgresWriter
from twophp.stores.sqlite.writer import Writer as SQLiteWriter


def main(url: str, spelled: str, when: str) -> None:
    request = msgspec.json.decode(spelled, type=RegistrationRequest)
    with Registrar(url, clock=lambda: T0) as registrar:
        store: Any = registrar._registrar._opened.store
        if when == "before_commit":
            SQLiteWriter._sync = _kill  # type: ignore[method-assign,assignment]
            PostgresWriter._commit = _die  # type: ignore[method-assign,assignment]
        elif when == "after_commit":
            AsyncRegistrar._after = _die  # type: ignore[method-assign, assignment]
        elif when == "waiting":
            _wait_before_transacting(store)
        _say(msgspec.json.encode(registrar.register(request)).decode())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _die(*_arguments: object) -> None:
    _kill()


def _kill(*_arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_before_transacting(store: Any) -> None:
    real = store.transact

    def waiting(*wish: Any) -> Any:
        store.transact = real
        _say("looked")
        sys.stdin.readline()
        return real(*wish)

    store.transact = waiting


if __name__ == "__main__":
    main(*sys.argv[1:])
