"""Settings that cannot work, because they are unknown or of the wrong kind, are refused by their names.

A misspelt keyword is a ConfigError like any other bad setting, and names the setting that was probably meant. Plain
callables are decorated with ``knows_its_settings``; values derive from ``SettingsStruct``. Both leave a type checker's
view as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from types import NoneType
from typing import Any, ClassVar, Final, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from twophp.core.errors import ConfigError

YEAR_S: Final = 365 * 86_400
MOST_MS: Final = 2**53

Kinds: TypeAlias = tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...]
"""Names of settings, the types that each of them may have, and those types in words."""

_NUMBERS: Final = frozenset({bool, int, float, NoneType})

P = ParamSpec("P")
R = TypeVar("R")


def hint_of(name: str, known: Iterable[str]) -> str:
    """The name, and the known one that was probably meant."""
    spelled = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), spelled, 1)
    return f"{name} (did you mean {spelled[close[0]]}?)" if close else name


def refuse_unknown(of: str, given: Iterable[str], known: Collection[str], code: str = "bad_setting") -> None:
    """Raise ConfigError if ``of`` was given a setting that it does not have."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        said = ", ".join(hint_of(name, known) for name in unknown)
        raise ConfigError(f"{of}: unknown setting: {said}", code=code)


def knows_its_settings(
    *more: type, of: str | None = None, code: str = "bad_setting"
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a callable that takes settings as keywords. ``more`` are the TypedDicts behind its ``**settings``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        named = signature(function).parameters.values()
        spread = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
        known = {parameter.name for parameter in named if parameter.kind not in spread and parameter.name != "self"}
        known.update(*(keys.__annotations__ for keys in more))
        by_place = [one.name for one in named if _is_needed(one) and one.kind is not Parameter.KEYWORD_ONLY]
        by_name = [one.name for one in named if _is_needed(one) and one.kind is Parameter.KEYWORD_ONLY]
        name = of or function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def checked(*args: P.args, **settings: P.kwargs) -> R:
            refuse_unknown(name, settings, known, code)
            try:
                return function(*args, **settings)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # Of what it does, and not of how it was called.
                raise _misused(name, [*by_place[len(args) :], *by_name], settings, code) from None

        return checked

    return decorate


def _is_needed(parameter: Parameter) -> bool:
    spread = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return parameter.default is Parameter.empty and parameter.kind not in spread


def _misused(of: str, needed: Iterable[str], given: Collection[str], code: str) -> ConfigError:
    """What Python calls a TypeError: a setting that has to be said was not, or one was given without its name."""
    missing = [f"{name}=" for name in needed if name not in given]
    said = f"say {' and '.join(missing)}" if missing else "settings are given by their names"
    return ConfigError(f"{of}: {said}", code=code)


class _SettingsMeta(msgspec.StructMeta):
    def __call__(cls, *args: Any, **settings: Any) -> Any:  # noqa: N805 - of a metaclass.
        refuse_unknown(cls.__name__, settings, cls.__struct_fields__, cls.bad_code)
        try:
            return super().__call__(*args, **settings)
        except TypeError:
            needed = [
                field.name for field in msgspec.structs.fields(cast("type[msgspec.Struct]", cls)) if field.required
            ]
            if args or not settings.keys() >= set(needed):
                raise _misused(cls.__name__, needed, settings, cls.bad_code) from None
            raise

    bad_code: str


class SettingsStruct(msgspec.Struct, metaclass=_SettingsMeta, frozen=True, kw_only=True):
    """A value made of settings. Made from outside by its name, so an unknown keyword is a ConfigError."""

    bad_code: ClassVar[str] = "bad_setting"


def check_kinds(said: object, kinds: Kinds, code: str = "bad_setting") -> None:
    """Raise ConfigError for the first setting of a wrong type. True is no number here.

    The value is quoted only where a flag or a number is expected: any other may hold a secret.
    """
    for names, types, what in kinds:
        for name in names:
            given = getattr(said, name)
            if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
                is_harmless = isinstance(given, int | float | None) or _NUMBERS.issuperset(types)
                told = repr(given) if is_harmless else f"of type {type(given).__name__}"
                raise ConfigError(f"{name} must be {what}, not {told}", code=code)


def check_rules(rules: Iterable[tuple[bool, str]], code: str = "bad_setting") -> None:
    """Raise ConfigError with the problem of the first rule that does not hold."""
    for holds, problem in rules:
        if not holds:
            raise ConfigError(problem, code=code)


def check_bounds(said: object, *, seconds: Iterable[str], milliseconds: Iterable[str]) -> None:
    """Raise ConfigError for a time that does not fit into a clock or a column. Infinity does not; None is for ever."""
    for names, most, what in ((seconds, YEAR_S, "a year"), (milliseconds, MOST_MS, "2**53")):
        for name in names:
            if not (getattr(said, name) or 0) <= most:  # So that NaN is refused as well.
                raise ConfigError(f"{name} must be at most {what}", code="bad_setting")


def several(name: str, given: object, code: str = "bad_setting") -> tuple[Any, ...]:
    """The entries of a setting that is a list. One text is one entry, not a list of its letters.

    The error message does not quote the value, which may be a secret.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigError(f"{name} must be a list of texts, not of type {type(given).__name__}", code=code)
    return tuple(given)
