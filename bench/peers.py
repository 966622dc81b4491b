"""Other packages on the same service, as a share of bare FastAPI: ``make bench ARGS="--peers"``.

They are pinned in ``peers.txt`` and installed into .venv/peers, on request only. Each keeps its keys where its own
documentation says that they survive a restart, on a server that syncs every write. One request with a fresh
``Idempotency-Key`` counts for them; ours is measured beside them by the same field, by auto-confirm (one request too)
and by handshake (two). What they promise differs: none of them seals, journals or has a second phase.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.processes import Server, free_port, running, serving
from bench.server import CONNECTIONS, Say
from bench.wrk import Run, wrk
from tests import postgres

PINS = Path(__file__).with_name("peers.txt")
HOME = Path(sys.prefix) / "peers"
PYTHON = str(HOME / "bin" / "python")
REDIS = "Redis, appendfsync always"
POSTGRES = "PostgreSQL, fsync on"


class Peer(msgspec.Struct, frozen=True):
    """One package and where it keeps its keys."""

    package: str
    factory: str
    kept_in: str
    needs: str = ""


PEERS = (
    Peer("asgi-idempotency-header", "asgi_idempotency_header", REDIS, "BENCH_REDIS"),
    Peer("fastapi-idempotency-key", "fastapi_idempotency_key_redis", REDIS, "BENCH_REDIS"),
    Peer("fastapi-idempotency-key", "fastapi_idempotency_key_sqlite", "SQLite, its own settings"),
    Peer("fastapi-idempotency", "fastapi_idempotency", POSTGRES, "BENCH_POSTGRES"),
    Peer("dbos", "dbos", POSTGRES, "BENCH_POSTGRES"),
)
OURS = {
    "handshake": ("twophp, handshake", "fastapi_twophp"),
    "auto": ("twophp, auto-confirm", "fastapi_twophp"),
    "keyed": ("twophp, Idempotency-Key", "fastapi_keyed"),
}
"""By what wrk sends: the name in the table, and the application."""


def _install(say: Say) -> None:
    ready = HOME / ".ready"
    if ready.exists() and ready.read_bytes() == PINS.read_bytes():
        return
    say("peers: installing bench/peers.txt into .venv/peers")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(PINS)]
    for command in ([sys.executable, "-m", "venv", str(HOME)], [PYTHON, *pip]):
        subprocess.run(command, check=True)  # noqa: S603 - our own
    ready.write_bytes(PINS.read_bytes())


def _versions() -> dict[str, str]:
    pins = (line.split()[0].split("==") for line in PINS.read_text(encoding="utf-8").splitlines() if "==" in line)
    return {pin[0]: pin[1] for pin in pins}


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """A Redis that has every write on the disk before it answers."""
    port = free_port()
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *durable]
    with running([*command, "--logfile", str(folder / "redis.log")]):
        time.sleep(1)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def _postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="twophp-postgres-", ignore_cleanup_errors=True) as folder:
        server = postgres.Server(Path(folder))
        try:
            yield server.url
        finally:
            server.close()


def _backends(stack: ExitStack, folder: Path) -> dict[str, str]:
    """The servers that are here, by the variable that names them."""
    found = {}
    if shutil.which("redis-server"):
        found["BENCH_REDIS"] = stack.enter_context(_redis(folder))
    if postgres.program("initdb") and postgres.program("pg_ctl"):
        found["BENCH_POSTGRES"] = stack.enter_context(_postgres())
    return found


def measure(folder: Path, rounds: int, seconds: float, say: Say) -> list[dict[str, Any]]:
    """Bare, each of them and ours, in every round."""
    _install(say)
    found: dict[str, list[tuple[Run, Run]]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        backends = _backends(stack, folder)
        bare = stack.enter_context(_peer("bare", folder, {}))
        servers: dict[str, tuple[Server, str]] = {}
        for peer in PEERS:
            if peer.needs and peer.needs not in backends:
                failed[peer.factory] = f"no {peer.kept_in.split(',')[0]} here"
                continue
            try:
                servers[peer.factory] = stack.enter_context(_peer(peer.factory, folder, backends)), "keyed"
            except RuntimeError as error:
                failed[peer.factory] = str(error)
        for mode, (_name, factory) in OURS.items():
            servers[mode] = stack.enter_context(serving(factory, folder / f"peers-{mode}.db")), mode
        for number in range(rounds):
            say(f"peers: round {number + 1} of {rounds}")
            for name, (server, mode) in servers.items():
                run = f"{name}-{number}"
                plain = wrk(bare, "plain", connections=CONNECTIONS, seconds=1, run=run)
                there = wrk(server, mode, connections=CONNECTIONS, seconds=seconds, run=run)
                found.setdefault(name, []).append((plain, there))
    return _summary(found, failed)


def _peer(factory: str, folder: Path, backends: dict[str, str]) -> Any:
    database = folder / f"peer-{factory}.db"
    return serving(factory, database, python=PYTHON, module="bench.peer_apps", environment=backends)


def _summary(found: dict[str, list[tuple[Run, Run]]], failed: dict[str, str]) -> list[dict[str, Any]]:
    versions = _versions()
    named = [(peer.factory, peer.package, versions[peer.package], peer.kept_in) for peer in PEERS]
    named += [
        (mode, name, "", "SQLite, synchronous=FULL, sealed, journalled") for mode, (name, _factory) in OURS.items()
    ]
    told: list[dict[str, Any]] = []
    for name, package, version, kept_in in named:
        facts = {"name": package, "version": version, "kept_in": kept_in}
        if name in failed:
            told.append({**facts, "why": failed[name]})
            continue
        runs = found[name]
        told.append(
            {
                **facts,
                "per_second": median(there.per_second for _bare, there in runs),
                "ratio": median(there.per_second / bare.per_second for bare, there in runs),
                "errors": sum(there.errors for _bare, there in runs),
            }
        )
    return told
