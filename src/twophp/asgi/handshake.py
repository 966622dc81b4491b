"""One opted-in request: what it asks for, what becomes durable, what it is answered."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from hmac import compare_digest
from typing import Final

from msgspec.structs import replace

from twophp.asgi import answers
from twophp.asgi.messages import Answer, Disconnected, Receive, Scope, read_body, route_path, seen_path
from twophp.asgi.outgoing import acknowledgement
from twophp.asgi.prevalidation import prevalidated
from twophp.asgi.redirects import follows
from twophp.asgi.replay import Replay, live_scope, replayed_scope, stored_request, surroundings
from twophp.asgi.server import Server
from twophp.asgi.settings import LateConfirmGuard
from twophp.core.errors import Refused, StoreError, TwoPHPError, Unauthenticated, WireError
from twophp.core.identity import callback_digest, intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Mode, Phase
from twophp.core.machine import Goto
from twophp.core.phase import FINGERPRINT_MISMATCH, OTHER_IDENTITY, Confirm, Decision, Register
from twophp.core.policy import Policy
from twophp.core.quota import EXCEEDED
from twophp.engine.conditions import Conditions, ids_of, named
from twophp.engine.endpoints import Endpoint
from twophp.engine.exchange import StoredRequest, encode
from twophp.engine.execution import Answered, Execution, Settled, Work
from twophp.engine.identify import anonymous, authenticate
from twophp.engine.outbox import Owing
from twophp.engine.requests import Head, effective_scheme
from twophp.wire import fields
from twophp.wire.parse import PhaseOne, PhaseTwo, StatusRead, asks_for_status, parse
from twophp.wire.paths import bound_path, confirmed_path

log: Final = logging.getLogger("twophp.server")
audit: Final = logging.getLogger("twophp.audit")

NOT_SETTLED: Final = "not_settled"
CONFIRM_BODY_LIMIT: Final = 64 * 1024  # read and thrown away.
_READS: Final = frozenset({"GET", "HEAD"})
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_STANDARD, _ASYNC, _TRANSPARENT = Mode.STANDARD, Mode.ASYNC, Mode.TRANSPARENT


class NotRegistered(Exception):
    """A plain request could not be recorded; its cause says why, and nothing has run."""


class Handshake:
    """Answers requests for one server. Holds nothing between them: what must survive is in the store."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = server.settings
        self._executions = server.executions
        self._guard = server.settings.late_confirm_guard
        # Without a guard re-authentication is what is left, and Phase 2 has been through it, if there is anybody to
        # authenticate.
        self._unguarded = server.settings.identify is not anonymous
        self._said_that_tls_is_missing = False
        self._conditions = Conditions(log)
        self._times = server.observer.times
        self._seconds = asyncio.get_running_loop().time

    def answer(self, head: Head, scope: Scope, receive: Receive) -> Awaitable[Answer | None] | None:
        """What answers it, or None if the request is the application's alone. Checks stand in the order of T1.

        No coroutine: whatever does not wait is over before the first one begins, and none waits in vain.
        """
        settings, seen = self._settings, seen_path(scope)
        if self._executions.around is None:  # No lifespan came by, as inside a mount: a live request has to tell.
            self._executions.around = surroundings(scope)
        endpoint = settings.endpoints.match(head.method, seen)
        if head.method in _READS:
            if not asks_for_status(scope["headers"]):
                return None
        elif not self._is_ours(head.method, seen, endpoint):
            return None
        if not settings.allow_insecure and effective_scheme(head, settings.proxies) != "https":
            self._say_once_that_tls_is_missing()
            raise WireError("two-phase requests need TLS", code="tls_required")  # T1 row 1
        principal = authenticate(settings.identify, head)  # T1 row 2
        if isinstance(principal, str):
            return self._asked(head, endpoint, principal, scope, receive)
        return self._asked_by(principal, head, endpoint, scope, receive)

    def _say_once_that_tls_is_missing(self) -> None:
        if not self._said_that_tls_is_missing:
            self._said_that_tls_is_missing = True
            log.warning("a two-phase request came without TLS; if a proxy ends it, name that in trusted_proxies=")

    async def _asked_by(
        self,
        principal: Awaitable[str],
        head: Head,
        endpoint: Endpoint | None,
        scope: Scope,
        receive: Receive,
    ) -> Answer | None:
        answer = self._asked(head, endpoint, await principal, scope, receive)
        return None if answer is None else await answer

    def _asked(
        self, head: Head, endpoint: Endpoint | None, principal: str, scope: Scope, receive: Receive
    ) -> Awaitable[Answer | None] | None:
        settings, path = self._settings, route_path(scope, head.path)
        asked = parse(
            head.method,
            path,
            scope["headers"],
            suffix=settings.confirm_suffix,
            methods=settings.methods,
            strict_uuid=settings.strict_uuid,
        )  # T1 row 3
        match asked:
            case PhaseOne() if head.method == "POST" and self._only_confirms(seen_path(scope), endpoint):
                missing = fields.SERVER_CORRELATION_ID.name
                raise WireError("a confirm without a server id", code="missing_field", field=missing)
            case PhaseOne() if endpoint is not None:
                return self._register(asked, head, principal, scope, receive, endpoint)
            case PhaseTwo():
                return self._phase_two(asked, head, principal, scope, receive)
            case StatusRead():
                return self._status_read(asked, path, principal, scope)
            case _:
                return None

    async def transparent(self, endpoint: Endpoint, head: Head, scope: Scope, receive: Receive) -> Answer:
        """A plain request to an endpoint whose policy records everything (A-37).

        Raises NotRegistered when it could not be recorded: nothing has run, and it is the application's alone.
        """
        asked = PhaseOne(
            path=bound_path(route_path(scope, head.path)),
            mode=Mode.TRANSPARENT,
            client_correlation_id=None,
            callback=None,
            requested_ttl_ms=None,
        )
        try:
            principal = await self._whoever(head)
            body = await read_body(head, receive, self._settings.max_body_bytes, self._settings.body_timeout_s)
            request, registering = self._registering(
                asked, head, principal, scope, body, endpoint.policy, is_plain=True
            )
            decision = await registering
        except Disconnected:  # Half a body is no request to register; the application may care.
            raise NotRegistered from WireError("the client left before the end of its request", code="body_broken_off")
        except TwoPHPError as error:
            raise NotRegistered from error
        self._keep_at_hand(request, decision)
        return await self._run_plain(_intent_of(decision), scope)

    async def _whoever(self, head: Head) -> str:
        """Whether a plain request may pass is the application's to say; the ledger only notes who it seemed to be."""
        try:
            principal = authenticate(self._settings.identify, head)
            return principal if isinstance(principal, str) else await principal
        except Unauthenticated:
            return principal_digest("unidentified", "", "plain")

    def _is_ours(self, method: str, path: str, endpoint: Endpoint | None) -> bool:
        """Whether it may register or confirm what is enrolled. A confirm is a POST, whatever it confirms (A-01)."""
        if method not in self._settings.methods:
            return method == "POST" and self._is_confirm_path(path)
        return endpoint is not None or self._is_confirm_path(path)

    def _only_confirms(self, path: str, endpoint: Endpoint | None) -> bool:
        """Whether a POST there can be nothing but a confirm: a key that spells the path out makes it a resource."""
        suffix = self._settings.confirm_suffix
        named = endpoint is not None and endpoint.names(path.removesuffix("/"), suffix)
        return not named and self._is_confirm_path(path)

    def _is_confirm_path(self, path: str) -> bool:
        settings = self._settings
        match, target = settings.endpoints.match, confirmed_path(path.removesuffix("/"), settings.confirm_suffix)
        return target is not None and any(match(method, target or "/") for method in settings.methods)

    async def _register(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, receive: Receive, endpoint: Endpoint
    ) -> Answer:
        policy, began = endpoint.policy, self._seconds() if self._times else 0.0
        body = await read_body(head, receive, self._settings.max_body_bytes, self._settings.body_timeout_s)
        refusal: TwoPHPError | None = None
        if self._settings.prevalidate is not None:
            try:
                await prevalidated(self._settings.prevalidate, head, body)
            except TwoPHPError as error:
                refusal = error
        register = partial(self._registering, asked, head, principal, scope, body, policy, refusal=refusal)
        request, registering = register()
        decision = await registering
        if decision.code == FINGERPRINT_MISMATCH and await follows(self._server, decision.intent, head, scope):
            request, registering = register(follows=_intent_of(decision).server_correlation_id)
            decision = await registering
        self._keep_at_hand(request, decision)
        code = decision.code
        if code is not None:
            over = decision.verdict is EXCEEDED  # Room comes with the next one that ends or expires.
            return answers.refused(code, retry_after_s=answers.RETRY_AFTER_S if over else None)
        intent = _intent_of(decision)
        if intent.mode in CONFIRMED_BY_SERVER:
            answer = await self._confirmed_by_server(decision, intent, scope)
            if self._times:
                self._server.observer.answered(2, intent, self._seconds() - began)  # It waited for the handler.
            return answer
        if self._times:
            self._server.observer.answered(1, intent, self._seconds() - began)
        exposed = policy.replay if self._settings.expose_replay_policy else None
        ttl_ms = intent.ttl_ms
        if not isinstance(decision.verdict, Goto):
            ttl_ms = max(intent.deadline_at - self._server.store.now(), 1)
        return answers.registered(intent, ttl_ms, head.by_wall(intent.deadline_at), expose_policy=exposed)

    def _keep_at_hand(self, request: StoredRequest, decision: Decision) -> None:
        """What was registered just now will most likely be confirmed here. Nobody else may fill that memory."""
        if isinstance(decision.verdict, Goto):
            self._executions.expect(_intent_of(decision).server_correlation_id, request)

    def _registering(
        self,
        asked: PhaseOne,
        head: Head,
        principal: str,
        scope: Scope,
        body: bytes,
        policy: Policy,
        *,
        is_plain: bool = False,
        refusal: TwoPHPError | None = None,
        follows: str = "",
    ) -> tuple[StoredRequest, Awaitable[Decision]]:
        """What is kept of the request, and the one change that makes an intent durable (draft §9.5)."""
        command = self._register_command(asked, head, principal, scope, body, policy)
        if is_plain or follows:
            command = replace(command, is_plain=is_plain, follows=follows)
        request = stored_request(head, scope, body, self._settings.stored_headers)
        register = partial(self._server.intents.register, command, encode(request), policy, refusal=refusal)
        if command.mode not in CONFIRMED_BY_SERVER:
            return request, register()
        return request, self._registered_by_server(register, asked.callback, principal, scope)

    async def _registered_by_server(
        self, register: Callable[..., Awaitable[Decision]], callback: str | None, principal: str, scope: Scope
    ) -> Decision:
        """Registered and confirmed at once: whoever is cut off from here on may have crossed the point of no return."""
        if callback is not None:
            register = partial(self._registered_and_owed, register, self._owed(callback, principal))
        try:
            return await register()
        except asyncio.CancelledError:
            self._go_on_without_it(partial(register, again=True), scope)
            raise

    async def _registered_and_owed(
        self, register: Callable[..., Awaitable[Decision]], owed: Owing, *, again: bool = False
    ) -> Decision:
        decision = await register(follow=owed, again=again)
        # draft §5.5.3: it fires before processing begins; nothing waits for the network.
        starting = owed.start(decision, barrier=self._settings.outgoing.fire_barrier)
        if not isinstance(decision.verdict, Goto):
            await starting
            return decision
        with self._executions.kept_alive(_intent_of(decision)):  # Nobody here may take it for left behind meanwhile.
            await starting
        return decision

    def _go_on_without_it(self, decide: Callable[[], Awaitable[Decision]], scope: Scope) -> None:
        """A request was cut off while its go-ahead became durable: nobody else would act on it (A-107)."""
        self._executions.see_to(self._begun_after_all(decide, scope))

    async def _begun_after_all(self, decide: Callable[[], Awaitable[Decision]], scope: Scope) -> None:
        try:
            decision = await decide()  # Once more, since the first answer is lost; it tells whether it is ours.
        except TwoPHPError as error:
            self._conditions.known(logging.WARNING, "a request that was cut off cannot be gone on with", error=error)
            return
        if isinstance(decision.verdict, Goto):
            self._begin(_intent_of(decision), scope)

    def _owed(self, callback: str, principal: str) -> Owing:
        """The acknowledgement of an auto-confirmed request; one that may not go out is refused once it is owed."""
        may_go_out = self._settings.outgoing.lets_out(callback, principal)
        return acknowledgement(self._server.outbox, callback, principal, may_go_out=may_go_out)

    def _register_command(
        self, asked: PhaseOne, head: Head, principal: str, scope: Scope, body: bytes, policy: Policy
    ) -> Register:
        server = self._server
        client_id = asked.client_correlation_id or server.mint()  # a proxy stands in for what is missing.
        query: bytes = scope.get("query_string", b"")
        mode = _ASYNC if asked.mode is _STANDARD and policy.mode == "async" else asked.mode
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
            service_endpoint=f"{self._settings.service}{bound_path(head.path) or '/'}",
            path=asked.path,
            method=head.method,
            arrived_at=head.received_at,
            requested_ttl_ms=asked.requested_ttl_ms,
            callback="" if asked.callback is None else callback_digest(asked.callback),
            client_id_is_proxy=asked.client_correlation_id is None,
            owner=server.owner,
            request_digest=payload,
        )

    async def _confirmed_by_server(self, decision: Decision, intent: Intent, scope: Scope) -> Answer:
        """Auto-confirm and transparent (draft §5.5): the same channel brings the final answer."""
        if isinstance(decision.verdict, Goto):
            return await self._run(intent, scope)
        settled = await self._outcome(intent)
        if settled is None:
            return answers.refused("still_processing", retry_after_s=answers.RETRY_AFTER_S)  # T2 row 2
        return self._final(settled)

    async def _phase_two(
        self, asked: PhaseTwo, head: Head, principal: str, scope: Scope, receive: Receive
    ) -> Answer | None:
        began, server, guard = self._seconds() if self._times else 0.0, self._server, self._guard
        await read_body(head, receive, CONFIRM_BODY_LIMIT, self._settings.body_timeout_s)
        recalled = self._executions.recall(asked.server_correlation_id)
        if recalled is not None and self._may_be_repeated(recalled.intent, asked, head, principal):
            server.observer.replayed(recalled.intent)
            return self._final(recalled)
        command = Confirm(
            client_correlation_id=asked.client_correlation_id,
            server_correlation_id=asked.server_correlation_id,
            principal=principal,
            path=asked.path,
            arrived_at=head.received_at,
            owner=server.owner,
            guard_passed=self._unguarded if guard is None else await self._guard_passes(guard, asked, head),
            provisional_resource_id=server.mint(),
        )
        try:
            decision = await server.intents.confirm(command, server.policy_of)
        except asyncio.CancelledError:
            self._go_on_without_it(partial(server.intents.confirm, command, server.policy_of, again=True), scope)
            raise
        code = decision.code
        if code is not None:
            if code == OTHER_IDENTITY:
                _audit("confirm", _intent_of(decision))
            return answers.refused(code)
        intent = _intent_of(decision)
        if isinstance(decision.verdict, Goto) and intent.mode is not _ASYNC:
            answer = await self._run(intent, scope)
        else:
            answer = await self._told_later(decision, intent, scope)
        if self._times:
            server.observer.answered(2, intent, self._seconds() - began)
        return answer

    def _may_be_repeated(self, intent: Intent, asked: PhaseTwo, head: Head, principal: str) -> bool:
        """Whether a recent outcome may be told without a transaction (T1 rows 6 and 7): what is settled stays so."""
        policy = self._server.policy_of(intent)
        forgotten_at = (intent.settled_at or 0) + policy.horizon_ms
        return (
            compare_digest(intent.client_correlation_id, asked.client_correlation_id)
            and intent.path == asked.path
            and compare_digest(intent.principal, principal)
            and not policy.literal_ttl_reject
            and head.received_at < forgotten_at
        )

    async def _told_later(self, decision: Decision, intent: Intent, scope: Scope) -> Answer:
        """A confirm whose request does not run the handler itself: asynchronous, or not the first (T1 row 8)."""
        if isinstance(decision.verdict, Goto):
            self._begin(intent, scope)
        elif intent.phase is not Phase.PROCESSING or intent.mode is not _ASYNC:
            settled = await self._outcome(intent)
            if settled is not None:
                return self._final(settled)
        return answers.accepted(intent, scope.get("root_path", ""))

    async def _outcome(self, intent: Intent) -> Settled | None:
        """How an intent that somebody executes, or has executed, ends; None if that takes too long."""
        try:
            return await self._server.outcome(intent)
        except StoreError as error:
            raise _not_settled() from error

    async def _guard_passes(self, guard: LateConfirmGuard, asked: PhaseTwo, head: Head) -> bool:
        """A-24. The guard looks at the intent, so it costs a look; only services that have one pay for it."""
        intent = await self._server.intents.look(asked.client_correlation_id, asked.server_correlation_id)
        if intent is None:
            return False
        try:
            passed = guard(head, intent)
            return (await passed if inspect.isawaitable(passed) else passed) is True
        except Exception:
            message = "the late-confirm guard failed, and lets nobody in (%s)"
            log.exception(message, named(intent), extra=ids_of(intent))
            return False

    async def _status_read(self, asked: StatusRead, path: str, principal: str, scope: Scope) -> Answer:
        server = self._server
        intent = await server.intents.look(asked.client_correlation_id, asked.server_correlation_id)
        if intent is None or not answers.is_about(intent, path):
            raise Refused("no such intent", code="unknown_intent")
        if not compare_digest(intent.principal, principal):
            _audit("status read", intent)
            raise Refused("another identity's intent", code=OTHER_IDENTITY)
        settled = await self._executions.settled(intent) if answers.has_outcome(intent) else None
        return answers.status_read(intent, settled, scope.get("root_path", ""), server.store.now())

    def _final(self, settled: Settled) -> Answer:
        if settled.wording is None:
            settled.wording = self._worded(settled)
        answer: Answer = settled.wording
        return answer

    def _worded(self, settled: Settled) -> Answer:
        intent, settings = settled.intent, self._settings
        if intent.mode is _TRANSPARENT and settings.expose_server_id:  # draft §5.5.6: MAY
            return answers.as_it_is(settled.response, server_correlation_id=intent.server_correlation_id)
        return answers.final(settled, passthrough=settings.success_status == "passthrough")

    def _begin(self, intent: Intent, scope: Scope) -> Execution:
        """Run the application."""

        def handler(work: Work, answered: Answered) -> Awaitable[None]:
            if intent.mode in CONFIRMED_BY_SERVER:
                app_scope = live_scope(scope, work)
            else:
                app_scope = replayed_scope(scope, work, self._settings.stored_headers)
            return Replay(self._server.app, app_scope, work.request.body, answered).run()

        return self._executions.begin(intent, handler)

    async def _run(self, intent: Intent, scope: Scope) -> Answer:
        """Past the point of no return. A client that leaves cancels the waiting, never the work (A-107)."""
        execution = self._begin(intent, scope)
        try:
            settled = await execution.outcome("usual")
        except StoreError as error:
            raise _not_settled() from error
        if intent.mode is _TRANSPARENT and execution.said is None and execution.raised is not None:
            raise execution.raised  # To a client that changed nothing, as it always was: its server's to answer.
        return replace(self._final(settled), run=execution)

    async def _run_plain(self, intent: Intent, scope: Scope) -> Answer:
        """A plain request, recorded. If its outcome cannot be, that is our trouble and not the caller's (A-37)."""
        execution = self._begin(intent, scope)
        try:
            settled: Settled | None = await execution.outcome("short")
        except StoreError as error:
            if execution.said is None and execution.raised is None:
                raise NotRegistered from error  # Not even begun: the application can still have it.
            if execution.running.statements:  # The business rows were to be written with it, and are not.
                raise _not_settled() from error
            self._conditions.known(
                logging.ERROR, "the outcome of a plain request is not recorded yet", error=error, intent=intent
            )
            settled = None
        if execution.said is None and execution.raised is not None:
            raise execution.raised
        response = execution.said if settled is None else settled.response
        assert response is not None
        # Not what was said, if the business rows were refused.
        return replace(answers.as_it_is(response), run=execution)


def _not_settled() -> Refused:
    """A-108: something has run, so a store that cannot say how it ended is no 503 with nothing registered."""
    return Refused("the outcome is not durable yet", code=NOT_SETTLED)


def _audit(what: str, intent: Intent) -> None:
    """Somebody holds both ids of another's intent (draft §13.2): the state stays, and the line is for a person."""
    message = "%s by another identity was refused: %s (%s)"
    audit.warning(message, what, intent.service_endpoint, named(intent), extra=ids_of(intent))


def _intent_of(decision: Decision) -> Intent:
    if decision.intent is None:
        raise TwoPHPError("a decision without an intent", code="internal")
    return decision.intent
