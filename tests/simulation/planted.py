"""Bugs on purpose: each breaks one rule of the product, or of a driver, and the checks must find it.

A bug is a context manager that replaces one function or one cell of a table for as long as it lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from tests.simulation.database import Database
from tests.simulation.driver import SimulatedStore
from twophp.client import repeats
from twophp.client.ledger import Ledger
from twophp.core import call_machine, phase
from twophp.core.call_commands import ServerReply
from twophp.core.call_machine import CallDecision
from twophp.core.intent import Intent, Phase
from twophp.core.intent_commands import Confirm, Tick
from twophp.core.job import State as JobState
from twophp.core.machine import Goto
from twophp.core.phase import IntentDecision, Signal
from twophp.core.policy import Policy
from twophp.core.records import Instant
from twophp.delivery.outbox import LettersOf, Outbox
from twophp.engine.execution import Executions
from twophp.kernel.apply import Operations, Outcome, Snapshot, apply
from twophp.ports import Command, Put

Planted = Callable[[], AbstractContextManager[Any]]


def missing_fence_check() -> AbstractContextManager[Any]:
    """A worker that was taken over may still settle and renew."""
    judged = phase._signal_of_worker

    def any_fence(intent: Intent | None, command: Any) -> Signal:
        return judged(intent, command if intent is None else replace(command, fence=intent.fence))

    return mock.patch.object(phase, "_signal_of_worker", any_fence)


def acknowledged_before_the_commit() -> AbstractContextManager[Any]:
    """A driver answers as soon as a batch is decided, and sends the commit beside that."""

    async def attempt(store: SimulatedStore, commands: Sequence[Command]) -> list[Outcome]:
        keys = [key for command in commands for key in command.keys]
        slots, last = await store._trip(lambda database: (database.load(keys), database.at))
        store._time.reach(last)
        applied = apply(Snapshot(slots), commands, store._time.now())
        if not applied.operations.is_empty:
            store._later = asyncio.get_running_loop().create_task(store._sent(applied.operations))  # type: ignore[attr-defined]
        return applied.answers

    return mock.patch.object(SimulatedStore, "_attempt", attempt)


def confirmed_again_while_processing() -> AbstractContextManager[Any]:
    """The duplicate check is lost: a second confirm begins a second run."""
    return mock.patch.dict(phase.TABLE[Phase.PROCESSING], {Signal.CONFIRM: Goto((Phase.PROCESSING,))})


def lease_is_not_renewed() -> AbstractContextManager[Any]:
    """No heartbeat: what runs for longer than a lease is taken over."""

    async def renew(_executions: Executions) -> None:
        return

    return mock.patch.object(Executions, "renew", renew)


def recovered_under_the_same_fence() -> AbstractContextManager[Any]:
    """Recovery does not raise the fence, so the old owner and the new one cannot be told apart."""
    entered = phase._ENTER[Phase.PROCESSING]

    def enter(intent: Intent, command: Any, now: Instant, policy: Policy, to: Any) -> tuple[Instant, Intent]:
        at, after = entered(intent, command, now, policy, to)
        return at, replace(after, fence=intent.fence) if type(command) is Tick else after

    return mock.patch.dict(phase._ENTER, {Phase.PROCESSING: enter})


def told_to_any_identity() -> AbstractContextManager[Any]:
    """Whoever knows both ids may confirm, and gets the outcome."""
    judged = phase._signal_of_confirm

    def anybody(intent: Intent | None, command: Confirm, now: Instant, policy: Policy) -> Signal:
        return judged(intent, command if intent is None else replace(command, principal=intent.principal), now, policy)

    return mock.patch.object(phase, "_signal_of_confirm", anybody)


def settled_twice() -> AbstractContextManager[Any]:
    """An outcome that is said again, as after a commit of unknown outcome, is written again."""
    return mock.patch.dict(phase.TABLE[Phase.COMMITTED], {Signal.SUCCEED: Goto((Phase.COMMITTED,))})


def retried_under_a_new_id() -> AbstractContextManager[Any]:
    """A client does not remember what it has asked, and asks the same as another call."""
    return mock.patch.object(repeats, "made_before", return_value=None)


def hook_called_before_the_commit() -> AbstractContextManager[Any]:
    """The outbox sends what a decision owes at once, not when it is durable."""
    following = Outbox.follow

    def follow(outbox: Outbox, letters_of: LettersOf) -> Callable[[IntentDecision], tuple[Put, ...]]:
        owed = following(outbox, letters_of)

        def puts(decision: IntentDecision) -> tuple[Put, ...]:
            found = owed(decision)
            for put, held in zip(found[::2], found[1::2], strict=True):
                job: Any = put.record
                started: Any = outbox.start(
                    replace(put, record=replace(job, state=JobState.RUNNING, attempts=1)),
                    held.record,  # type: ignore[arg-type]
                )
                outbox._early = asyncio.get_running_loop().create_task(started)  # type: ignore[attr-defined]
            return found

        return puts

    return mock.patch.object(Outbox, "follow", follow)


def deadline_is_inclusive() -> AbstractContextManager[Any]:
    """A confirm that arrives at the very deadline is let in."""
    judged = phase._signal_of_confirm

    def inclusive(intent: Intent | None, command: Confirm, now: Instant, policy: Policy) -> Signal:
        if intent is not None and command.arrived_at == intent.deadline_at:
            command = replace(command, arrived_at=command.arrived_at - 1)
        return judged(intent, command, now, policy)

    return mock.patch.object(phase, "_signal_of_confirm", inclusive)


def no_version_guard() -> AbstractContextManager[Any]:
    """A driver writes over what somebody else has changed since it was read."""

    def check(_database: Database, _operations: Operations) -> None:
        return

    return mock.patch.object(Database, "check", check)


def confirmed_before_the_row() -> AbstractContextManager[Any]:
    """A client sends Phase 2 while its own row is still on its way to the disk."""
    recorded = Ledger.record

    async def record(ledger: Ledger, id_: str, command: Any, request: bytes | None = None) -> CallDecision:
        if isinstance(command, ServerReply) and command.by == "phase_1" and command.phase is Phase.WAITING_CONFIRM:
            decision = call_machine.decide(None, command, ledger.store.now(), ledger._care)
            ledger._later = asyncio.get_running_loop().create_task(recorded(ledger, id_, command))  # type: ignore[attr-defined]
            return decision
        return await recorded(ledger, id_, command, request)

    return mock.patch.object(Ledger, "record", record)


BUGS: Final[Mapping[str, Planted]] = {
    planted.__name__: planted
    for planted in (
        missing_fence_check,
        acknowledged_before_the_commit,
        confirmed_again_while_processing,
        lease_is_not_renewed,
        recovered_under_the_same_fence,
        told_to_any_identity,
        settled_twice,
        retried_under_a_new_id,
        hook_called_before_the_commit,
        deadline_is_inclusive,
        no_version_guard,
        confirmed_before_the_row,
    )
}


@contextmanager
def with_bug(name: str) -> Iterator[None]:
    """The product with this bug in it; without a name, as it is."""
    if not name:
        yield
        return
    with BUGS[name]():
        yield
