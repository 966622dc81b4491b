"""What a check says: a finding has a level, what it means, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from twophp.core.errors import TwoPHPError

Level: TypeAlias = Literal["ok", "warn", "fail"]

EXIT_CODES: Final[dict[Level, int]] = {"ok": 0, "warn": 1, "fail": 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``check`` is its stable name; ``remedy`` is empty when there is nothing to do."""

    check: str
    level: Level
    means: str
    remedy: str = ""


def ok(check: str, means: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check=check, level="ok", means=means)


def warn(check: str, means: str, remedy: str) -> Finding:
    """A check that found a risk: the service works, and may be hurt."""
    return Finding(check=check, level="warn", means=means, remedy=remedy)


def fail(check: str, means: str, remedy: str) -> Finding:
    """A check that failed: the service does not work, or does not keep a promise."""
    return Finding(check=check, level="fail", means=means, remedy=remedy)


def failed_with(check: str, error: TwoPHPError, remedy: str) -> Finding:
    """An error of ours, which begins with its code."""
    return fail(check, str(error), remedy)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the whole."""
    return max((finding.level for finding in findings), key=lambda level: EXIT_CODES[level], default="ok")
