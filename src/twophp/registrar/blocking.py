"""The registrar for code without an event loop: the asynchronous one behind a portal. Any thread may use it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from twophp.core.compensation import CompensationDecision
from twophp.core.errors import StoreUnavailable
from twophp.core.records import Instant
from twophp.core.registrar import Decision
from twophp.core.registrar_records import Compensated, Failure
from twophp.core.registration import Registration, RegistrationRequest
from twophp.core.settings import knows_its_settings
from twophp.core.surface import SurfaceReport
from twophp.ports import Clock, MintId
from twophp.registrar.flow import AsyncRegistrar, Verifier
from twophp.registrar.opening import OWN_SURFACE
from twophp.registrar.surface import Status
from twophp.stores.clock import mint_uuid, system_clock
from twophp.stores.portal import Portal


class Registrar:
    """A logical request is consumed once, with any nonce and any attempt. See ``AsyncRegistrar`` for every contract.

    Threads that call at the same time share one transaction.
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
        self._registrar = AsyncRegistrar(
            url,
            surface=surface,
            strict_effect_identity=strict_effect_identity,
            verifier=verifier,
            clock=clock,
            mint=mint,
        )
        self._portal = Portal("twophp-registrar")
        self._portal.open(self._registrar.start(), self._registrar.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what was accepted and let go. Closing twice is closing once, and a forked child closes nothing."""
        with suppress(StoreUnavailable):  # The registrar is closed, or belongs to the parent process.
            self._portal.run(self._registrar.close())
        self._portal.close()

    def probe(self) -> SurfaceReport:
        """Prove the surface again; a proof that fails puts every caller on hold."""
        return self._portal.run(self._registrar.probe())

    def open_gate(self, authority_ref: str) -> Status:
        """Let registrations proceed, on the word of ``authority_ref``."""
        return self._portal.run(self._registrar.open_gate(authority_ref))

    def hold(self, reason: str) -> Status:
        """Close the gate."""
        return self._portal.run(self._registrar.hold(reason))

    def status(self) -> Status:
        """Whether anything may be registered, and why not."""
        return self._portal.run(self._registrar.status())

    def issue_nonce(
        self, owner_or_approval_binding: str, valid_for_secs: float = 300, *, valid_after_secs: float = 0
    ) -> str:
        """A single-use credential for this envelope and window."""
        return self._portal.run(
            self._registrar.issue_nonce(
                owner_or_approval_binding, valid_for_secs=valid_for_secs, valid_after_secs=valid_after_secs
            )
        )

    def register(self, request: RegistrationRequest) -> Decision:
        """Consume the logical key and write its inert registration, or say why not (T3)."""
        return self._portal.run(self._registrar.register(request))

    def resolve(self, logical_request_key: str) -> Decision:
        """What became of a key, for good. After ABSENT no earlier attempt comes through."""
        return self._portal.run(self._registrar.resolve(logical_request_key))

    def compensate(
        self,
        logical_request_key: str,
        authorization_nonce: str,
        *,
        owner_or_approval_binding: str | None = None,
        attempt_id: str | None = None,
        issued_at: Instant | None = None,
        valid_until: Instant | None = None,
    ) -> CompensationDecision:
        """Make up for a registration that the verifier rejected (S3), with a nonce of its own."""
        options: dict[str, Any] = {
            "owner_or_approval_binding": owner_or_approval_binding,
            "attempt_id": attempt_id,
            "issued_at": issued_at,
            "valid_until": valid_until,
        }
        return self._portal.run(self._registrar.compensate(logical_request_key, authorization_nonce, **options))

    def find(self, logical_request_key: str) -> Registration | None:
        """What is committed under a key right now."""
        return self._portal.run(self._registrar.find(logical_request_key))

    def compensations(self, logical_request_key: str) -> Sequence[Compensated]:
        """The compensations of a key, oldest first."""
        return self._portal.run(self._registrar.compensations(logical_request_key))

    def audit(self, logical_request_key: str | None = None, *, limit: int = 100) -> Sequence[Failure]:
        """What was refused, newest first: of one key, or of all."""
        return self._portal.run(self._registrar.audit(logical_request_key, limit=limit))

    def attempts(self, logical_request_key: str, *, limit: int = 100) -> Sequence[str]:
        """The attempts known under a key."""
        return self._portal.run(self._registrar.attempts(logical_request_key, limit=limit))

    def check(self) -> None:
        """Raise CONSUMED_STATE_ERASED_BY_STALE_REQUEST if a consumed key is gone."""
        self._portal.run(self._registrar.check())
