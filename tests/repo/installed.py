"""What an installation without any extra can do; test_dist.py runs this in one. Nothing but twophp is imported."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import twophp
from twophp import Policy, TwoPHPError, anonymous, current_intent
from twophp.asgi import TwoPhaseMiddleware
from twophp.obligations import ObligationTracker
from twophp.registrar import Registrar

ENABLED, CLIENT_ID = b"dtt-2php-enabled", b"dtt-2php-client-correlation-id"
SERVER_ID, PHASE = b"dtt-2php-server-correlation-id", b"dtt-2php-phase-state"


def missing() -> dict[str, str]:
    """The modules that cannot be imported here, each with the package that it lacks."""
    lacking = {}
    for module in pkgutil.walk_packages(twophp.__path__, "twophp.", onerror=lambda _name: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except (ImportError, TwoPHPError) as error:
            cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
            lacking[module.name] = str(getattr(cause, "name", error)).partition(".")[0]
    return lacking


async def application(_scope: Any, receive: Any, send: Any) -> None:
    """Places an order."""
    while (await receive()).get("more_body"):
        pass
    intent = current_intent()
    assert intent is not None
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"id":"7"}'})


async def handshake(folder: Path) -> list[str]:
    """Both phases of one order over SQLite: the phase that each answer tells."""
    app = TwoPhaseMiddleware(
        application,
        service="orders",
        store=f"sqlite:///{folder / 'orders.db'}",
        identify=anonymous,
        policies={"POST /orders": Policy.standard()},
        allow_insecure=True,
    )
    told: list[str] = []

    async def post(path: str, headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await app(scope, receive, send)
        answer = dict(sent[0]["headers"])
        told.append(answer[PHASE].decode())
        return answer

    own = [(b"host", b"127.0.0.1"), (ENABLED, b"true"), (CLIENT_ID, b"00000000-0000-4000-8000-000000000001")]
    registered = await post("/orders", own)
    await post("/orders/confirm", [*own, (SERVER_ID, registered[SERVER_ID])])
    await app.stop()
    return told


def obligation(folder: Path) -> str:
    """One effect, reserved and committed."""
    with ObligationTracker(f"sqlite:///{folder / 'effects.db'}", scan_interval_secs=None) as tracker:
        reserved = tracker.reserve("publish", {"key": "k1"}, "trace-1")
        committed = tracker.commit(reserved, "trace-1").obligation
        return committed.state if committed else "gone"


def gate(folder: Path) -> str:
    """A registrar's gate, opened."""
    with Registrar(f"sqlite:///{folder / 'registrar.db'}") as registrar:
        registrar.open_gate("the smoke test")
        return type(registrar).__name__


def main() -> None:
    """Do everything once; print what was found."""
    folder = Path(sys.argv[1])
    found = {
        "where": str(Path(twophp.__file__).parent),
        "version": [twophp.__version__, importlib.metadata.version("twophp")],
        "missing": missing(),
        "handshake": asyncio.run(handshake(folder)),
        "obligation": obligation(folder),
        "gate": gate(folder),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
