"""The outbox: what transitions owe to others, made durable with them and delivered at least once.

    OutboxMessage   the letter: what is owed, which deliverer is for it, and the bytes to deliver
    put_for         the letter as a job, for the same change as the transition               pure
    start           the first attempt of a job that was just made durable, without queueing  the request's own (A-38)
    run             everything else that is due: retries, what a crash left behind, hooks    a task of the service

The bytes are sealed once, when the job is made, and every attempt delivers what was sealed (A-39). The rules are all
in ``core.job``; here are the attempts, of which ``run`` makes a bounded number at a time. An acknowledgement goes like
this:

    owed = outbox.owing(lambda intent, now: callback_letter(intent.server_correlation_id, url, body_at(now)))
    decision = await intents.register(command, payload, policy, follow=owed)
    await owed.start(decision)                # returns when the attempt has begun; then the handler may

A flow that would owe a callback checks ``is_full`` in the very change that owes it, so that a refusal stores nothing.
Later it could only break the rule that the callback is under way before the handler, or hold unbounded work. A request
that owes nothing, such as a repeat, does not check.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import msgspec

from twophp.core import phase
from twophp.core.errors import ConfigError, DeliveryFailed, EgressError, StoreError, TwoPHPError
from twophp.core.identity import digest, seal_context
from twophp.core.intent import Intent, Phase
from twophp.core.job import (
    DEFAULT_TRIES,
    JOB,
    Command,
    Delivered,
    Enqueue,
    Failed,
    Job,
    JobDecision,
    State,
    Tick,
    Tries,
    Work,
    by_job_id,
    decide,
)
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.delivery.connectors import CONNECTORS, committed_with
from twophp.delivery.milestones import Milestones
from twophp.kernel.commands import AdHocCommand
from twophp.kernel.intents import SideEffects
from twophp.observability.observe import SILENT, Observer
from twophp.ports import Change, Find, LedgerStore, Part, Put, Records, Vault
from twophp.storing.reopening import transacted

log: Final = logging.getLogger("twophp.outbox")

CONCURRENCY: Final = 32
"""How many attempts ``run`` makes at a time."""
CAPACITY: Final = 1024
"""How many attempts may be under way before ``is_full`` is true."""
SHARES: Final = 8
"""One principal has this part of the capacity at most."""
POLL_S: Final = 1.0
CLOSE_S: Final = 10.0
CUT_OFF_S: Final = 1.0
BARRIER_S: Final = 1.0
JITTER_TAG: Final = b"twophp:jitter:1"

Barrier: TypeAlias = Literal["started", "sent"]
Wait: TypeAlias = Callable[[asyncio.Event, float], Awaitable[None]]
"""Until the event is set, or so many seconds have passed."""
Jitter: TypeAlias = Callable[[Job], float]


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be owed. ``job_id`` says what it is about, so that it is owed once."""

    job_id: str
    work: Work
    subject: str
    payload: bytes
    name: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as its deliverer sees it. ``sent`` may be called once the bytes are on their way."""

    job: Job
    payload: bytes
    now: Instant
    sent: Callable[[], None]
    obligation: Obligation | None = None  # What a connector acts on (OBL-OV-1); of an effect it is its subject.


class _About(msgspec.Struct, frozen=True):
    """The ids in a payload, as far as it has them. Each kind of payload has more, which only its deliverer reads."""

    client_correlation_id: str = ""  # Of a callback and of a hook.
    intent: str = ""  # The server correlation id, of what an obligation owes.


_ABOUT: Final = msgspec.msgpack.Decoder(_About)

Deliver: TypeAlias = Callable[[Delivery], Awaitable[None]]
"""Delivers or raises. Being cancelled means that the attempt took too long or the service stops."""
LetterOf: TypeAlias = Callable[[Intent, Instant], OutboxMessage]
LettersOf: TypeAlias = Callable[[phase.IntentDecision], Sequence[OutboxMessage]]


async def wait_for_news(news: asyncio.Event, seconds: float) -> None:
    """Until there is news, or it is time to look anyway: other processes write jobs too."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


def spread(job: Job) -> float:
    """A fraction that differs from job to job and from attempt to attempt. No random numbers: ids are random enough."""
    return int(digest(JITTER_TAG, job.job_id.encode(), str(job.attempts).encode())[:8], 16) / 0xFFFF_FFFF


class Outbox:
    """The jobs of one service. Use it from the store's event loop."""

    def __init__(
        self,
        store: LedgerStore,
        vault: Vault,
        service: str,
        *,
        deliver: Mapping[str, Deliver],
        tries: Tries = DEFAULT_TRIES,
        jitter: Jitter = spread,
        wait: Wait = wait_for_news,
        concurrency: int = CONCURRENCY,
        capacity: int = CAPACITY,
        observer: Observer = SILENT,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``after`` is called once, when the last attempt has ended, to close what the deliverers kept."""
        if min(concurrency, capacity) < 1:
            raise ConfigError("An outbox makes at least one attempt at a time.", code="bad_outbox")
        self._store = store
        self._vault = vault
        self._service = service
        self._deliver = deliver
        self._tries = tries
        self._jitter = jitter
        self._wait = wait
        self._concurrency = concurrency
        self._capacity = capacity
        self._observer = observer
        self._after = after
        self._news = asyncio.Event()
        self._attempts: set[asyncio.Task[None]] = set()
        self._of_run: set[asyncio.Task[None]] = set()
        self._started_for: Counter[str] = Counter()  # First attempts under way, by principal.
        self._closing = False

    # Making jobs.

    def put_for(self, letter: OutboxMessage, now: Instant, *, started: bool = False) -> Put:
        """The job for a letter, to be put in the change that owes it. ``started``: ``start`` follows at once."""
        command = Enqueue(
            job_id=letter.job_id, work=letter.work, subject=letter.subject, name=letter.name, started=started
        )
        decision = decide(None, command, now, self._tries)
        sealed = self._vault.seal(letter.payload, context=self._context(letter.job_id))
        assert decision.job is not None
        return Put(record=decision.job, journal=decision.steps, seals={"payload": sealed})

    def puts_for(self, letter: OutboxMessage, now: Instant, *, started: bool = False) -> tuple[Put, Put]:
        """The same for a connector of ours: the job, and the committed obligation that its deliverer must show."""
        put = self.put_for(letter, now, started=started)
        assert isinstance(put.record, Job)
        return put, committed_with(put.record, now)

    def owing(self, letter_of: LetterOf, principal: str = "") -> PendingAcknowledgement:
        """Owe one letter if a decision crosses the point of no return, and start it then, for ``principal``."""
        return PendingAcknowledgement(self, letter_of, principal)

    def follow(self, letters_of: LettersOf) -> SideEffects:
        """Owe the letters that a decision gives rise to, for ``run`` to deliver."""

        def puts(decision: phase.IntentDecision) -> tuple[Put, ...]:
            letters = letters_of(decision)
            if not letters:  # Nearly always: a service has few hooks, each for few phases.
                return ()
            now = _now_of(decision)
            return tuple(put for letter in letters for put in self.puts_for(letter, now))

        return puts

    # Attempts.

    @property
    def is_full(self) -> bool:
        """Whether so many attempts are under way that no flow should owe another."""
        return len(self._attempts) >= self._capacity

    def is_full_for(self, principal: str) -> bool:
        """Whether all the room is taken, or this principal's share of it: slow callbacks of one refuse no other's."""
        return self.is_full or self._started_for[principal] >= max(self._capacity // SHARES, 1)

    @property
    def attempts_count(self) -> int:
        """How many attempts are under way."""
        return len(self._attempts)

    def wake(self) -> None:
        """There may be jobs that are not started. Call this and ``run`` looks at once, not after its interval."""
        self._news.set()

    async def start(
        self,
        put: Put,
        obligation: Obligation | None = None,
        *,
        barrier: Barrier = "started",
        within_s: float = BARRIER_S,
        principal: str = "",
    ) -> bool:
        """Begin the first attempt of a job put with ``started=True``, and return as soon as it has begun (A-38).

        Nothing is read, written or queued, and no network is waited for. With the barrier ``sent`` the wait is for
        the bytes to be written, though not longer than ``within_s``. False: the service stops, or the barrier was
        not reached in time; the job is still delivered, by the process that finds its lease ended.
        """
        job, sealed = put.record, put.seals["payload"]
        assert isinstance(job, Job) and job.state is State.RUNNING and sealed is not None  # noqa: PT018
        if self._closing:
            return False
        milestones = Milestones()
        task = self._begin(job, obligation, sealed, milestones)
        self._started_for[principal] += 1
        task.add_done_callback(lambda _task: self._first_attempt_ended(principal))
        if barrier == "started":
            return await milestones.started
        await asyncio.wait((milestones.sent,), timeout=within_s)
        return milestones.sent.done() and milestones.sent.result()

    def _begin(
        self, job: Job, obligation: Obligation | None, sealed: Sealed, milestones: Milestones
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._attempt(job, obligation, sealed, milestones), name=f"twophp {job.job_id}")
        self._attempts.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(milestones.is_over)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._attempts.discard(task)
        self._of_run.discard(task)
        self._news.set()  # There is room for another.

    def _first_attempt_ended(self, principal: str) -> None:
        self._started_for[principal] -= 1
        if not self._started_for[principal]:
            del self._started_for[principal]

    async def _attempt(self, job: Job, obligation: Obligation | None, sealed: Sealed, milestones: Milestones) -> None:
        """Deliver once and note what came of it. If that fails, the lease ends and another attempt follows."""
        milestones.has_started()  # The request that waits goes on at our first real wait, no sooner.
        ended = await self._delivered(job, obligation, sealed, milestones.has_sent)
        try:
            noted = await self._decide(by_job_id(job.job_id), ended, self._jitter(job))
        except StoreError as error:
            message = "job %s: attempt %d ended and could not be noted: %s"
            ids = await self._ids_of(job.job_id, sealed)
            log.warning(message, job.job_id, job.attempts, error.code, extra=ids)
        else:
            self._observer.attempted(noted)
            await self._tell_of_the_dead(noted, sealed)

    async def _delivered(
        self, job: Job, obligation: Obligation | None, sealed: Sealed, sent: Callable[[], None]
    ) -> Delivered | Failed:
        try:
            async with asyncio.timeout(self._tries.attempt_ms / 1000):
                payload = self._vault.open(sealed, context=self._context(job.job_id))
                now = self._store.now() + self._store.wall_ahead_ms()  # Signed; the receiver's clock judges it.
                delivery = Delivery(job=job, payload=payload, now=now, sent=sent, obligation=obligation)
                await _deliverer_for(job, self._deliver)(delivery)
        except Exception as error:
            code = code_of(error)
            ids = await self._ids_of(job.job_id, sealed)
            slip = None if isinstance(error, TwoPHPError | TimeoutError) else error  # A hook's bug: shown here alone.
            log.warning("job %s: attempt %d failed: %s", job.job_id, job.attempts, code, extra=ids, exc_info=slip)
            return Failed(attempt=job.attempts, error=code)
        return Delivered(attempt=job.attempts)

    async def _decide(self, key: Key, command: Command, jitter: float = 1.0) -> JobDecision:
        def change(records: Records) -> Change:
            return _change(decide(records.get(key), command, records.now, self._tries, jitter=jitter))

        decision: JobDecision = await transacted(self._store, AdHocCommand((key,), change))
        return decision

    def _context(self, job_id: str) -> bytes:
        return seal_context(self._service, job_id, "payload")

    # The service's task.

    async def run(self) -> None:
        """Make the attempts that are due, until ``close``. A store that fails now is asked again later."""
        while not self._closing:
            self._news.clear()
            try:
                busy = await self.visit()
            except StoreError as error:
                log.warning("the outbox cannot look for what is due: %s", error.code)
                busy = False
            except Exception:  # Without this catch, one unexpected error would end all delivery.
                log.exception("the outbox cannot look for what is due")
                busy = False
            if not busy and not self._closing:
                await self._wait(self._news, POLL_S)

    async def visit(self) -> bool:
        """Attend to what is due, as far as there is room. Return whether anything was done."""
        room = self._concurrency - len(self._of_run)
        if room <= 0:
            return False
        keys = await self._store.due(JOB, self._store.now() + 1, room)
        done = await asyncio.gather(*(self._attend(key) for key in keys))
        return any(done)

    async def _attend(self, key: Key) -> bool:
        """Take a job. Of all processes that try, one changes the job, and it alone makes the attempt."""
        try:
            decision, obligation = await self._take(key)
            if decision.begins_attempt and decision.job is not None:
                await self._resume(decision.job, obligation)
        except StoreError as error:
            job_id = key.values[0]
            log.warning("job %s cannot be attended to: %s", job_id, error.code, extra=await self._ids_of(job_id))
            return False
        self._observer.attempted(decision)  # An attempt that was left behind may have been the last.
        await self._tell_of_the_dead(decision)
        return decision.changed

    async def _take(self, key: Key) -> tuple[JobDecision, Obligation | None]:
        """Do what is due, and have the obligation that a connector must show. Jobs of earlier releases have none."""
        owed = by_id(key.values[0])

        def change(records: Records) -> Change:
            decision = decide(records.get(key), Tick(), records.now, self._tries)
            made, found = _change(decision), records.get(owed)
            job = decision.job
            if found is not None or job is None or not decision.begins_attempt or job.work not in CONNECTORS:
                return msgspec.structs.replace(made, answer=(decision, found))
            late = committed_with(job, records.now)
            return msgspec.structs.replace(made, answer=(decision, late.record), puts=(*made.puts, late))

        found: tuple[JobDecision, Obligation | None] = await transacted(self._store, AdHocCommand((key, owed), change))
        return found

    async def _resume(self, job: Job, obligation: Obligation | None) -> None:
        sealed = await self._store.unseal(by_job_id(job.job_id), "payload")
        # Without one the job has been delivered by now, by an attempt that was given up too early.
        if sealed is not None and not self._closing:
            self._of_run.add(self._begin(job, obligation, sealed, Milestones()))

    # Log lines about jobs.

    async def _tell_of_the_dead(self, decision: JobDecision, sealed: Sealed | None = None) -> None:
        job = decision.job
        if decision.changed and job is not None and job.state is State.DEAD:
            message, ids = "job %s is dead after %d attempts: %s", await self._ids_of(job.job_id, sealed)
            log.error(message, job.job_id, job.attempts, job.last_error, extra=ids)

    async def _ids_of(self, job_id: str, sealed: Sealed | None = None) -> dict[str, str]:
        """Both correlation ids of the intent that a job is about, for a line in the log; none if there is no intent.

        The payload has them, so an attempt's line needs no store. Only where it cannot be opened the ledger is read;
        a store that fails then leaves the client's id out.
        """
        about = await self._about(job_id, sealed)
        server_id = about.intent or _server_id_in(job_id)
        client_id = about.client_correlation_id
        if server_id and not client_id:
            with suppress(StoreError):
                rows = await self._store.entries(Find(server_id))
                client_id = next((r.client_correlation_id for r in rows if r.server_correlation_id == server_id), "")
        ids = {"client_correlation_id": client_id, "server_correlation_id": server_id}
        return {name: value for name, value in ids.items() if value}

    async def _about(self, job_id: str, sealed: Sealed | None) -> _About:
        with suppress(TwoPHPError, msgspec.MsgspecError):
            sealed = sealed or await self._store.unseal(by_job_id(job_id), "payload")
            if sealed is not None:
                return _ABOUT.decode(self._vault.open(sealed, context=self._context(job_id)))
        return _About()

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Begin nothing more, and let what runs end in time. An attempt that does not is cut off, and made again later.

        ``run`` ends by itself; its owner waits for it before closing the store.
        """
        self._closing = True
        self._news.set()
        if self._attempts:
            await asyncio.wait(self._attempts, timeout=within_s)
        left = list(self._attempts)
        for task in left:
            task.cancel()
        if left:  # An attempt that resists is not waited for any longer.
            await asyncio.wait(left, timeout=CUT_OFF_S)
        if self._after is not None:
            await self._after()


class PendingAcknowledgement:
    """A ``SideEffects`` that owes one letter, and begins to deliver it once it is durable."""

    def __init__(self, outbox: Outbox, letter_of: LetterOf, principal: str = "") -> None:
        self._outbox = outbox
        self._letter_of = letter_of
        self._principal = principal
        self._puts: tuple[Put, ...] = ()

    def __call__(self, decision: phase.IntentDecision) -> tuple[Put, ...]:
        """Owe the letter. A store may decide again when a batch has to be redone: the last call counts."""
        self._puts = ()
        if decision.intent is None or not _crosses_ponr(decision):
            return ()
        now = _now_of(decision)
        self._puts = self._outbox.puts_for(self._letter_of(decision.intent, now), now, started=True)
        return self._puts

    async def start(
        self, decision: phase.IntentDecision, *, barrier: Barrier = "started", within_s: float = BARRIER_S
    ) -> bool:
        """See ``Outbox.start``. False also if the decision, as it became durable, owed nothing, or has begun."""
        if not self._puts or not decision.changed:
            return False
        (job, owed), self._puts = self._puts, ()
        assert isinstance(owed.record, Obligation)
        return await self._outbox.start(job, owed.record, barrier=barrier, within_s=within_s, principal=self._principal)


def _crosses_ponr(decision: phase.IntentDecision) -> bool:
    """Whether a step enters PROCESSING. A recovery does not: it is PROCESSING before and after."""
    return any(step.after == Phase.PROCESSING != step.before for step in decision.steps)


def _now_of(decision: phase.IntentDecision) -> Instant:
    return decision.steps[-1].observed_at


def _change(decision: JobDecision) -> Change:
    """Everything that a decision makes durable. What was delivered is not kept any longer (A-62)."""
    job = decision.job
    if not decision.changed or job is None:
        return Change(answer=decision)
    if job.state is State.ABSENT:
        return Change(answer=decision, drops=job.keys(), journal=decision.steps)
    seals: Mapping[Part, Sealed | None] = {"payload": None} if job.state is State.DELIVERED else {}
    return Change(answer=decision, puts=(Put(record=job, journal=decision.steps, seals=seals),))


def _deliverer_for(job: Job, known: Mapping[str, Deliver]) -> Deliver:
    deliver = known.get(job.work)
    if deliver is None:  # Another release of the service made the job. The next release may know it again.
        raise DeliveryFailed(f"This service has no deliverer for {job.work}.", reason="no_deliverer")
    return deliver


def _server_id_in(job_id: str) -> str:
    """The intent whose callback or hook it is. What an obligation owes is named after the obligation."""
    return "" if job_id.endswith(("/effect", "/release")) else job_id.partition("/")[0]


def code_of(error: BaseException) -> str:
    """What is kept of an error: one word. Texts may quote what must not be kept."""
    if isinstance(error, DeliveryFailed) and error.status is not None:
        return f"{error.reason}_{error.status}"
    if isinstance(error, EgressError):
        return error.reason
    if isinstance(error, TwoPHPError):
        return error.code
    return "timeout" if isinstance(error, TimeoutError) else "error"
