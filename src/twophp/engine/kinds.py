"""Settings of the wrong kind, said when they are made: by the setting's name, and not by whatever breaks first."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, Final, TypeAlias

from twophp.core.errors import ConfigError

YEAR_S: Final = 365 * 86_400
MOST_MS: Final = 2**53

Kinds: TypeAlias = tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...]
"""Names of settings, the types that each of them may have, and those types in words."""

_NUMBERS: Final = frozenset({bool, int, float, NoneType})


def check_kinds(said: object, kinds: Kinds) -> None:
    """Raise ConfigError for the first that is none of its types. True is no number here.

    What was given is quoted only where a flag or a number was meant: anything else may hold a secret.
    """
    for names, types, what in kinds:
        for name in names:
            given = getattr(said, name)
            if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
                is_harmless = isinstance(given, int | float | None) or _NUMBERS.issuperset(types)
                told = repr(given) if is_harmless else f"of type {type(given).__name__}"
                raise ConfigError(f"{name} must be {what}, not {told}", code="bad_setting")


def check_bounds(said: object, *, seconds: Iterable[str], milliseconds: Iterable[str]) -> None:
    """Raise ConfigError for a time that does not fit into a clock or a column. Infinity does not; None is for ever."""
    for names, most, what in ((seconds, YEAR_S, "a year"), (milliseconds, MOST_MS, "2**53")):
        for name in names:
            if not (getattr(said, name) or 0) <= most:  # So that NaN is refused as well.
                raise ConfigError(f"{name} must be at most {what}", code="bad_setting")


def several(name: str, given: object) -> tuple[Any, ...]:
    """What a setting lists. One text stands for itself, and not for its letters.

    What is wrong is told without a quotation: it may be a secret.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigError(f"{name} must be a list of texts, not of type {type(given).__name__}", code="bad_setting")
    return tuple(given)
