"""How one endpoint behaves: its times, its mode, and what it does with a late or a crashed call.

The three presets are the draft's recommended defaults (§12.3). Every timer stands alone: none shortens another
(Part 3, "must stay separate").
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self, TypeAlias, TypedDict, Unpack

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.settings import Kinds, SettingsStruct, check_kinds

SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS

# An integer that every JSON reader can hold; a longer wish for a TTL is no wish at all.
MAX_REQUESTED_TTL_MS = 2**53

ReplayPolicy: TypeAlias = Literal["REJECT", "REUSE"]
ServeMode: TypeAlias = Literal["sync", "async"]
CrashPolicy: TypeAlias = Literal["fail", "rerun"]
Effects: TypeAlias = Literal["anywhere", "transaction"]
KeyPolicy: TypeAlias = Literal["ignore", "accept", "require"]


class PolicyChanges(TypedDict, total=False):
    """What a preset may be given: the fields of ``Policy``, spelled out for a type checker."""

    ttl_ms: int
    delta_ms: int
    max_ttl_ms: int
    mode: ServeMode
    replay: ReplayPolicy
    on_crash: CrashPolicy
    effects: Effects
    transparent: bool
    require: bool
    idempotency_key: KeyPolicy
    allow_shorter_ttl: bool
    literal_ttl_reject: bool
    processing_timeout_ms: int
    lease_ms: int
    payload_retention_ms: int
    horizon_ms: int


class Policy(SettingsStruct, frozen=True, kw_only=True):
    """One endpoint's rules. Build it from a preset: ``Policy.standard(replay="REUSE")``."""

    bad_code: ClassVar[str] = "bad_policy"

    ttl_ms: int = 30 * SECOND_MS
    delta_ms: int = 5 * SECOND_MS
    max_ttl_ms: int = 0  # 0: four times the TTL.
    mode: ServeMode = "sync"
    replay: ReplayPolicy = "REJECT"
    on_crash: CrashPolicy = "fail"
    effects: Effects = "anywhere"  # "transaction": all are in the intent's transaction and obligations (ADR 44).
    transparent: bool = False
    require: bool = False
    idempotency_key: KeyPolicy = "ignore"  # What a plain request with or without an Idempotency-Key is taken for.
    allow_shorter_ttl: bool = False
    literal_ttl_reject: bool = False
    processing_timeout_ms: int = 30 * SECOND_MS
    lease_ms: int = 30 * SECOND_MS
    payload_retention_ms: int = DAY_MS
    horizon_ms: int = 7 * DAY_MS

    def __post_init__(self) -> None:
        check_kinds(self, _KINDS, self.bad_code)
        if not self.max_ttl_ms:
            msgspec.structs.force_setattr(self, "max_ttl_ms", 4 * self.ttl_ms)
        for problem in self._problems():
            raise ConfigError(problem, code="bad_policy")

    def _problems(self) -> list[str]:
        shortest_horizon_ms = max(DAY_MS, 10 * (self.max_ttl_ms + self.delta_ms))
        rules = [
            (self.ttl_ms > 0, "ttl_ms must be positive"),
            (self.delta_ms >= 0, "delta_ms must not be negative"),
            (self.max_ttl_ms >= self.ttl_ms, "max_ttl_ms must not be below ttl_ms"),
            (self.mode in ("sync", "async"), "mode must be one of sync, async"),
            (self.replay in ("REJECT", "REUSE"), "replay must be one of REJECT, REUSE"),
            (self.on_crash in ("fail", "rerun"), "on_crash must be one of fail, rerun"),
            (self.effects in ("anywhere", "transaction"), "effects must be one of anywhere, transaction"),
            (
                not (self.require and self.transparent),
                "require and transparent exclude each other: a plain request is either refused or recorded",
            ),
            (
                self.idempotency_key in ("ignore", "accept", "require"),
                "idempotency_key must be one of ignore, accept, require",
            ),
            (
                self.idempotency_key != "require" or not (self.require or self.transparent),
                'idempotency_key="require" excludes require and transparent: without a key a request is refused',
            ),
            (self.processing_timeout_ms > 0, "processing_timeout_ms must be positive"),
            (self.lease_ms > 0, "lease_ms must be positive"),
            (self.payload_retention_ms >= 0, "payload_retention_ms must not be negative"),
            # a tombstone that goes too soon re-opens the door to a replay.
            (self.horizon_ms >= shortest_horizon_ms, "horizon_ms must be at least 24 h and 10 x (max TTL + delta)"),
            (self.horizon_ms >= self.payload_retention_ms, "horizon_ms must not be below payload_retention_ms"),
        ]
        return [problem for holds, problem in rules if not holds]

    @classmethod
    def low_latency(cls, **changes: Unpack[PolicyChanges]) -> Self:
        """TTL 5 s, grace 1 s (draft §12.3)."""
        return cls(**(PolicyChanges(ttl_ms=5_000, delta_ms=1_000) | changes))

    @classmethod
    def standard(cls, **changes: Unpack[PolicyChanges]) -> Self:
        """TTL 30 s, grace 5 s (draft §12.3). The default."""
        return cls(**(PolicyChanges(ttl_ms=30_000, delta_ms=5_000) | changes))

    @classmethod
    def long_running(cls, **changes: Unpack[PolicyChanges]) -> Self:
        """TTL 120 s, grace 10 s (draft §12.3)."""
        return cls(**(PolicyChanges(ttl_ms=120_000, delta_ms=10_000) | changes))

    @property
    def judges_plain(self) -> bool:
        """Whether requests that did not opt in need a look."""
        return self.transparent or self.require or self.idempotency_key != "ignore"

    def effective_ttl_ms(self, requested_ttl_ms: int | None) -> int:
        """The TTL in force: a wish may lengthen it up to the cap, and shorten it only where allowed (A-23)."""
        if requested_ttl_ms is None or not 0 < requested_ttl_ms <= MAX_REQUESTED_TTL_MS:
            return self.ttl_ms
        floor_ms = 1 if self.allow_shorter_ttl else self.ttl_ms
        return max(floor_ms, min(requested_ttl_ms, self.max_ttl_ms))


_WORDS: Final = {"int": ((int,), "a whole number"), "bool": ((bool,), "True or False")}
_KINDS: Final[Kinds] = tuple(
    ((name,), *_WORDS[kind]) for name, kind in Policy.__annotations__.items() if kind in _WORDS
)
