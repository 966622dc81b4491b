"""One opted-in request: what it asks for, what becomes durable, and its answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hmac import compare_digest
from typing import Any, Final

from msgspec.structs import replace

from twophp.asgi import answers
from twophp.asgi.arrived import Arrived
from twophp.asgi.enrolled import Enrolled
from twophp.asgi.failures import audited, failed
from twophp.asgi.messages import (
    Answer,
    Disconnected,
    Receive,
    Scope,
    body_at_hand,
    head_of,
    raw_path,
    read_body,
    refuse_large,
    route_path,
    seen_path,
)
from twophp.asgi.outgoing import acknowledgement
from twophp.asgi.prevalidation import prevalidated
from twophp.asgi.redirects import follows
from twophp.asgi.replay import surroundings
from twophp.asgi.runs import NotRegistered, Runs, not_settled
from twophp.asgi.server import Server
from twophp.asgi.settings import LateConfirmGuard
from twophp.asgi.shapes import SEVERAL, Shape, Shapes
from twophp.core.errors import Refused, StoreError, TwoPHPError, Unauthenticated, WireError
from twophp.core.identity import callback_digest, intent_replay_key, payload_digest, principal_digest
from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Mode
from twophp.core.intent_commands import Confirm, Register
from twophp.core.machine import Goto, Refuse
from twophp.core.phase import FINGERPRINT_MISMATCH, OTHER_IDENTITY, IntentDecision
from twophp.core.policy import Policy
from twophp.core.records import Instant
from twophp.delivery.outbox import PendingAcknowledgement
from twophp.engine.endpoints import Endpoint
from twophp.engine.exchange import StoredRequest, encode
from twophp.engine.running import Settled
from twophp.identity.head import Head, Headers, effective_scheme
from twophp.identity.identify import ANONYMOUS, anonymous, authenticate, principal_of
from twophp.observability.conditions import Conditions, ids_of, named
from twophp.wire import fields
from twophp.wire.grammar import TRUE
from twophp.wire.parse import PhaseOne, PhaseTwo, Request, StatusRead, parse, parse_ordinary
from twophp.wire.paths import bound_path

log: Final = logging.getLogger("twophp.server")

CONFIRM_BODY_LIMIT: Final = 64 * 1024  # read and thrown away.
_CONFIRM_DIGITS: Final = len(str(CONFIRM_BODY_LIMIT))
# Bound once: Python 3.11 takes ten times as long to find an enum's member as to find a name.
_STANDARD, _ASYNC, _TRANSPARENT = Mode.STANDARD, Mode.ASYNC, Mode.TRANSPARENT


class Handshake:
    """Answers requests for one server. It holds no state between them: what must survive is in the store."""

    def __init__(self, server: Server, shapes: Shapes, conditions: Conditions) -> None:
        settings = server.settings
        self._runs = Runs(server)
        self._shapes = shapes
        self._server = server
        self._settings = settings
        self._executions = server.executions
        self._now = server.store.now
        self._guard = settings.late_confirm_guard
        # Without a guard, a late confirm needs re-authentication alone. Phase 2 has done that before, unless
        # every client is anonymous.
        self._unguarded = settings.identify is not anonymous
        self._everybody = principal_of(ANONYMOUS) if settings.identify is anonymous else None
        self._enrolled = Enrolled(settings)
        self._is_confirm = (settings.confirm_suffix, f"{settings.confirm_suffix}/")
        self._has_proxies = bool(settings.proxies.networks or settings.proxies.unix)
        self._fewer_digits = len(str(settings.max_body_bytes))  # A shorter number is a smaller one.
        suffix, methods, strict = settings.confirm_suffix, settings.methods, settings.strict_uuid
        self._parse: Callable[..., Request] = partial(parse, suffix=suffix, methods=methods, strict_uuid=strict)
        self._parse_ordinary = partial(parse_ordinary, suffix=suffix, methods=methods, strict_uuid=strict)
        self._said_that_tls_is_missing = False
        self._conditions = conditions
        self._times = server.observer.times
        self._seconds = asyncio.get_running_loop().time

    async def answered(self, scope: Scope, receive: Receive, shape: Shape) -> Answer | None:
        """The answer, or None if the request is the application's alone. Checks stand in the order of T1."""
        requests = self._server.requests
        requests.count += 1
        try:
            settings, method = self._settings, scope["method"]
            if self._executions.around is None:  # No lifespan, as inside a mount: take it from a live request.
                self._executions.around = surroundings(scope)
            root = scope.get("root_path")
            seen: str = seen_path(scope) if root else scope["path"]
            endpoint = settings.endpoints.match(method, seen)
            if (endpoint is None or method not in settings.methods) and not self._enrolled.asks(scope, seen, endpoint):
                return None
            arrived = Arrived(scope, method, raw_path(scope), shape, self._now())
            if not settings.allow_insecure and (self._has_proxies or scope.get("scheme") != "https"):
                self._refuse_without_tls(arrived)  # T1 row 1
            principal = self._everybody
            if principal is None:
                asking = authenticate(settings.identify, self._head(arrived))  # T1 row 2
                principal = asking if isinstance(asking, str) else await asking
                arrived.shape = self._shapes.of(scope["headers"])  # ``identify`` may have changed them.
            path = route_path(scope, arrived.path) if root else arrived.path
            asked = self._asked(arrived, path)  # T1 row 3
            kind = type(asked)
            if kind is PhaseTwo:
                return await self._phase_two(asked, arrived, principal, receive)
            if kind is not PhaseOne:
                return await self._status_read(asked, path, principal, scope) if kind is StatusRead else None
            if method == "POST" and seen.endswith(self._is_confirm) and self._enrolled.only_confirms(seen, endpoint):
                missing = fields.SERVER_CORRELATION_ID.name
                raise WireError("a confirm without a server id", code="missing_field", field=missing)
            return None if endpoint is None else await self._phase_one(asked, arrived, principal, receive, endpoint)
        except TwoPHPError as error:
            return failed(error, scope, self._conditions)
        finally:
            requests.count -= 1
            if requests.none_left is not None:
                requests.left()

    def _asked(self, arrived: Arrived, path: str) -> Any:
        """What the request asks for. An ordinary one is read by its fields' places, any other by all the rules."""
        shape, headers = arrived.shape, arrived.scope["headers"]
        if shape.asks and headers[shape.enabled][1] == TRUE:
            server_id = headers[shape.server_id][1] if shape.asks == "confirm" else None
            if asked := self._parse_ordinary(arrived.method, path, headers[shape.client_id][1], server_id):
                return asked
        return self._parse(arrived.method, path, headers)

    def _head(self, arrived: Arrived) -> Head:
        """What ``identify``, the guards and the hooks see of the request."""
        head = arrived.head
        if head is None:
            head = arrived.head = head_of(arrived.scope, arrived.at, self._server.store.wall_ahead_ms())
        return head

    def _refuse_without_tls(self, arrived: Arrived) -> None:
        if effective_scheme(self._head(arrived), self._settings.proxies) == "https":
            return
        if not self._said_that_tls_is_missing:
            self._said_that_tls_is_missing = True
            log.warning("a two-phase request came without TLS; if a proxy ends it, name that in trusted_proxies=")
        raise WireError("two-phase requests need TLS", code="tls_required")

    async def transparent(self, endpoint: Endpoint, scope: Scope, receive: Receive, shape: Shape) -> Answer:
        """A plain request to an endpoint whose policy records everything (A-37).

        Raises NotRegistered when it could not be recorded: nothing has run, and it is the application's alone.
        """
        arrived = Arrived(scope, scope["method"], raw_path(scope), shape, self._now())
        asked = _transparent(arrived, None)
        try:
            principal = self._everybody or await self._whoever(self._head(arrived))
            refuse_large(scope["headers"], self._settings.max_body_bytes)
            body = await read_body(receive, self._settings.max_body_bytes, self._settings.body_timeout_s)
            command, request = self._registration(asked, arrived, principal, body, endpoint.policy)
            command = replace(command, is_plain=True)
            decision = await self._registered_by_server(command, request, endpoint.policy, None, None, scope)
        except Disconnected:  # Half a body is no request to register; the application may care.
            raise NotRegistered from WireError("the client left before the end of its request", code="body_broken_off")
        except TwoPHPError as error:
            raise NotRegistered from error
        if isinstance(decision.verdict, Goto):
            self._executions.expect(command.server_correlation_id, request)
        return await self._runs.run_plain(_intent_of(decision), scope)

    async def keyed(self, key: str, endpoint: Endpoint, scope: Scope, receive: Receive, shape: Shape) -> Answer:
        """A plain request with an Idempotency-Key: registered and confirmed under that id in one change (ADR 48).

        Its client has asked for the guarantee, so a request that cannot be registered does not run.
        """
        arrived = Arrived(scope, scope["method"], raw_path(scope), shape, self._now(), is_keyed=True)
        try:
            if not self._settings.allow_insecure and (self._has_proxies or scope.get("scheme") != "https"):
                self._refuse_without_tls(arrived)
            principal = self._everybody
            if principal is None:
                asking = authenticate(self._settings.identify, self._head(arrived))
                principal = asking if isinstance(asking, str) else await asking
                arrived.shape = self._shapes.of(scope["headers"])
            return await self._phase_one(_transparent(arrived, key), arrived, principal, receive, endpoint)
        except TwoPHPError as error:
            return failed(error, scope, self._conditions)

    async def _whoever(self, head: Head) -> str:
        """The identity of a plain request, for the ledger alone. The application decides whether it may pass."""
        try:
            principal = authenticate(self._settings.identify, head)
            return principal if isinstance(principal, str) else await principal
        except Unauthenticated:
            return principal_digest("unidentified", "", "plain")

    async def _phase_one(
        self, asked: PhaseOne, arrived: Arrived, principal: str, receive: Receive, endpoint: Endpoint
    ) -> Answer:
        """Draft §5.2: read the body, make the intent durable, answer (T2)."""
        settings, policy, scope = self._settings, endpoint.policy, arrived.scope
        began = self._seconds() if self._times else 0.0
        at = arrived.shape.content_length
        if at == SEVERAL or (at >= 0 and len(scope["headers"][at][1]) >= self._fewer_digits):
            refuse_large(scope["headers"], settings.max_body_bytes)
        body = body_at_hand(receive, settings.max_body_bytes, settings.body_timeout_s)
        if not isinstance(body, bytes):
            body = await body
        refusal: TwoPHPError | None = None
        if settings.prevalidate is not None:
            try:
                await prevalidated(settings.prevalidate, self._head(arrived), body)
            except TwoPHPError as error:
                refusal = error
        command, request = self._registration(asked, arrived, principal, body, policy)
        if command.mode in CONFIRMED_BY_SERVER:
            return await self._auto_confirmed(command, request, policy, refusal, asked.callback, arrived, began)
        register = self._server.intents.register
        decision = await register(command, encode(request), policy, refusal=refusal)
        if type(decision.verdict) is Refuse and await self._follows(decision, arrived):
            command = replace(command, follows=_intent_of(decision).server_correlation_id)
            decision = await register(command, encode(request), policy, refusal=refusal)
        intent = decision.intent
        if type(decision.verdict) is Goto and intent is not None:
            ttl_ms = intent.ttl_ms
            # It will most likely be confirmed here. Only a new registration may fill that memory.
            self._executions.expect(intent.server_correlation_id, request)
        elif type(decision.verdict) is Refuse:
            return arrived.refused_by(decision)
        else:
            intent = _intent_of(decision)
            ttl_ms = max(intent.deadline_at - self._now(), 1)
        if self._times:
            self._server.observer.answered(1, intent, self._seconds() - began)
        exposed = policy.replay if settings.expose_replay_policy else None
        deadline_at = intent.deadline_at + self._server.store.wall_ahead_ms()
        return answers.registered(intent, ttl_ms, deadline_at, expose_policy=exposed)

    async def _auto_confirmed(
        self,
        command: Register,
        request: StoredRequest,
        policy: Policy,
        refusal: TwoPHPError | None,
        callback: str | None,
        arrived: Arrived,
        began: float,
    ) -> Answer:
        """Auto-confirm and transparent (draft §5.5): the answer to this request is the final one."""
        scope = arrived.scope
        decision = await self._registered_by_server(command, request, policy, refusal, callback, scope)
        if await self._follows(decision, arrived):
            command = replace(command, follows=_intent_of(decision).server_correlation_id)
            decision = await self._registered_by_server(command, request, policy, refusal, callback, scope)
        if decision.code is not None:
            return arrived.refused_by(decision)
        intent = _intent_of(decision)
        if isinstance(decision.verdict, Goto):
            self._executions.expect(intent.server_correlation_id, request)
            answer = await self._runs.run(intent, scope)
        else:
            settled = await self._runs.outcome(intent)
            if settled is None:  # T2 row 2
                return arrived.refused("still_processing", retry_after_s=answers.RETRY_AFTER_S)
            answer = self._runs.final(settled)
            if arrived.is_keyed:
                answer = answers.repeated_to_key(answer)
        if self._times:
            self._server.observer.answered(2, intent, self._seconds() - began)  # The time includes the handler's.
        return answer

    async def _follows(self, decision: IntentDecision, arrived: Arrived) -> bool:
        mismatch = decision.code == FINGERPRINT_MISMATCH
        return mismatch and await follows(self._server, decision.intent, self._head(arrived), arrived.scope)

    def _registration(
        self, asked: PhaseOne, arrived: Arrived, principal: str, body: bytes, policy: Policy
    ) -> tuple[Register, StoredRequest]:
        """The command whose change makes an intent durable (draft §9.5), and what is kept of the request."""
        server, scope, path = self._server, arrived.scope, arrived.path
        # ``prevalidate`` may have changed the headers.
        shape = arrived.shape if arrived.head is None else self._shapes.of(scope["headers"])
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        method, query = arrived.method, scope.get("query_string", b"")
        client_id = asked.client_correlation_id or server.mint()  # a proxy stands in for what is missing.
        place = shape.content_type
        kind = headers[place][1].decode("latin-1").strip(" \t") if place >= 0 else ""
        if place == SEVERAL:
            kind = Headers(headers).get("content-type", "")
        payload = payload_digest(kind, body)
        command = Register(
            client_correlation_id=client_id,
            server_correlation_id=server.mint(),
            principal=principal,
            replay_key=intent_replay_key(
                principal=principal,
                client_correlation_id=client_id,
                method=method,
                target=f"{path}?{query.decode('latin-1')}",
                payload=payload,
            ),
            mode=_ASYNC if asked.mode is _STANDARD and policy.mode == "async" else asked.mode,
            service_endpoint=f"{self._settings.service}{path.removesuffix('/') or '/'}",
            path=asked.path,
            method=method,
            arrived_at=arrived.at,
            requested_ttl_ms=asked.requested_ttl_ms,
            callback="" if asked.callback is None else callback_digest(asked.callback),
            client_id_is_proxy=asked.client_correlation_id is None,
            owner=server.owner,
            request_digest=payload,
        )
        kept, root = shape.registered(headers), scope.get("root_path", "")
        return command, StoredRequest(method, scope["path"], path.encode("latin-1"), query, kept, body, root)

    async def _registered_by_server(
        self,
        command: Register,
        request: StoredRequest,
        policy: Policy,
        refusal: TwoPHPError | None,
        callback: str | None,
        scope: Scope,
    ) -> IntentDecision:
        """Register and confirm in one change. A request cut off in here may have crossed the point of no return."""
        register: Callable[..., Awaitable[IntentDecision]] = partial(
            self._server.intents.register, command, encode(request), policy, refusal=refusal
        )
        if callback is not None:
            register = partial(self._registered_and_owed, register, self._owed(callback, command.principal))
        try:
            return await register()
        except asyncio.CancelledError:
            self._go_on_without_it(partial(register, again=True), scope)
            raise

    async def _registered_and_owed(
        self, register: Callable[..., Awaitable[IntentDecision]], owed: PendingAcknowledgement, *, again: bool = False
    ) -> IntentDecision:
        decision = await register(follow=owed, again=again)
        # draft §5.5.3: the callback starts before processing begins; nothing waits for the network.
        starting = owed.start(decision, barrier=self._settings.outgoing.fire_barrier)
        if not isinstance(decision.verdict, Goto):
            await starting
            return decision
        with self._executions.kept_alive(_intent_of(decision)):  # Else this process could take it over as left behind.
            await starting
        return decision

    def _go_on_without_it(self, decide: Callable[[], Awaitable[IntentDecision]], scope: Scope) -> None:
        """Act in a task on a go-ahead that became durable while its request was cut off (A-107)."""
        self._executions.spawn(self._begun_after_all(decide, scope))

    async def _begun_after_all(self, decide: Callable[[], Awaitable[IntentDecision]], scope: Scope) -> None:
        try:
            decision = await decide()  # Once more, since the first decision is lost. This one says whether to run.
        except TwoPHPError as error:
            self._conditions.known(logging.WARNING, "a request that was cut off cannot be gone on with", error=error)
            return
        if isinstance(decision.verdict, Goto):
            self._runs.begin(_intent_of(decision), scope)

    def _owed(self, callback: str, principal: str) -> PendingAcknowledgement:
        """The acknowledgement of an auto-confirmed request. One that may not go out is refused when it becomes owed."""
        may_go_out = self._settings.outgoing.lets_out(callback, principal)
        return acknowledgement(self._server.outbox, callback, principal, may_go_out=may_go_out)

    async def _phase_two(self, asked: PhaseTwo, arrived: Arrived, principal: str, receive: Receive) -> Answer:
        """Draft §5.3: discard the body, cross the point of no return once, answer with the outcome (T1 rows 4-11)."""
        server, scope, at = self._server, arrived.scope, arrived.shape.content_length
        began = self._seconds() if self._times else 0.0
        if at == SEVERAL or (at >= 0 and len(scope["headers"][at][1]) >= _CONFIRM_DIGITS):
            refuse_large(scope["headers"], CONFIRM_BODY_LIMIT)
        body = body_at_hand(receive, CONFIRM_BODY_LIMIT, self._settings.body_timeout_s)
        if not isinstance(body, bytes):
            await body
        recalled = self._executions.recall(asked.server_correlation_id)
        if recalled is not None and self._may_be_repeated(recalled.intent, asked, arrived.at, principal):
            server.observer.replayed(recalled.intent)
            return self._runs.final(recalled)
        guard = self._guard
        command = Confirm(
            client_correlation_id=asked.client_correlation_id,
            server_correlation_id=asked.server_correlation_id,
            principal=principal,
            path=asked.path,
            arrived_at=arrived.at,
            owner=server.owner,
            guard_passed=self._unguarded if guard is None else await self._guard_passes(guard, asked, arrived),
            provisional_resource_id=server.mint(),
        )
        # Code that was given the head may have changed the headers that the application is to see, so look again.
        shape = arrived.shape if arrived.head is None else self._shapes.of(scope["headers"])
        crossing = self._runs.cross(command, scope, shape)
        try:
            told = await crossing.told
        except StoreError as error:
            if crossing.execution is None:
                raise
            raise not_settled() from error
        if isinstance(told, IntentDecision):
            answer = await self._not_run(told, scope)
        else:
            answer = self._runs.final(told, crossing.execution)
        if self._times and told.intent is not None and not _is_refused(told):
            server.observer.answered(2, told.intent, self._seconds() - began)
        return answer

    async def _not_run(self, decision: IntentDecision, scope: Scope) -> Answer:
        """A confirm that was refused, repeated, or does not wait (T1 rows 4, 5, 8, 11)."""
        if type(decision.verdict) is Refuse:
            if decision.verdict.code == OTHER_IDENTITY:
                audited("confirm", _intent_of(decision))
            return answers.refused(decision.verdict.code)
        return await self._runs.told_later(decision, _intent_of(decision), scope)

    def _may_be_repeated(self, intent: Intent, asked: PhaseTwo, at: Instant, principal: str) -> bool:
        """Whether a recent outcome may be repeated without a transaction (T1 rows 6 and 7): it does not change."""
        policy = self._server.policy_of(intent)
        forgotten_at = (intent.settled_at or 0) + policy.horizon_ms
        return (
            compare_digest(intent.client_correlation_id, asked.client_correlation_id)
            and intent.path == asked.path
            and compare_digest(intent.principal, principal)
            and not policy.literal_ttl_reject
            and at < forgotten_at
        )

    async def _guard_passes(self, guard: LateConfirmGuard, asked: PhaseTwo, arrived: Arrived) -> bool:
        """A-24. The guard needs the intent, which costs a read; only services with a guard pay for it."""
        intent = await self._server.intents.look(asked.client_correlation_id, asked.server_correlation_id)
        if intent is None:
            return False
        try:
            passed = guard(self._head(arrived), intent)
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
            audited("status read", intent)
            raise Refused("another identity's intent", code=OTHER_IDENTITY)
        settled = await self._executions.settled(intent) if answers.has_outcome(intent) else None
        return answers.status_read(intent, settled, scope.get("root_path", ""), server.store.now())


def _is_refused(told: Settled | IntentDecision) -> bool:
    return isinstance(told, IntentDecision) and told.code is not None


def _transparent(arrived: Arrived, client_id: str | None) -> PhaseOne:
    """What a plain request is registered as."""
    return PhaseOne(
        path=bound_path(route_path(arrived.scope, arrived.path)),
        mode=_TRANSPARENT,
        client_correlation_id=client_id,
        callback=None,
        requested_ttl_ms=None,
    )


def _intent_of(decision: IntentDecision) -> Intent:
    if decision.intent is None:
        raise TwoPHPError("a decision without an intent", code="internal")
    return decision.intent
