"""What a browser needs to read our fields (A-19): by default it shows a script none of them.

Preflights are the application's, or its CORS middleware's, and are left alone. That middleware takes the two lists:

    app.add_middleware(CORSMiddleware, allow_headers=[..., *CORS_ALLOW_HEADERS], expose_headers=CORS_EXPOSE_HEADERS)

Where no CORS middleware can take the second list, ``ExposeFields`` around the whole application adds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twophp.asgi.messages import App, Message, Receive, Scope, Send
from twophp.wire.fields import BY_KEY, CORS_ALLOW_HEADERS, CORS_EXPOSE_HEADERS

__all__ = ["CORS_ALLOW_HEADERS", "CORS_EXPOSE_HEADERS", "ExposeFields"]

_EXPOSE: Final = (b"access-control-expose-headers", ", ".join(CORS_EXPOSE_HEADERS).encode())


class ExposeFields:
    """Adds the expose list to each answer that carries our fields and goes to another origin's script."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; without an ``Origin`` it is untouched."""
        if scope["type"] != "http" or all(name != b"origin" for name, _value in scope["headers"]):
            await self.app(scope, receive, send)
            return

        async def exposing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]  # ASGI lets an application leave them out.
                if _has_ours(headers):
                    message = {**message, "headers": [*headers, _EXPOSE]}
            await send(message)

        await self.app(scope, receive, exposing)


def _has_ours(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(bytes(name).lower() in BY_KEY for name, _value in headers)
