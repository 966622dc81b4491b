"""When a table may serve as the registrar's replay store: the criteria, and the verdict over them.

The registrar probes a table; this module only judges its proofs. Only a proof counts: a criterion that was not probed,
or whose probe broke, has failed (REG-6-09).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from twophp.core.rulebook import REPLAY_SURFACE_NOT_FIT

DOMAIN_FAIL_CLOSED: Final = "REPLAY_DOMAIN_FAIL_CLOSED_UNTIL_SURFACE_FIT_PROVEN"
DOMAIN_READY: Final = "REPLAY_DOMAIN_READY_AS_CRITERIA"

CRITERIA: Final[Mapping[str, str]] = {
    "a": "single-use UNIQUE on replay_key, one row per logical effect, no attempt in any key",
    "b": "columns that bind operation, canonical_target, run_id, deployed_artifact_hash, owner_or_approval_binding",
    "c": "registration is its domain, not routing",
    "d": "the key is consumed atomically inside Phase 1, and a conflict rejects",
    "e": "a proven registrar is its only writer, and rows cannot be changed or deleted",
    "f": "a durable failure audit outside the rolled-back transaction",
    "g": "an exact retry returns the prior decision",
    "h": "rows or tombstones are kept for the replay horizon",
}


class SurfaceVerdict(msgspec.Struct, frozen=True):
    """The verdict over all proofs. ``fit`` is necessary for the gate to open, and not sufficient (A-94)."""

    fit: bool
    code: str
    domain_status: str
    failed: tuple[str, ...]


class SurfaceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one table: the verdict, and for each criterion why it failed. No reason means: proven."""

    table: str
    verdict: SurfaceVerdict
    reasons: Mapping[str, tuple[str, ...]]

    @property
    def fit(self) -> bool:
        """Whether every criterion is proven."""
        return self.verdict.fit

    @property
    def code(self) -> str:
        """The verdict in the contract's words."""
        return self.verdict.code


def report_surface(table: str, reasons: Mapping[str, tuple[str, ...]]) -> SurfaceReport:
    """Judge the findings of the probes. A criterion that was not probed has failed."""
    said = {letter: reasons.get(letter, ("it was not probed",)) for letter in CRITERIA}
    verdict = judge_surface({letter: not why for letter, why in said.items()})
    return SurfaceReport(table=table, verdict=verdict, reasons=said)


def judge_surface(proofs: Mapping[str, bool]) -> SurfaceVerdict:
    """All of (a) to (h), or not fit (REG-6-00)."""
    failed = tuple(letter for letter in CRITERIA if proofs.get(letter) is not True)
    if failed:
        return SurfaceVerdict(fit=False, code=REPLAY_SURFACE_NOT_FIT, domain_status=DOMAIN_FAIL_CLOSED, failed=failed)
    return SurfaceVerdict(fit=True, code=DOMAIN_READY, domain_status=DOMAIN_READY, failed=())
