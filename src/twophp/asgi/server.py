"""The running side of the middleware: what is open, what is executing, and the loops that visit the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Literal
from uuid import UUID

from msgspec.structs import replace

from twophp.asgi.answers import naming, refused
from twophp.asgi.messages import App
from twophp.asgi.replay import Replay, bare_scope
from twophp.asgi.settings import Reconciled, ReconcileResult, Settings, longest_horizon_ms, shortest_lease_ms
from twophp.core.entry import Writer
from twophp.core.errors import OUTCOME_INDETERMINATE, StoreError
from twophp.core.intent import Intent
from twophp.core.intent_commands import Settle
from twophp.core.obligation import ObligationError
from twophp.core.phase import IntentDecision
from twophp.core.policy import Policy
from twophp.core.records import Instant, Key
from twophp.delivery.calling import AT_A_TIME, Caller
from twophp.engine.collector import collector
from twophp.engine.exchange import StoredResponse, encode
from twophp.engine.execution import Executions
from twophp.engine.intents import Intents
from twophp.engine.obligations.changes import Held
from twophp.engine.obligations.flow import DecisionListener, Obligations
from twophp.engine.obligations.rules import INTERVAL_S as RETENTION_INTERVAL_S
from twophp.engine.running import Answered, Settled, Work
from twophp.observability.conditions import Conditions, ids_of, named
from twophp.observability.observe import SILENT, Observer, Publishing, observed_by
from twophp.ports import JoinsTransactions, MintId, Vault, WholeStore
from twophp.shipping.shipper import Shipper
from twophp.storing.bites import MOST_LEFT, purge
from twophp.wire import grammar
from twophp.wire.rows import encode_batch

log: Final = logging.getLogger("twophp.server")

RECOVERED: Final = "recovered"
_ANY_POLICY: Final = Policy.standard()


def _stored(code: str) -> StoredResponse:
    answer = refused(code)
    return StoredResponse(answer.status, tuple(answer.headers), answer.body)


LOOK_FOR_DEAD_S: Final = 0.25
"""How often the server looks for dead owners: clients of what they executed are answered within a second."""
MOST_RECONCILES: Final = 5
"""How often ``reconcile`` is asked about one intent. Every recovery raises the fence, so the fence counts them."""
MOST_AT_ONCE: Final = 256
"""How many recoveries run at once: after a crash under load, the business side is not asked about all in one moment."""
CANCEL_S: Final = 1.0
"""How long something that is cancelled may take to notice."""
HANDLER_FAILED: Final = _stored("handler_failed")
INTERRUPTED: Final = _stored("interrupted")
CONSTRAINT_VIOLATED: Final = _stored("constraint_violated")
INDETERMINATE: Final = _stored(OUTCOME_INDETERMINATE)


class InFlight:
    """The requests that are being answered: each needs the store until it is."""

    def __init__(self) -> None:
        self.count = 0
        self.none_left: asyncio.Event | None = None  # ``ended`` waits for the last of them.

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_how: object) -> None:
        self.count -= 1
        self.left()

    def left(self) -> None:
        """One request less is counted."""
        if self.none_left is not None and not self.count:
            self.none_left.set()

    async def ended(self, within_s: float) -> None:
        """Wait for the last of them, up to ``within_s``."""
        if not self.count:
            return
        self.none_left = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.none_left.wait()


class Server:
    """Everything that exists between start-up and shutdown."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        store: WholeStore,
        vault: Vault,
        writer: Writer,
        mint: MintId,
        observer: Observer = SILENT,
        told: DecisionListener | None = None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.store = store
        self.mint = mint
        self.owner = store.owners.register(mint())
        self.observer = observer
        rules = settings.obligations
        self.outbox = settings.outgoing.outbox(store, vault, settings.service, rules, observer)
        owing = self.outbox if rules.owes else None
        self.obligations = Obligations(store, vault, settings.service, mint=mint, rules=rules, outbox=owing, told=told)
        to = settings.shipping()
        self._shipper = None
        if to is not None:
            self._shipper = Shipper(
                store, writer, to, encode=encode_batch, mint=mint, told=told, renamed=self._write_as
            )
        if self._shipper is not None and to is not None and to.events:
            observer = observed_by(*(one for one in (observer, Publishing(self._shipper.wake)) if one is not SILENT))
        letters = settings.outgoing.hooks.letters
        self.intents = Intents(
            store, vault, writer, follow=self.outbox.follow(letters), observer=observer, quota=settings.quota
        )
        self.executions = Executions(
            self.intents,
            self.policy_of,
            name_resource=naming(settings.resource_id),
            failed=HANDLER_FAILED,
            conflict=CONSTRAINT_VIOLATED,
            indeterminate=INDETERMINATE,
            takes_statements=store.takes_statements,
            max_result_bytes=settings.max_result_bytes,
            replay_wait_ms=settings.replay_wait_ms,
            obligations=self.obligations,
            join=store.own_transaction if isinstance(store, JoinsTransactions) else None,
        )
        self._conditions = Conditions(log)
        self.requests = InFlight()
        self.recovering: dict[str, asyncio.Task[None]] = {}  # By server correlation id.
        self._silent: set[str] = set()  # Owners that live and did not renew their leases; each is logged once.
        self._ask = None if settings.reconcile is None else Caller(settings.reconcile, "twophp-reconcile", MOST_AT_ONCE)
        in_threads = self._ask is not None and self._ask.needs_threads
        self._turn = asyncio.Semaphore(AT_A_TIME if in_threads else MOST_AT_ONCE)
        self._is_ending = False  # Nothing is taken over any more, though what runs may go on for a while.
        self._stopping = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    def policy_of(self, intent: Intent) -> Policy:
        """The policy an intent falls under today. Where its endpoint is gone, the standard policy sweeps it."""
        endpoint = self.settings.endpoints.of(intent)
        return _ANY_POLICY if endpoint is None else endpoint.policy

    async def look(self, server_correlation_id: str) -> Intent | None:
        """An intent by the server's id alone: one that is asynchronous, or that this process runs or has just run."""
        known = self.executions.known(server_correlation_id)
        return known or await self.intents.look_by_server_id(server_correlation_id)

    async def outcome(self, intent: Intent) -> Settled | None:
        """The outcome of what another request or process executes; None if that takes too long for a repeat (A-33)."""
        wait_ms = self.settings.replay_wait_ms
        return await self.executions.outcome(
            intent, self.policy_of(intent).processing_timeout_ms if wait_ms is None else wait_ms
        )

    def _write_as(self, writer: Writer) -> None:
        self.intents.write_as(writer)

    def start(self) -> None:
        """Begin to sweep, to renew and to deliver, once: crashed handlers may be run from here on."""
        if self._loops:
            return
        if self.settings.tune_collector:
            collector.begin()
        heartbeat_s = shortest_lease_ms(self.settings.endpoints) / 3_000
        self._loops = [
            asyncio.create_task(self._every(self.settings.sweep_interval_s, self.sweep)),
            asyncio.create_task(self._every(LOOK_FOR_DEAD_S, self.recover)),
            asyncio.create_task(self._every(heartbeat_s, self.executions.renew)),
            asyncio.create_task(self._every(self.settings.obligations.scan_interval_s, self.scan)),
            asyncio.create_task(self._every(RETENTION_INTERVAL_S, self.obligations.forget)),
            asyncio.create_task(self._every(self.settings.sweep_interval_s, self.purge)),
            asyncio.create_task(self.outbox.run()),
        ]
        if self._shipper is not None:
            self._shipper.start()

    async def stop(self) -> None:
        """Let what runs end, then close the store. What cannot end in time is left to recovery."""
        self._is_ending = True
        seconds, within_s = asyncio.get_running_loop().time, self.settings.drain_timeout_s
        until = seconds() + within_s
        # The heartbeat goes on until then, so no other process takes over what is about to end.
        await self.requests.ended(within_s)
        await _waited_for(self.recovering.values(), max(until - seconds(), 0.0))
        left = await self.executions.drain(max(until - seconds(), 0.0))
        if left:
            log.warning(
                "%d handlers were still running; what has no outcome is recovered once they have ended", len(left)
            )
        self._stopping.set()
        await asyncio.gather(self.outbox.close(within_s), _ended(self._loops, within_s))
        await _ended(self.recovering.values(), max(until - seconds(), 0.0))  # The last sweep may have begun some.
        try:
            if self._shipper is not None:
                await self._shipper.close()
            await self.store.close()
        finally:
            if self._loops and self.settings.tune_collector:
                collector.end()
            # While a handler of ours runs, no other process may run its intent again: if it never ends, until this
            # process does. A closing store finishes what it has accepted, so a confirm may have begun a handler during
            # the close.
            _when_over(self.executions.left(), partial(self.store.owners.release, self.owner))

    async def sweep(self) -> int:
        """Do what has become due, a bounded bite at a time, and begin to recover what a crash left behind."""
        # What kept the event loop from its heartbeat kept it from its sweep too. Renew what is alive here first, or
        # this sweep would take over our own handlers, and fail them or run them a second time.
        await self.executions.renew()
        return await self._attend(lambda: self.store.now() + 1)

    async def recover(self) -> int:
        """Begin to recover what dead owners have left. Nothing else is swept."""
        return await self._attend(lambda: 0)

    async def _attend(self, before: Callable[[], Instant]) -> int:
        done, left = 0, set[Key]()
        while not self._is_ending and len(left) < MOST_LEFT:
            passed_over = len(left)
            decisions = await self.intents.sweep(
                self.policy_of, self.owner, before=before(), left=left, running=self.executions.alive
            )
            done += len(decisions)
            for decision in decisions:
                if _was_recovered(decision) and decision.intent is not None:
                    self._begin_recovery(decision.intent)
                elif decision.changed:
                    self._note_silence(decision.intent)
            if len(left) == passed_over and not any(decision.changed for decision in decisions):
                break
        return done

    def _note_silence(self, intent: Intent | None) -> None:
        """Log, once for each, an owner whose lease ran out and whose process lives: it hangs, or is stopped."""
        if intent is None or intent.owner is None or intent.owner in {self.owner, *self._silent}:
            return
        self._silent.add(intent.owner)
        message = "owner %s lives and has not renewed its lease; if its process hangs, end it, and %s is recovered"
        log.warning(message, intent.owner, intent.server_correlation_id, extra=ids_of(intent))

    async def purge(self) -> int:
        """Forget ledger rows that the central ledger has had for long enough (A-59)."""
        kept_ms = self.settings.ledger_retention_ms
        if kept_ms is None:
            return 0
        return await purge(self.store, max(kept_ms, longest_horizon_ms(self.settings.endpoints)))

    async def scan(self) -> None:
        """The leak oracle of what handlers have reserved. A service that reserves nothing is spared its lines."""
        if await self.store.reserved():
            await self.obligations.scan()

    def _begin_recovery(self, intent: Intent) -> None:
        """Recover in a task beside the sweep: a business side that does not answer must not delay other intents."""
        key = intent.server_correlation_id
        if key in self.recovering:  # One that could not renew its lease still runs; this lease runs out again.
            return
        log.warning("recovering an intent that nobody executes any more (%s)", named(intent), extra=ids_of(intent))
        task = asyncio.create_task(self._recovery(intent))
        self.recovering[key] = task
        task.add_done_callback(partial(self._recovered, intent))

    def _recovered(self, intent: Intent, task: asyncio.Task[None]) -> None:
        del self.recovering[intent.server_correlation_id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreError):
            self._conditions.known(
                logging.WARNING, "a recovery failed and will be made again", error=error, intent=intent
            )
        elif error is not None:
            message = "a recovery failed and will be made again (%s)"
            log.error(message, named(intent), exc_info=error, extra=ids_of(intent))

    async def _recovery(self, intent: Intent) -> None:
        """Keep the lease while it waits for its turn and for an answer. Cut off, it leaves the intent as it is."""
        with self.executions.kept_alive(intent):
            async with self._turn:
                await self._recover(intent)

    async def _recover(self, intent: Intent) -> None:
        """A-34: run again only if the endpoint says so. Otherwise ask; an outcome that stays unknown is settled so."""
        policy, trace_id = self.policy_of(intent), intent.server_correlation_id
        held = await self.obligations.held_by(trace_id)
        if policy.on_crash == "rerun":
            if self._is_ending:
                return  # No request would wait for it any more. Its lease runs out again.
            await self.obligations.release(held, trace_id)  # The next run reserves anew.
            self.executions.begin(intent, self._rerun)
            return
        unknown = Settle(fence=intent.fence, succeeded=False, status=INDETERMINATE.status, indeterminate=True)
        settle, response = unknown, INDETERMINATE
        if policy.effects == "transaction":  # The database has rolled all of them back.
            settle = Settle(fence=intent.fence, succeeded=False, status=INTERRUPTED.status)
            response = INTERRUPTED
        elif self._ask is not None:
            found, resource_id = await self._reconciled(intent, self._ask, policy)
            if found == "ASK_AGAIN":
                return  # Its lease runs out again, and the next recovery asks again.
            if found == "COMMITTED" and await self.obligations.has_leaked(trace_id):
                message = "an intent cannot be called committed: an obligation leaked (%s)"
                log.warning(message, named(intent), extra=ids_of(intent))
            elif found == "COMMITTED":
                name = resource_id or intent.server_correlation_id
                settle = Settle(fence=intent.fence, succeeded=True, status=200, resource_id=name)
                response = StoredResponse(200, (), b"")
            elif found == "NOT_DONE":
                settle = Settle(fence=intent.fence, succeeded=False, status=HANDLER_FAILED.status)
                response = HANDLER_FAILED
        try:
            await self._settle_with(held, intent, settle, response, policy)
        except ObligationError as error:  # The business side calls it done, but an obligation cannot be committed.
            message = "an intent cannot be called committed (%s): %s"
            log.warning(message, named(intent), error, extra=ids_of(intent))
            await self._settle_with(held, intent, unknown, INDETERMINATE, policy)

    async def _reconciled(
        self, intent: Intent, ask: Caller, policy: Policy
    ) -> tuple[Reconciled | Literal["ASK_AGAIN"], str | None]:
        """What the business side knows. It may be away too, so it is asked a few times before this is UNKNOWN."""
        try:
            async with asyncio.timeout(policy.processing_timeout_ms / 1_000):
                offered = replace(intent, resource_id=intent.server_correlation_id)  # As the handler knows it.
                return _understood(await ask.call(offered), intent)
        except Exception:
            log.exception("reconcile failed (%s)", named(intent), extra=ids_of(intent))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("reconcile let a cancellation escape that was not meant for it", extra=ids_of(intent))
        return ("ASK_AGAIN" if intent.fence <= MOST_RECONCILES else "UNKNOWN"), None

    async def _settle_with(
        self, held: Held, intent: Intent, settle: Settle, response: StoredResponse, policy: Policy
    ) -> None:
        trace_id = intent.server_correlation_id
        also = await self.obligations.together(held, trace_id, succeeded=settle.succeeded) if held else None
        decision = await self.intents.settle(intent, settle, encode(response), policy, also=also)
        if also is not None and decision.changed:
            self.obligations.tell(also.decisions)
        if settle.indeterminate and decision.changed:
            message = "nobody knows what the handler of %s did (%s)"
            log.error(message, intent.service_endpoint, named(intent), extra=ids_of(intent))

    async def _rerun(self, work: Work, answered: Answered) -> None:
        scope = bare_scope(work, self.executions.around or {})
        await Replay(self.app, scope, work.request.body, answered).run()

    async def _every(self, interval_s: float, visit: Callable[[], Awaitable[object]]) -> None:
        """Call ``visit`` at this interval until stopped, also while the store is away."""
        while not self._stopping.is_set():
            try:
                await visit()
            except StoreError as error:
                self._conditions.known(logging.WARNING, "a visit failed and will be made again", error=error)
            except Exception:
                log.exception("a visit failed")
            try:
                async with asyncio.timeout(interval_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue


def _was_recovered(decision: IntentDecision) -> bool:
    return any(step.event == RECOVERED for step in decision.steps)


def _understood(answer: object, intent: Intent) -> ReconcileResult:
    """What ``reconcile`` answered, checked for its form: what is stored of it is sent with every later answer."""
    match answer:
        case ("COMMITTED", named):
            return "COMMITTED", _sendable(named, intent)
        case (("NOT_DONE" | "UNKNOWN") as found, _):
            return found, None
    form = "('COMMITTED', resource_id), ('NOT_DONE', None) or ('UNKNOWN', None)"
    raise TypeError(f"reconcile must answer {form}, and this {type(answer).__name__} is none of them")


def _sendable(named: object, intent: Intent) -> str | None:
    """A resource's id that the wire can carry (A-05), or none: a bad id must not cost the fact of the commit."""
    if named is None or named == "":
        return None
    text = str(named) if isinstance(named, int | UUID) else named
    if isinstance(text, str) and text.isascii() and grammar.matches_resource_id(text.encode()):
        return text
    log.warning("reconcile named a resource by what no header can carry; its id is ours", extra=ids_of(intent))
    return None


def _when_over(tasks: Iterable[asyncio.Task[None]], call: Callable[[], object]) -> None:
    """Call ``call`` when no task runs any more; at once if none does."""
    left = {task for task in tasks if not task.done()}

    def over(task: asyncio.Task[None]) -> None:
        left.discard(task)
        if not left:
            call()

    for task in list(left):
        task.add_done_callback(over)
    if not left:
        call()


async def _waited_for(tasks: Iterable[asyncio.Task[None]], within_s: float) -> set[asyncio.Task[None]]:
    """Wait for these tasks, up to ``within_s``, and return those that have not ended."""
    waiting = [task for task in tasks if not task.done()]
    return (await asyncio.wait(waiting, timeout=within_s))[1] if waiting else set()


async def _ended(tasks: Iterable[asyncio.Task[None]], within_s: float) -> None:
    """Wait for these tasks up to ``within_s``, then cancel them. One that resists is waited for ``CANCEL_S`` more."""
    left = await _waited_for(tasks, within_s)
    for task in left:
        task.cancel()
    if left:
        log.warning("%d tasks did not end in time and were cut off", len(left))
        await _waited_for(left, CANCEL_S)
