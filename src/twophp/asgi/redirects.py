"""A request that goes where an earlier one was sent: same id, same body, and the earlier one has done nothing (T2)."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from twophp.asgi.messages import Scope
from twophp.asgi.server import Server
from twophp.core.intent import Intent
from twophp.core.outcome import was_redirected
from twophp.engine.exchange import StoredRequest, StoredResponse, decode_request
from twophp.identity.head import Head


async def follows(server: Server, intent: Intent | None, head: Head, scope: Scope) -> bool:
    """Whether this request is for the Location that the intent was answered with. What was purged is not followed."""
    if intent is None or not was_redirected(intent):
        return False
    payload = await server.intents.payload(intent)
    if payload is None:
        return False
    settled = await server.executions.settled(intent)
    return leads_to(decode_request(payload), settled.response, head, scope.get("query_string", b""))


def leads_to(request: StoredRequest, response: StoredResponse, head: Head, query: bytes) -> bool:
    """Whether the answer to ``request`` sends its client to the request ``head``, on the same host."""
    location = next((value for name, value in response.headers if name.lower() == b"location"), None)
    host = _authority(head.headers.get("host", ""))
    if location is None:
        return False
    asked = request.raw_path.decode("latin-1") + "?" + request.query.decode("latin-1")
    try:
        found = urlsplit(urljoin(f"http://{host}{asked}", location.decode("latin-1").strip()))
    except ValueError:
        return False
    wanted = (host, head.path, query.decode("latin-1"))
    return (_authority(found.netloc), found.path or "/", found.query) == wanted


def _authority(netloc: str) -> str:
    """Host and port, without the port of either scheme: a proxy that ends TLS makes http of https."""
    return netloc.lower().removesuffix(":443").removesuffix(":80")
