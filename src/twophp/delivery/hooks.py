"""Compensation hooks: what is to happen when an intent reaches a phase (draft §9.3).

    from twophp.delivery.hooks import on_phase

    @on_phase("FAILED", "TTL_EXPIRED")
    async def release_stock(event): ...

A hook is a callable, a webhook or a command. For each transition into one of its phases there is one job in the
outbox, durable with the transition itself, and the hook is called *at least* once for it: after a crash, or when it
raised, it is called again with the same event. So a hook should recognise what it has done before; ``event.id`` is the
same on every call.

A job remembers its hook by name, so a name must outlive a restart. It is the callable's module and qualified name, the
digest of the webhook's URL or of the command, or the ``name`` that was given. Rename a hook, and the jobs that wait for
it find no hook until their attempts are used up.

``on_phase`` of this module registers with ``HOOKS``, the registry of the process, because a decorator has to stand
where no configuration exists yet. Edges use it unless they are given a ``Hooks`` of their own, which is what a process
with two services, or a test, does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from twophp.core.errors import ConfigError, DeliveryFailed, EgressRefused
from twophp.core.identity import digest
from twophp.core.intent import Intent, Phase
from twophp.core.outcome import INDETERMINATE
from twophp.core.phase import IntentDecision
from twophp.core.records import Instant, JournalEvent
from twophp.core.settings import knows_its_settings
from twophp.delivery.callbacks import Call, SignedPost
from twophp.delivery.calling import Caller
from twophp.delivery.connectors import require_committed
from twophp.delivery.egress_urls import Rules, check_address, check_url
from twophp.delivery.outbox import Deliver, Delivery, OutboxMessage

COMMAND_TIMEOUT_S: Final = 20.0
NAME_TAG: Final = b"twophp:hook-name:1"
OURS: Final = "TWOPHP_"
"""Settings that begin like this may be secrets; a command does not get them."""

# No "/": it separates what job ids are made of.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_PHASES: Final = frozenset(Phase) - {Phase.ABSENT}


class PhaseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An intent reached a phase. The same event, field by field, however often it is delivered."""

    client_correlation_id: str
    server_correlation_id: str
    phase: str
    endpoint: str
    at: Instant  # When it became true, in milliseconds since the epoch: an expiry at its deadline.
    resource_id: str | None = None
    indeterminate: bool = False  # FAILED, and nobody knows whether the handler's effects happened.

    @property
    def id(self) -> str:
        """Names the transition. An intent enters a phase once, so nothing more is needed."""
        return f"{self.server_correlation_id}:{self.phase}"


Run: TypeAlias = Callable[[PhaseEvent, Delivery, SignedPost | None], Awaitable[None]]
F = TypeVar("F", bound=Callable[[PhaseEvent], Any])


class Hook(msgspec.Struct, frozen=True):
    """A name, the phases it waits for, what to do, and where that goes to if it leaves the process."""

    name: str
    phases: frozenset[str]
    run: Run
    url: str | None = None


class Hooks:
    """A registry of hooks."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}

    def on_phase(self, *phases: str, name: str | None = None) -> Callable[[F], F]:
        """Call the decorated function, async or not, with each ``PhaseEvent``. It is returned as it is."""
        if any(map(callable, phases)):  # ``@on_phase`` alone: the function would be swallowed, and never called.
            raise ConfigError('Say which phases a hook waits for: @on_phase("FAILED").', code="bad_hook")

        def register(function: F) -> F:
            if not callable(function):
                raise ConfigError(f"A hook is a callable, not {function!r}.", code="bad_hook")
            self._add(name or _name_of(function), phases, _calling(function))
            return function

        return register

    @knows_its_settings(code="bad_hook")
    def webhook(self, url: str, *, phases: Sequence[str], name: str | None = None) -> None:
        """POST each event as JSON, signed and through the egress gate."""
        if not isinstance(url, str):
            raise ConfigError(f"A webhook is a URL, not {url!r}.", code="bad_hook")
        self._add(name or f"webhook-{_short(url)}", phases, _posting(url), url)

    @knows_its_settings(code="bad_hook")
    def command(
        self, argv: Sequence[str], *, phases: Sequence[str], name: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Run a program, no shell, with the event as JSON on its standard input; anything but exit 0 is a failure."""
        if isinstance(argv, str) or not argv or not all(isinstance(part, str) for part in argv):
            raise ConfigError("A command is a list of texts: the program and its arguments.", code="bad_hook")
        given = timeout_s if timeout_s is not None else COMMAND_TIMEOUT_S
        self._add(name or f"command-{_short(*argv)}", phases, _executing(tuple(argv), given))

    def check(self, rules: Rules) -> None:
        """Refuse what could never be delivered: a webhook that the gate does not let out, by its text alone (A-65)."""
        for hook in self._hooks.values():
            if hook.url is not None:
                try:
                    target = check_url(hook.url, rules=rules)
                    if target.address is not None:  # The service names it, so it is judged at the start.
                        check_address(target, target.address)
                except EgressRefused as refusal:
                    message = f"The gate does not let out the webhook {hook.name!r} ({refusal.reason})."
                    raise ConfigError(message, code="bad_hook") from refusal

    def letters(self, decision: IntentDecision) -> list[OutboxMessage]:
        """What a decision owes to the hooks: one letter for each hook and each phase that was entered."""
        if not self._hooks or decision.intent is None:
            return []
        return [letter for step in decision.steps for letter in self._letters(decision.intent, step)]

    def find(self, name: str) -> Hook | None:
        """The hook of that name."""
        return self._hooks.get(name)

    def _letters(self, intent: Intent, step: JournalEvent) -> Iterator[OutboxMessage]:
        if step.after == step.before:  # A recovery or a purge: something happened *in* the phase.
            return
        event = _event(intent, step)
        for hook in self._hooks.values():
            if step.after in hook.phases:
                yield _letter(hook, event)

    def _add(self, name: str, phases: Sequence[str], run: Run, url: str | None = None) -> None:
        if not _is_name(name):
            raise ConfigError(f"A hook cannot be called {name!r}; give it a name.", code="bad_hook")
        if name in self._hooks:
            raise ConfigError(f"There is a hook called {name!r} already.", code="bad_hook")
        if not _are_phases(phases):
            raise ConfigError(f"A hook waits for phases: {', '.join(sorted(_PHASES))}.", code="bad_hook")
        self._hooks[name] = Hook(name, frozenset(map(str, phases)), run, url)


def _is_name(given: object) -> bool:
    return isinstance(given, str) and _NAME.fullmatch(given) is not None


def _are_phases(given: object) -> bool:
    if isinstance(given, str) or not isinstance(given, Collection) or not given:
        return False
    return all(isinstance(phase, str) and phase in _PHASES for phase in given)


HOOKS: Final = Hooks()
on_phase: Final = HOOKS.on_phase


def hook_deliverer(hooks: Hooks, send: SignedPost | None = None) -> Deliver:
    """Delivers ``hook`` jobs; webhooks go out by ``send``."""

    async def deliver(delivery: Delivery) -> None:
        hook = hooks.find(delivery.job.name)
        if hook is None:
            raise DeliveryFailed("No hook of that name is registered.", reason="hook_unknown")
        require_committed(delivery.obligation)
        await hook.run(_EVENT.decode(delivery.payload), delivery, send)

    return deliver


_EVENT: Final = msgspec.msgpack.Decoder(PhaseEvent)


def _event(intent: Intent, step: JournalEvent) -> PhaseEvent:
    return PhaseEvent(
        client_correlation_id=intent.client_correlation_id,
        server_correlation_id=intent.server_correlation_id,
        phase=step.after,
        endpoint=intent.service_endpoint,
        at=step.at,
        resource_id=intent.resource_id,
        indeterminate=step.event == INDETERMINATE,
    )


def _letter(hook: Hook, event: PhaseEvent) -> OutboxMessage:
    return OutboxMessage(
        job_id=f"{event.server_correlation_id}/{hook.name}/{event.phase}",
        work="hook",
        subject=event.server_correlation_id,
        name=hook.name,
        payload=msgspec.msgpack.encode(event),
    )


def _name_of(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
    return name.replace(".<locals>", "")


def _short(*texts: str) -> str:
    return digest(NAME_TAG, *(text.encode() for text in texts))[:16]


# The three kinds.


def _calling(function: Callable[[PhaseEvent], Any]) -> Run:
    caller = Caller(function, "twophp-hook")

    async def run(event: PhaseEvent, _delivery: Delivery, _send: SignedPost | None) -> None:
        await caller.call(event)

    return run


def _posting(url: str) -> Run:
    async def run(event: PhaseEvent, delivery: Delivery, send: SignedPost | None) -> None:
        if send is None:
            raise DeliveryFailed("Webhooks have no way out here.", reason="no_egress")
        webhook_id = f"{event.id}:{_short(delivery.job.name)}"  # A name may hold what an id may not.
        await send(webhook_id, Call(url, msgspec.json.encode(event)), delivery)

    return run


def _executing(argv: tuple[str, ...], timeout_s: float) -> Run:
    async def run(event: PhaseEvent, _delivery: Delivery, _send: SignedPost | None) -> None:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith(OURS)},
            start_new_session=True,  # So that the processes it starts can be ended with it.
        )
        try:
            async with asyncio.timeout(timeout_s):
                await process.communicate(msgspec.json.encode(event))
        finally:
            await _end(process)
        if process.returncode:
            raise DeliveryFailed("The command failed.", reason="exit", status=process.returncode)

    return run


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and what it started: neither outlives the attempt. One that has ended has lost its process id."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
