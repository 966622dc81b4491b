"""Whether anything may be registered, in the contract's own words."""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec

from twophp.core.registrar_records import Gate
from twophp.core.rulebook import REGISTRATION_HOLD, REPLAY_SURFACE_NOT_FIT
from twophp.core.surface import DOMAIN_FAIL_CLOSED, SurfaceReport

REGISTRATION_OPEN: Final = "REGISTRATION_OPEN"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The gate, and what it stands on. ``registration_can_proceed`` is the contract's YES or NO (REG-7-05)."""

    gate: str = REGISTRATION_HOLD
    registration_can_proceed: Literal["YES", "NO"] = "NO"
    domain_status: str = DOMAIN_FAIL_CLOSED
    surface: str = ""
    surface_status: str = REPLAY_SURFACE_NOT_FIT
    failed_criteria: tuple[str, ...] = ()
    authority_ref: str = ""
    reason: str = ""

    @property
    def can_proceed(self) -> bool:
        """Whether registrations may proceed, as a truth value."""
        return self.registration_can_proceed == "YES"

    @classmethod
    def of(cls, gate: Gate | None, report: SurfaceReport | None) -> Self:
        """Fit proven and the gate opened on top of it, or hold (A-94)."""
        if report is None:
            return cls(reason="the surface was not probed")
        proceeds = report.fit and gate is not None and gate.is_open
        return cls(
            gate=REGISTRATION_OPEN if proceeds else REGISTRATION_HOLD,
            registration_can_proceed="YES" if proceeds else "NO",
            domain_status=report.verdict.domain_status,
            surface=report.table,
            surface_status=report.verdict.code,
            failed_criteria=report.verdict.failed,
            authority_ref="" if gate is None else gate.authority_ref,
            reason="" if gate is None else gate.reason,
        )
