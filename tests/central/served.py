"""A central ledger behind a real socket, with its database in a file, and credentials for every role."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.asgi_frameworks.serving import AnnouncedServer
from tests.patience import PATIENCE_S
from twophp.central.app import create_app
from twophp.central.ports import Role
from twophp.central.stores.opening import open_central
from twophp.core.entry import LedgerEntry
from twophp.wire.rows import encode_batch

KEY = b"a management key of thirty-two bytes"
READING = ("audit", "operations", "compliance")


class Central:
    """A running central ledger and ways to ask it."""

    def __init__(self, folder: Path, url: str, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.folder = folder
        self.url = url
        self.app = app
        self.loop = loop
        self.secrets: dict[str, str] = {}
        self.http = httpx.Client(timeout=PATIENCE_S)

    def do(self, coroutine: Any) -> Any:
        """Run something on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    @property
    def state(self) -> Any:
        return self.app.state.central

    def token(self, name: str, *roles: str, **more: Any) -> str:
        """A new token's secret."""
        made = self.do(self.state.access.create_token(name, {Role(role) for role in roles}, **more))
        secret: str = made[1]
        return secret

    def ask(self, method: str, path: str, *, role: str = "operations", secret: str = "", **more: Any) -> httpx.Response:
        """One request of a principal with this role, or with this secret."""
        if not secret:
            secret = self.secrets.setdefault(role, "") or self.token(f"somebody in {role}", role)
            self.secrets[role] = secret
        headers = {"Authorization": f"Bearer {secret}", **more.pop("headers", {})}
        return self.http.request(method, self.url + path, headers=headers, **more)

    def get(self, path: str, *, role: str = "operations", **parameters: Any) -> Any:
        """The document of an answer that must be 200."""
        answer = self.ask("GET", path, role=role, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def database(self) -> bytes:
        """Every byte of the database as it lies on the disk."""
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("central.db*")))

    def join(self, name: str) -> tuple[str, str]:
        """A registered service: its secret and its GUID."""
        secret = self.token(name, "service")
        answer = self.ask("POST", "/v1/services", secret=secret, json={"name": name})
        assert answer.status_code == 200, answer.text
        return secret, answer.json()["service_ledger_id"]

    def push(self, secret: str, rows: Sequence[LedgerEntry], *, drained: bool = False) -> httpx.Response:
        """A batch, as a shipper sends it."""
        body = gzip.compress(encode_batch(rows, drained=drained))
        return self.ask("POST", "/v1/entries", secret=secret, content=body, headers={"Content-Encoding": "gzip"})


@contextmanager
def central(folder: Path, *, port: int = 0, store_url: str | None = None, **settings: Any) -> Iterator[Central]:
    """Serve one, over ``central.db`` in the folder or another database, once it has started."""
    listener = socket.create_server(("127.0.0.1", port))
    ready: list[Central] = []
    started = threading.Event()
    stop = threading.Event()

    async def serve() -> None:
        store = await open_central(store_url or f"sqlite:///{folder}/central.db")
        app = create_app(store, management_key=KEY, **settings)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ready.append(Central(folder, url, app, asyncio.get_running_loop()))
        config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=2)
        server = AnnouncedServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await asyncio.to_thread(server.start_has_ended.wait)
        started.set()
        await asyncio.to_thread(stop.wait)
        server.stop()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield ready[0]
    finally:
        ready[0].http.close()
        stop.set()
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive()


def outcomes(answer: httpx.Response) -> list[str]:
    """What became of each row of a batch that was taken."""
    assert answer.status_code == 200, answer.text
    return [ack["outcome"] for ack in answer.json()["acks"]]
