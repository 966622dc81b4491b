"""The registrar, asynchronous: look, decide and write in one transaction, verify on another connection, note refusals.

The order of one registration:

1. look at the key with the witness's own connection: what is there before the attempt begins;
2. one transaction of the store: T3 decides over what is there now, and row 10 writes all or nothing;
3. the paired verifier reads the committed rows back, and its verdict is a row of its own (A-92);
4. what was refused is noted on a connection of its own, after everything was rolled back (A-93).

An answer from a record that has no verdict yet asks the verifier first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from types import NoneType, SimpleNamespace
from typing import Any, Final, Self

from twophp.core import compensation, registrar
from twophp.core.compensation import CompensationDecision
from twophp.core.errors import CommitUnknown, ConfigError, Refused, StoreError, StorePoisoned, StoreUnavailable
from twophp.core.records import Instant
from twophp.core.registrar import Decision, require_kept
from twophp.core.registrar_records import (
    Compensated,
    Failure,
    Unverified,
    nonce_digest,
)
from twophp.core.registration import CompensationRequest, Registration, RegistrationRequest, VerifyStatus, is_text
from twophp.core.rulebook import PRIOR_RESULT, REGISTRATION_HOLD, VERIFY_FAILED, Answer
from twophp.core.settings import Kinds, check_kinds, knows_its_settings
from twophp.core.surface import SurfaceReport
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Clock, MintId
from twophp.registrar import changes
from twophp.registrar.changes import Command
from twophp.registrar.concurrent_attempts import ConcurrentAttempts, Crowds
from twophp.registrar.opening import OWN_SURFACE, Opened, open_parts
from twophp.registrar.surface import Status, examine_own
from twophp.registrar.witness import Witness
from twophp.stores.clock import mint_uuid, system_clock
from twophp.storing.reopening import transacted

log: Final = logging.getLogger("twophp.registrar")

MS: Final = 1_000
LONGEST_S: Final = 10_000_000_000
"""Three hundred years: what is above would not fit beside other times."""
REVERIFIED_AT_START: Final = 1_000
COMPENSATIONS_LOOKED_AT: Final = 1_000
ERASED_NAMED: Final = 10
LOST: Final = "T3-9"
EFFECT_IDENTITY: Final = {False: "with run_id", True: "without run_id"}

_KINDS: Final[Kinds] = (
    (("url", "surface"), (str,), "a text"),
    (("strict_effect_identity",), (bool, NoneType), "True, False or None"),
)

Verifier = Callable[[Registration], bool]
"""A check of yours beside ours: it sees the registration as it was read back. Raising leaves it PENDING."""


class AsyncRegistrar:
    """A logical request is consumed once, with any nonce and any attempt. Use it from one event loop.

    ``verifier`` is asked beside our own read-back and can only make it stricter. With ``strict_effect_identity`` the
    same operation on the same target and artifact is one effect in every run; a database keeps the setting it
    began with, which is False by default.
    ``surface`` names the table to register in; any but our own is examined, and holds the gate shut.
    """

    @knows_its_settings()
    def __init__(
        self,
        url: str,
        *,
        surface: str = OWN_SURFACE,
        strict_effect_identity: bool | None = None,
        verifier: Verifier | None = None,
        clock: Clock = system_clock,
        mint: MintId = mint_uuid,
    ) -> None:
        said = SimpleNamespace(url=url, surface=surface, strict_effect_identity=strict_effect_identity)
        check_kinds(said, _KINDS)
        hooks: tuple[object, ...] = (clock, mint) if verifier is None else (clock, mint, verifier)
        if not all(map(callable, hooks)):
            raise ConfigError("clock and mint must be callables, verifier too, or None", code="bad_setting")
        self._url = url
        self._surface = surface
        self._wants_strict = strict_effect_identity
        self._strict = False
        self._verifier = verifier
        self._mint = mint
        self._clock = clock
        self._crowds = Crowds()
        self._parts: Opened | None = None
        self._report: SurfaceReport | None = None
        self._proven_schema: int | None = None
        self._probing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, prove the surface, and ask the verifier about every record without a verdict."""
        if self._parts is not None:
            return
        self._parts = await open_parts(self._url, self._clock)
        try:
            await self._keep_effect_identity()
            await self._require_kept(by_history=False)
            await self.probe()
            for one in await self._witness.unverified(REVERIFIED_AT_START):
                await self._verify(one)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was accepted and close the store. Closing twice is closing once."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    # Authority: the gate and the nonces.

    async def probe(self) -> SurfaceReport:
        """Prove the surface again. If that fails, every caller is back on hold (A-94)."""
        async with self._probing:
            return await self._prove()

    async def _prove(self) -> SurfaceReport:
        schema = await self._witness.schema()
        report = await examine_own(self._opened, self._surface)
        self._report, self._proven_schema = report, schema
        if not report.fit:
            reason = f"{report.verdict.code}: {', '.join(report.verdict.failed)}"
            await self._transact(changes.gating(is_open=False, authority_ref="", reason=reason))
        return report

    async def open_gate(self, authority_ref: str) -> Status:
        """Let registrations proceed, on the word of ``authority_ref``. Needs a proven surface, which is proven now."""
        if not is_text(authority_ref) or not authority_ref.strip():
            raise Refused("the gate opens on an authority's word: name the authority", code=REGISTRATION_HOLD)
        report = await self.probe()
        if not report.fit:
            failed = ", ".join(report.verdict.failed)
            raise Refused(f"{report.table} is not proven fit; failed: {failed}", code=report.verdict.code)
        await self._transact(changes.gating(is_open=True, authority_ref=authority_ref, reason=""))
        return await self.status()

    async def hold(self, reason: str) -> Status:
        """Close the gate. What is consumed stays consumed, and can still be resolved."""
        await self._transact(changes.gating(is_open=False, authority_ref="", reason=reason))
        return await self.status()

    async def status(self) -> Status:
        """Whether anything may be registered, and why not."""
        return Status.of(await self._witness.gate(), self._report)

    async def issue_nonce(
        self, owner_or_approval_binding: str, valid_for_secs: float = 300, *, valid_after_secs: float = 0
    ) -> str:
        """A single-use credential for this envelope and window; what it authorises is decided when it is presented."""
        if not is_text(owner_or_approval_binding) or not _are_times(valid_for_secs, valid_after_secs):
            raise ConfigError("a nonce needs an envelope and a window: a text, and seconds", code="bad_nonce")
        valid_for_ms, after_ms = round(valid_for_secs * MS), round(valid_after_secs * MS)
        if valid_for_ms < 1:
            raise ConfigError("a nonce needs a window that is open at some time", code="bad_nonce")
        nonce: str = await self._transact(
            changes.issuing(self._mint(), owner_or_approval_binding, after_ms, valid_for_ms)
        )
        return nonce

    # Registrations.

    def register(self, request: RegistrationRequest) -> Coroutine[Any, Any, Decision]:
        """Consume the logical key and write its inert registration, or say why not (T3).

        The attempt begins with this call, not when it is awaited: an attempt that wins in between has won a race.
        """
        crowd = self._crowds.join(_text(request.logical_request_key))
        return self._register(request, crowd)

    async def _register(self, request: RegistrationRequest, crowd: ConcurrentAttempts) -> Decision:
        over = False
        try:
            decision = await self._attempt(request, crowd)
            over = decision.admitted or (decision.row == LOST and not crowd.has_won)
        finally:
            self._crowds.leave(_text(request.logical_request_key), crowd, over=over)
        if _is_failure(decision):
            await self._note(request, decision)
        return decision

    async def _attempt(self, request: RegistrationRequest, crowd: ConcurrentAttempts) -> Decision:
        key = request.logical_request_key
        fit = await self._is_fit()
        if not request.is_complete:
            return registrar.decide(request, await self._facts_without_key(fit=fit), 0)
        look = await self._witness.look(key)
        if crowd.was_free is None:
            crowd.was_free = look.is_free
        keys, decide = changes.registering(request, look, was_free=crowd.was_free, surface_fit=fit, strict=self._strict)
        made: list[Decision] = []

        def noticing(records: Any) -> Any:
            change = decide(records)
            made[:] = [change.answer]
            return change

        try:
            decision: Decision = await self._transact((keys, noticing))
        except (StoreUnavailable, CommitUnknown, StorePoisoned) as error:
            if not made or not made[0].admitted:
                raise  # Nothing was to be written.
            return registrar.uncommitted(made[0], known=not isinstance(error, CommitUnknown))
        crowd.has_won = crowd.has_won or decision.admitted
        return await self._after(decision)

    async def _facts_without_key(self, *, fit: bool) -> registrar.Facts:
        gate = await self._witness.gate()
        return registrar.Facts(gate_open=gate is not None and gate.is_open, surface_fit=fit)

    async def _after(self, decision: Decision) -> Decision:
        """The decision with the verifier's word: what is PENDING is verified before the caller is answered (A-92)."""
        found = decision.result
        if found is None or found.verify_status is not VerifyStatus.PENDING:
            return decision
        key = found.logical_request_key
        status = await self._verify(Unverified("registration", key, key))
        return registrar.verified(decision, status) if decision.admitted else registrar.informed(decision, status)

    async def resolve(self, logical_request_key: str) -> Decision:
        """What became of a key, for good. After ABSENT no earlier attempt comes through: issue it again.

        Takes the write lock: a read beside an open transaction proves nothing. It answers on hold, and at any age.
        """
        decision: Decision = await self._transact(changes.resolving(logical_request_key))
        return await self._after(decision)

    async def compensate(
        self,
        logical_request_key: str,
        authorization_nonce: str,
        *,
        owner_or_approval_binding: str | None = None,
        attempt_id: str | None = None,
        issued_at: Instant | None = None,
        valid_until: Instant | None = None,
    ) -> CompensationDecision:
        """Make up for a registration that the verifier rejected (S3), with a nonce of its own (A-98).

        The envelope is the registration's own unless another is named. Nothing is recreated: a row is added.
        """
        found = await self._witness.find(logical_request_key)
        envelope = found.owner_or_approval_binding if found is not None else "?"
        request = CompensationRequest(
            logical_request_key,
            envelope if owner_or_approval_binding is None else owner_or_approval_binding,
            authorization_nonce,
            self._mint() if attempt_id is None else attempt_id,
            issued_at,
            valid_until,
        )
        await self._verify_all_of(logical_request_key)
        wish = changes.compensating(request, surface_fit=await self._is_fit())
        decision: CompensationDecision = await self._transact(wish)
        if decision.admitted:
            one = Unverified("compensation", authorization_nonce, logical_request_key)
            decision = compensation.verified(decision, await self._verify(one))
        elif _is_failure(decision):
            await self._note(request, decision)
        return decision

    # The verifier.

    async def _verify_all_of(self, key: str) -> None:
        """Verify every record of a key without a verdict, since the next decision asks for the verdicts."""
        found = await self._witness.find(key)
        if found is not None and found.verify_status is VerifyStatus.PENDING:
            await self._verify(Unverified("registration", key, key))
        for row in await self._witness.compensations(key, COMPENSATIONS_LOOKED_AT):
            await self._verify(Unverified("compensation", row.authorization_nonce, key))

    async def _verify(self, one: Unverified) -> VerifyStatus:
        """Write the verdict down. An error of any kind proves nothing: the verdict stays PENDING, and is never PASS."""
        try:
            status = await self._read_back(one)
            if status is VerifyStatus.PENDING:
                return status
            verdict: VerifyStatus = await self._transact(changes.verifying(one, status))
        except (Exception, SystemExit):  # SystemExit would end the event loop and all its callers.
            log.exception("the verifier could not speak about %s %s", one.about, one.subject)
            return VerifyStatus.PENDING
        return verdict

    async def _read_back(self, one: Unverified) -> VerifyStatus:
        if one.about == "compensation":
            return compensation.verify(await self._witness.readback_of_compensation(one.subject))
        readback = await self._witness.readback(one.subject)
        status = registrar.verify(readback)
        if status is not VerifyStatus.PASS or self._verifier is None:
            return status
        agrees = await asyncio.to_thread(self._verifier, readback.registrations[0])
        return VerifyStatus.PASS if agrees is True else VerifyStatus.FAIL

    # Looking.

    async def find(self, logical_request_key: str) -> Registration | None:
        """What is committed under a key right now. It proves nothing about attempts under way: ``resolve`` does."""
        return await self._witness.find(logical_request_key)

    async def compensations(self, logical_request_key: str) -> Sequence[Compensated]:
        """The compensations of a key, oldest first."""
        return await self._witness.compensations(logical_request_key, COMPENSATIONS_LOOKED_AT)

    async def audit(self, logical_request_key: str | None = None, *, limit: int = 100) -> Sequence[Failure]:
        """What was refused, newest first: of one key, or of all."""
        return await self._witness.failures(logical_request_key, limit)

    async def attempts(self, logical_request_key: str, *, limit: int = 100) -> Sequence[str]:
        """The attempts known under a key: the one that it was consumed by first, then those that were refused."""
        found = await self._witness.find(logical_request_key)
        refused = [line.attempt_id for line in reversed(await self.audit(logical_request_key, limit=limit))]
        return [*([] if found is None else [found.attempt_id]), *refused]

    async def check(self) -> None:
        """Raise CONSUMED_STATE_ERASED_BY_STALE_REQUEST if a consumed key is gone, by all of history (REG-4-07)."""
        await self._require_kept(by_history=False)
        await self._require_kept(by_history=True)

    # Inside.

    @property
    def _opened(self) -> Opened:
        if self._parts is None:
            raise StoreUnavailable("the registrar is closed", code="store_closed")
        return self._parts

    @property
    def _witness(self) -> Witness:
        return self._opened.witness

    async def _transact(self, wish: Command) -> Any:
        return await transacted(self._opened.store, AdHocCommand(*wish))

    async def _is_fit(self) -> bool:
        """Whether the surface is proven fit as it is: a proof holds for the schema that it was made over."""
        if await self._witness.schema() != self._proven_schema:
            async with self._probing:
                if await self._witness.schema() != self._proven_schema:  # No other task has proven it since.
                    await self._prove()
        return self._report is not None and self._report.fit

    async def _keep_effect_identity(self) -> None:
        wanted = EFFECT_IDENTITY[bool(self._wants_strict)]
        kept = await self._opened.store.get_or_set_meta("registrar_effect_identity", wanted)
        if self._wants_strict is not None and kept != wanted:
            raise ConfigError(f"this database tells effects apart {kept}, not {wanted}", code="other_effect_identity")
        self._strict = kept == EFFECT_IDENTITY[True]

    async def _require_kept(self, *, by_history: bool) -> None:
        require_kept(await self._witness.erased(ERASED_NAMED, by_history=by_history), ())

    async def _note(self, request: RegistrationRequest | CompensationRequest, decision: Answer[Any]) -> None:
        """A line of the audit, on its own connection, after the rollback. If it cannot be written the call fails."""

        def failure(at: Instant) -> Failure:
            return Failure(
                failure_id=self._mint(),
                at=at,
                code=decision.code,
                cause=decision.cause or "",
                row=decision.row,
                logical_request_key=_text(request.logical_request_key),
                replay_key=_replay_key(request),
                attempt_id=_text(request.attempt_id),
                nonce_digest=nonce_digest(_text(request.authorization_nonce)),
            )

        try:
            await transacted(self._opened.audit, AdHocCommand(*changes.noting(failure)))
        except StoreError as error:
            message = f"{decision.code}, and its audit could not be written: {error.message}"
            raise StoreError(message, code="audit_failed") from error


def _are_times(*seconds: object) -> bool:
    numbers = (one for one in seconds if isinstance(one, int | float) and not isinstance(one, bool))
    return sum(0 <= one <= LONGEST_S for one in numbers) == len(seconds)  # NaN is in no range.


def _is_failure(decision: Answer[Any]) -> bool:
    """A refusal to be noted. A retry that gets its prior result is none; on hold nothing is written (REG-7-06)."""
    refused = not decision.admitted and decision.code not in (PRIOR_RESULT, REGISTRATION_HOLD)
    return refused or (decision.admitted and decision.code == VERIFY_FAILED)


def _replay_key(request: RegistrationRequest | CompensationRequest) -> str:
    return request.replay_key if isinstance(request, RegistrationRequest) and request.is_complete else ""


def _text(value: object) -> str:
    """What a line of the audit can hold of a field that may be anything."""
    return str(value or "").encode(errors="replace").decode()
