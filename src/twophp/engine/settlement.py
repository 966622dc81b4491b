"""The outcome of a handler, made durable in one change with everything that belongs to it.

With the phase and the answer go the rows that the handler has written, and the obligations that it has reserved. What
the database refuses of them becomes the outcome: then nothing happened.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, Protocol

from twophp.core.errors import ConstraintViolation, StoreError, TwoPHPError
from twophp.core.intent import Intent
from twophp.core.intent_commands import Settle
from twophp.core.obligation import ObligationError
from twophp.core.outcome import has_failed, has_succeeded
from twophp.core.phase import ALREADY_SETTLED, FENCE_LOST, IntentDecision
from twophp.core.policy import Policy
from twophp.engine.current import reference_of
from twophp.engine.exchange import StoredResponse, bounded, encode, storable
from twophp.engine.intents import Intents
from twophp.engine.obligations.bound import BoundObligations
from twophp.engine.obligations.changes import Held, SettlingAll
from twophp.engine.obligations.flow import Obligations
from twophp.engine.persistence import AWAY, Persistence
from twophp.engine.running import Execution, NameResource, Settled, Work
from twophp.kernel.intents import PolicyOf
from twophp.observability.conditions import ids_of, named
from twophp.ports import NOT_IN_TRANSACTION, OwnTransaction, Statement

log: Final = logging.getLogger("twophp.execution")

_DECIDED: Final = frozenset({FENCE_LOST, ALREADY_SETTLED})


class Outcomes(Protocol):
    """What is known of outcomes here."""

    def remember(self, settled: Settled) -> Settled:
        """Keep an outcome for the repeats that come soon, and return it."""
        ...

    async def decided_elsewhere(self, intent: Intent) -> Settled:
        """The outcome that another process has written or will write."""
        ...


class Settlement:
    """How the outcomes of one service become durable."""

    def __init__(
        self,
        intents: Intents,
        policy_of: PolicyOf,
        persistence: Persistence,
        outcomes: Outcomes,
        *,
        name_resource: NameResource,
        failed: StoredResponse,
        conflict: StoredResponse,
        indeterminate: StoredResponse,
        max_result_bytes: int,
        obligations: Obligations | None,
    ) -> None:
        self._intents = intents
        self._policy_of = policy_of
        self._persistence = persistence
        self._outcomes = outcomes
        self._name_resource = name_resource
        self._failed = failed
        self._conflict = conflict
        self._indeterminate = indeterminate
        self._max_result_bytes = max_result_bytes
        self._obligations = obligations

    def leaves_no_trace(self, intent: Intent) -> bool:
        """Whether nothing has happened where nothing was committed: the endpoint's word (ADR 44)."""
        return self._policy_of(intent).effects == "transaction"

    async def settle(self, execution: Execution, work: Work, response: StoredResponse) -> Settled:
        """Make the outcome durable, whatever it becomes, and return it."""
        intent = work.intent
        bound = work.running.close()
        held = () if bound is None else await self._held(execution, bound)
        try:
            if work.running.is_broken and has_succeeded(response.status):
                message = "the business rows of %s were given up after its answer (%s)"
                log.warning(message, intent.service_endpoint, named(intent), extra=ids_of(intent))
                response = self._failed
            return await self._write(execution, work, response, held)
        except AWAY:
            raise
        except StoreError as error:
            if not work.running.has_rows:
                raise
            # The business rows were refused, and with them the commit: nothing happened, and that is the outcome.
            message = "the business statements of %s were refused (%s): %s"
            log.warning(message, intent.service_endpoint, named(intent), error, extra=ids_of(intent))
            work.running.statements.clear()
            # The statements passed at the end of their block, so a constraint means that another writer was quicker, or
            # that the database has deferred it.
            response = self._conflict if isinstance(error, ConstraintViolation) else self._failed
            if error.code == NOT_IN_TRANSACTION and work.running.own is not None:
                response = self._indeterminate  # The handler has ended it itself, and perhaps by a COMMIT.
            return await self._write(execution, work, response, held)
        except ObligationError as error:  # One of them is overdue, or was rolled back: nothing happened, as above.
            message = "an obligation of %s cannot be committed (%s): %s"
            log.warning(message, intent.service_endpoint, named(intent), error, extra=ids_of(intent))
            return await self._write(execution, work, self._failed, held)
        except TwoPHPError:
            raise
        except Exception:
            # A part of the handler's answer cannot be written, and never will be: recovery would only meet it again.
            where = intent.service_endpoint
            log.exception("the outcome of %s cannot be written (%s)", where, named(intent), extra=ids_of(intent))
            # What went through the store did not happen. What else a handler did that answered is unknown.
            is_known = has_failed(response.status) or work.running.has_rows or held or self.leaves_no_trace(intent)
            return await self._write(execution, work, self._failed if is_known else self._indeterminate, held)

    async def _held(self, execution: Execution, bound: BoundObligations) -> Held:
        try:
            return await bound.close()
        except AWAY as error:
            return await self._persistence.go_on(error, execution.intent, execution.late, bound.close)

    async def _write(self, execution: Execution, work: Work, response: StoredResponse, held: Held) -> Settled:
        intent, succeeded = work.intent, has_succeeded(response.status)
        settle = Settle(
            fence=intent.fence,
            succeeded=succeeded,
            status=response.status,
            resource_id=self._name_resource(work, response) if succeeded else None,
            transaction_reference=reference_of(work.running.transaction_reference, intent),
            indeterminate=response is self._indeterminate,
        )
        statements = tuple(work.running.statements) if succeeded else ()
        own = work.running.own
        if own is not None and not succeeded:
            await own.roll_back()
            own = None
        kept = bounded(storable(response), self._max_result_bytes)
        attempt = partial(self._attempt, intent, settle, encode(kept), self._policy_of(intent), statements, held, own)
        try:
            decision = await attempt()
        except AWAY as error:
            decision = await self._persistence.go_on(error, intent, execution.late, attempt)
        assert decision.intent is not None
        code = decision.code
        if code in _DECIDED:  # Another owner settled, or an earlier attempt of ours: what is written is true.
            return await self._outcomes.decided_elsewhere(decision.intent)
        if code is not None:
            raise TwoPHPError(f"the outcome was refused: {code}", code=code)
        remembered = self._outcomes.remember(Settled(decision.intent, kept))
        return remembered if kept is response else Settled(decision.intent, response)

    async def _attempt(
        self,
        intent: Intent,
        settle: Settle,
        response: bytes,
        policy: Policy,
        statements: tuple[Statement, ...],
        held: Held,
        own: OwnTransaction | None,
    ) -> IntentDecision:
        also = await self._together(held, intent, succeeded=settle.succeeded) if held else None
        decision = await self._intents.settle(
            intent, settle, response, policy, statements=statements, also=also, own=own
        )
        if also is not None and self._obligations is not None and decision.changed:
            self._obligations.tell(also.decisions)
        return decision

    async def _together(self, held: Held, intent: Intent, *, succeeded: bool) -> SettlingAll:
        assert self._obligations is not None
        return await self._obligations.together(held, intent.server_correlation_id, succeeded=succeeded)
