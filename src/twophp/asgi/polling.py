"""Reads without the opt-in, as a literal reader of draft §5.3.3 makes them (A-04).

    GET /_2php/intents/{server id}       the Location of a 202: ours alone
    GET <path>/{provisional id}          the resource endpoint of an asynchronous one: the application's, but for what
                                         only we can say: that it is PROCESSING, that it FAILED, that it is COMMITTED

The provisional id is the server correlation id. Only the intent's own identity gets its state. To any other, the first
address answers 404, and the second is the application's.
"""

from __future__ import annotations

from hmac import compare_digest
from inspect import isawaitable
from typing import Final
from urllib.parse import unquote

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Message, Scope, Send, seen_path
from twophp.asgi.server import Server
from twophp.core.errors import Refused, StoreError, Unauthenticated, WireError
from twophp.core.intent import Intent, Phase
from twophp.engine.endpoints import Endpoints
from twophp.identity.head import Head, effective_scheme
from twophp.identity.identify import authenticate
from twophp.wire import emit

READS: Final = frozenset({"GET", "HEAD"})
PROVISIONAL_CHARS: Final = 36
"""The length of our server ids, which are UUIDs. A last segment of another length is never looked up."""
_SAID_BY_US: Final = frozenset({Phase.PROCESSING, Phase.FAILED, Phase.COMMITTED})


class Polls:
    """Which reads are looked at: decided by the path alone, before anything is opened."""

    def __init__(self, endpoints: Endpoints, methods: frozenset[str]) -> None:
        self._match = endpoints.match
        self._methods = methods
        # Whether any other path than our own is ever looked at.
        self.is_needed = any(endpoint.policy.mode == "async" for endpoint in endpoints)

    def may_be_one(self, scope: Scope) -> bool:
        """Whether a GET or HEAD may ask how an intent stands. An ordinary one costs two comparisons."""
        path: str = scope["path"]
        if answers.STATUS_PATH in path:
            return seen_path(scope).startswith(answers.STATUS_PATH)
        if not self.is_needed or path[-PROVISIONAL_CHARS - 1 : -PROVISIONAL_CHARS] != "/":
            return False
        endpoint_of, above = self._match, seen_path(scope)[: -PROVISIONAL_CHARS - 1]
        found = (endpoint_of(method, above) for method in self._methods)
        return any(endpoint is not None and endpoint.policy.mode == "async" for endpoint in found)


async def status_of(server: Server, head: Head, scope: Scope) -> Answer | Intent | None:
    """The answer; or a committed intent whose resource the application is to show; or None: the application answers.

    Errors are raised for our own address alone.
    """
    path = seen_path(scope)
    if path.startswith(answers.STATUS_PATH):
        intent = await _own(server, head, path.removeprefix(answers.STATUS_PATH))
        if intent is None:
            raise Refused("no such intent", code="unknown_intent")
        return await _told(server, intent, scope)
    above, named = path[: -PROVISIONAL_CHARS - 1], path[-PROVISIONAL_CHARS:]
    try:
        intent = await _own(server, head, named)
        if intent is None or intent.phase not in _SAID_BY_US or unquote(intent.path) != above:
            return None
        if intent.phase is Phase.COMMITTED and intent.resource_id == named:
            return intent
        return await _told(server, intent, scope)
    except (StoreError, Unauthenticated, WireError):
        return None


async def _own(server: Server, head: Head, server_correlation_id: str) -> Intent | None:
    """The intent, if it belongs to the identity of this request."""
    settings = server.settings
    if not settings.allow_insecure and effective_scheme(head, settings.proxies) != "https":
        raise WireError("two-phase requests need TLS", code="tls_required")
    principal = authenticate(settings.identify, head)
    if isawaitable(principal):
        principal = await principal
    intent = await server.look(server_correlation_id)
    return intent if intent is not None and compare_digest(intent.principal, principal) else None


async def _told(server: Server, intent: Intent, scope: Scope) -> Answer:
    settled = await server.executions.settled(intent) if answers.has_outcome(intent) else None
    return answers.status_read(intent, settled, scope.get("root_path", ""), server.store.now())


def saying_committed(send: Send, intent: Intent) -> Send:
    """The application's own answer about its resource, with the state that its reader waits for."""
    own = emit.final_answer(phase=intent.phase, resource_id=intent.resource_id, app_sets_caching=True)

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return sending
