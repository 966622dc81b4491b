"""An application without a framework, whose every message is chosen here: what a byte-for-byte comparison needs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

Scope = dict[str, Any]


class RawApp:
    """Does one odd thing per path. ``seen`` notes what a test cannot see from outside."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.background_done = threading.Event()
        self.disconnected = threading.Event()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(receive, send)
        else:
            name = scope["path"].strip("/").replace("-", "_")
            await getattr(self, f"_{name}", self._everything)(scope, receive, send)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        for _ in range(2):
            event = (await receive())["type"]
            self.seen.append(event)
            await send({"type": f"{event}.complete"})

    async def _websocket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "orders", "headers": [(b"x-a", b"1"), (b"x-a", b"2")]})
        said = await receive()
        await send({"type": "websocket.send", "text": said["text"].upper()})
        await send({"type": "websocket.close", "code": 4001, "reason": "enough"})

    async def _everything(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer with all that was asked, in order and with repeats."""
        body = await whole_body(receive)
        echo = [scope["method"], scope["path"], scope["query_string"], scope["raw_path"], scope["headers"], body]
        text = "\n".join(map(repr, echo)).encode()
        await start(send, 200, (b"content-length", str(len(text)).encode()))
        await send({"type": "http.response.body", "body": text})

    async def _stream(self, _scope: Scope, _receive: Any, send: Any) -> None:
        await start(send, 200)
        for chunk in (b"one", b"", b"two" * 1_000, b"three"):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    async def _echo_chunks(self, _scope: Scope, receive: Any, send: Any) -> None:
        """Answer each piece of the request while the rest is still to come."""
        await start(send, 200)
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send({"type": "http.response.body", "body": b"<%s>" % message["body"], "more_body": True})
        await send({"type": "http.response.body"})

    async def _repeats(self, _scope: Scope, _receive: Any, send: Any) -> None:
        fields = [(b"set-cookie", b"a=1"), (b"x-same", b"2"), (b"set-cookie", b"b=2"), (b"x-same", b"1")]
        await start(send, 201, *fields, (b"content-length", b"0"), (b"dtt-2php-phase-state", b"the app's own"))
        await send({"type": "http.response.body"})

    async def _background(self, _scope: Scope, _receive: Any, send: Any) -> None:
        await start(send, 202, (b"content-length", b"0"))
        await send({"type": "http.response.body"})
        await asyncio.sleep(0)
        self.background_done.set()

    async def _until_gone(self, _scope: Scope, receive: Any, send: Any) -> None:
        await whole_body(receive)
        await start(send, 200)
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        self.seen.append((await receive())["type"])
        self.disconnected.set()

    async def _refuse_unread(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """An answer that wants none of the body: no 100 Continue may be sent."""
        await start(send, 413, (b"content-length", b"0"), (b"connection", b"close"))
        await send({"type": "http.response.body"})

    async def _boom(self, _scope: Scope, _receive: Any, _send: Any) -> None:
        raise ValueError("boom")


async def start(send: Any, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def whole_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
