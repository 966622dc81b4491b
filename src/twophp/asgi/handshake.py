"""One opted-in request: what it asks for, what becomes durable, what it is answered."""

from __future__ import annotations

import asyncio
import inspect
import logging
from hmac import compare_digest
from typing import Final

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Receive, Scope, read_body
from twophp.asgi.replay import Replay, replayed_scope, stored_request
from twophp.asgi.server import Server
from twophp.core.errors import Refused, TwoPHPError, Unauthenticated, WireError
from twophp.core.identity import intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Mode, Phase, by_pair
from twophp.core.machine import Goto
from twophp.core.phase import Confirm, Decision, Register
from twophp.core.policy import Policy
from twophp.engine.current import RunningIntent
from twophp.engine.endpoints import Endpoint
from twophp.engine.exchange import StoredResponse, encode
from twophp.engine.execution import Settled, Work
from twophp.engine.identify import authenticate
from twophp.engine.requests import Head, effective_scheme
from twophp.wire.parse import MUTATIONS, PhaseOne, PhaseTwo, Plain, StatusRead, parse
from twophp.wire.paths import bound_path, confirmed_path

log: Final = logging.getLogger("twophp.server")

CONFIRM_BODY_LIMIT: Final = 64 * 1024  # read and thrown away.
_READS: Final = frozenset({"GET", "HEAD"})


class NotRegistered(Exception):
    """A plain request could not be recorded; its cause says why, and nothing has run."""


class Handshake:
    """Answers requests for one server. Holds nothing between them: what must survive is in the store."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = server.settings

    async def answer(self, head: Head, scope: Scope, receive: Receive) -> Answer | None:
        """The answer, or None if the request is the application's alone. Checks stand in the order of T1."""
        settings = self._settings
        if head.method in _READS:
            if isinstance(parse(head.method, head.path, scope["headers"]), Plain):
                return None
        elif not self._is_enrolled(head):
            return None
        if not settings.allow_insecure and effective_scheme(head, settings.proxies) != "https":
            raise WireError("two-phase requests need TLS", code="tls_required")  # T1 row 1
        principal = await authenticate(settings.identify, head)  # T1 row 2
        asked = parse(
            head.method,
            head.path,
            scope["headers"],
            suffix=settings.confirm_suffix,
            strict_uuid=settings.strict_uuid,
        )  # T1 row 3
        match asked:
            case PhaseOne():
                return await self._phase_one(asked, head, principal, scope, receive)
            case PhaseTwo():
                return await self._phase_two(asked, head, principal, scope, receive)
            case StatusRead():
                return await self._status_read(asked, principal, scope)
            case _:
                return None

    async def transparent(self, endpoint: Endpoint, head: Head, scope: Scope, receive: Receive) -> Answer:
        """A plain request to an endpoint whose policy records everything (A-37).

        Raises NotRegistered when it could not be recorded: nothing has run, and it is the application's alone.
        """
        asked = PhaseOne(
            path=bound_path(head.path),
            mode=Mode.TRANSPARENT,
            client_correlation_id=None,
            callback=None,
            requested_ttl_ms=None,
        )
        try:
            principal = await self._whoever(head)
            decision = await self._registered(asked, head, principal, scope, receive, endpoint.policy)
        except TwoPHPError as error:
            raise NotRegistered from error
        return await self._run(_intent_of(decision), scope)

    async def _whoever(self, head: Head) -> str:
        """Whether a plain request may pass is the application's to say; the ledger only notes who it seemed to be."""
        try:
            return await authenticate(self._settings.identify, head)
        except Unauthenticated:
            return principal_digest("unidentified", "", "plain")

    def _is_enrolled(self, head: Head) -> bool:
        match = self._settings.endpoints.match
        if match(head.method, head.path) is not None:
            return True
        path = confirmed_path(head.path, self._settings.confirm_suffix)
        return path is not None and any(match(method, path or "/") for method in MUTATIONS)

    async def _phase_one(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, receive: Receive
    ) -> Answer | None:
        endpoint = self._settings.endpoints.match(head.method, head.path)
        if endpoint is None:
            return None
        return await self._register(asked, head, principal, scope, receive, endpoint)

    async def _register(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, receive: Receive, endpoint: Endpoint
    ) -> Answer:
        policy = endpoint.policy
        decision = await self._registered(asked, head, principal, scope, receive, policy)
        if decision.code is not None:
            return answers.refused(decision.code)
        intent = _intent_of(decision)
        if intent.mode in CONFIRMED_BY_SERVER:
            return await self._confirmed_by_server(decision, intent, scope)
        exposed = policy.replay if self._settings.expose_replay_policy else None
        left_ms = max(intent.deadline_at - self._server.store.now(), 1)
        ttl_ms = intent.ttl_ms if isinstance(decision.verdict, Goto) else left_ms
        return answers.registered(intent, ttl_ms, expose_policy=exposed)

    async def _registered(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, receive: Receive, policy: Policy
    ) -> Decision:
        """The one change that makes an intent durable (draft §9.5)."""
        body = await read_body(head, receive, self._settings.max_body_bytes)
        await self._prevalidate(head, body)
        command = self._register_command(asked, head, principal, scope, body, policy)
        request = stored_request(scope, body, self._settings.stored_headers)
        decision = await self._server.intents.register(command, encode(request), policy)
        if isinstance(decision.verdict, Goto):
            self._server.executions.expect(_intent_of(decision), request)
        return decision

    async def _prevalidate(self, head: Head, body: bytes) -> None:
        if self._settings.prevalidate is None:
            return
        verdict = self._settings.prevalidate(head, body)
        if inspect.isawaitable(verdict):
            await verdict

    def _register_command(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, body: bytes, policy: Policy
    ) -> Register:
        server = self._server
        client_id = asked.client_correlation_id or server.mint()  # a proxy stands in for what is missing.
        query: bytes = scope.get("query_string", b"")
        mode = Mode.ASYNC if asked.mode is Mode.STANDARD and policy.mode == "async" else asked.mode
        target = f"{head.path}?{query.decode('latin-1')}"
        payload = payload_digest(head.headers.get("content-type", ""), body)
        return Register(
            client_correlation_id=client_id,
            server_correlation_id=server.mint(),
            principal=principal,
            replay_key=intent_replay_key(
                principal=principal,
                client_correlation_id=client_id,
                method=head.method,
                target=target,
                payload=payload,
            ),
            mode=mode,
            service_endpoint=f"{self._settings.service}{asked.path or '/'}",
            path=asked.path,
            method=head.method,
            arrived_at=head.received_at,
            requested_ttl_ms=asked.requested_ttl_ms,
            callback=asked.callback or "",
            client_id_is_proxy=asked.client_correlation_id is None,
            owner=server.owner,
        )

    async def _confirmed_by_server(self, decision: Decision, intent: Intent, scope: Scope) -> Answer:
        """Auto-confirm and transparent (draft §5.5): the same channel brings the final answer."""
        if isinstance(decision.verdict, Goto):
            return await self._run(intent, scope)
        settled = await self._server.executions.outcome(intent, self._settings.replay_wait_ms)
        if settled is None:
            return answers.refused("still_processing", retry_after_s=answers.RETRY_AFTER_S)  # T2 row 2
        return answers.final(settled, passthrough=True)

    async def _phase_two(
        self, asked: PhaseTwo, head: Head, principal: str, scope: Scope, receive: Receive
    ) -> Answer | None:
        await read_body(head, receive, CONFIRM_BODY_LIMIT)
        server = self._server
        recalled = self._recalled(asked, head, principal)
        if recalled is not None:
            return recalled
        command = Confirm(
            client_correlation_id=asked.client_correlation_id,
            server_correlation_id=asked.server_correlation_id,
            principal=principal,
            path=asked.path,
            arrived_at=head.received_at,
            owner=server.owner,
            guard_passed=await self._guard_passes(asked, head),
            provisional_resource_id=server.mint(),
        )
        decision = await server.intents.confirm(command, server.policy_of)
        if decision.code is not None:
            return answers.refused(decision.code)
        return await self._after_confirm(decision, _intent_of(decision), scope)

    def _recalled(self, asked: PhaseTwo, head: Head, principal: str) -> Answer | None:
        """The replay of a recent outcome (T1 rows 6 and 7), without a transaction: what is settled stays so."""
        settled = self._server.executions.recall(by_pair(asked.client_correlation_id, asked.server_correlation_id))
        if settled is None:
            return None
        intent, policy = settled.intent, self._server.policy_of(settled.intent)
        forgotten_at = (intent.settled_at or 0) + policy.horizon_ms
        mine = intent.path == asked.path and compare_digest(intent.principal, principal)
        if not mine or policy.literal_ttl_reject or head.received_at >= forgotten_at:
            return None
        return answers.final(settled, passthrough=self._passthrough)

    async def _after_confirm(self, decision: Decision, intent: Intent, scope: Scope) -> Answer:
        root_path = scope.get("root_path", "")
        if isinstance(decision.verdict, Goto):
            if intent.mode is Mode.ASYNC:
                running, _task = self._begin(intent, scope)
                return answers.accepted(intent, running.provisional_resource_id, root_path)
            return await self._run(intent, scope)
        if intent.phase is Phase.PROCESSING and intent.mode is Mode.ASYNC:
            return answers.accepted(intent, intent.resource_id or intent.server_correlation_id, root_path)
        settled = await self._server.executions.outcome(intent, self._settings.replay_wait_ms)
        if settled is None:  # T1 row 8
            return answers.accepted(intent, intent.resource_id or intent.server_correlation_id, root_path)
        return answers.final(settled, passthrough=self._passthrough)

    async def _guard_passes(self, asked: PhaseTwo, head: Head) -> bool:
        """A-24. The guard looks at the intent, so it costs a look; only services that have one pay for it."""
        guard = self._settings.late_confirm_guard
        if guard is None:
            return True  # Re-authentication is what is left, and Phase 2 has just been through it.
        intent = await self._server.intents.look(asked.client_correlation_id, asked.server_correlation_id)
        return intent is not None and guard(head, intent)

    async def _status_read(self, asked: StatusRead, principal: str, scope: Scope) -> Answer:
        server = self._server
        intent = await server.intents.look(asked.client_correlation_id, asked.server_correlation_id)
        if intent is None:
            raise Refused("no such intent", code="unknown_intent")
        if intent.principal != principal:
            raise Refused("another identity's intent", code="other_identity")
        settled = await server.executions.settled(intent) if answers.has_outcome(intent) else None
        return answers.status_read(intent, settled, scope.get("root_path", ""))

    @property
    def _passthrough(self) -> bool:
        return self._settings.success_status == "passthrough"

    def _begin(self, intent: Intent, scope: Scope) -> tuple[RunningIntent, asyncio.Task[Settled]]:
        async def handler(work: Work) -> StoredResponse:
            app_scope = replayed_scope(scope, work, self._settings.stored_headers)
            return await Replay(self._server.app, app_scope, work.request.body).run()

        return self._server.executions.begin(intent, handler)

    async def _run(self, intent: Intent, scope: Scope) -> Answer:
        """Past the point of no return. A client that leaves cancels the waiting, never the work (A-107)."""
        _running, task = self._begin(intent, scope)
        settled = await asyncio.shield(task)
        passthrough = self._passthrough or intent.mode in CONFIRMED_BY_SERVER
        return answers.final(settled, passthrough=passthrough)


def _intent_of(decision: Decision) -> Intent:
    if decision.intent is None:
        raise TwoPHPError("a decision without an intent", code="internal")
    return decision.intent
