"""Settings of the wrong kind, said when they are made: by the setting's name, and not by whatever breaks first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from twophp.core.errors import ConfigError

Kinds: TypeAlias = tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...]
"""Names of settings, the types that each of them may have, and those types in words."""


def check_kinds(said: object, kinds: Kinds) -> None:
    """Raise ConfigError for the first that is none of its types. True is no number here."""
    for names, types, what in kinds:
        for name in names:
            given = getattr(said, name)
            if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
                raise ConfigError(f"{name} must be {what}, not {given!r}", code="bad_setting")


def several(name: str, given: object) -> tuple[Any, ...]:
    """What a setting lists. One text stands for itself, and not for its letters.

    What is wrong is told without a quotation: it may be a secret.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigError(f"{name} must be a list of texts, not of type {type(given).__name__}", code="bad_setting")
    return tuple(given)
