"""What one call says of itself: whom it is made for, under which id, how patient it is.

A handler that makes a call need not say anything: the intent being executed is the call's parent (draft
§10.2). What is said with ``calling`` travels as a context variable: it follows into tasks and ``to_thread``, and with
``carrying`` into any other thread. The three HTTP libraries have no way in common to say it with a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, Final, ParamSpec, Self, TypeVar

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.policy import MAX_REQUESTED_TTL_MS
from twophp.core.settings import knows_its_settings, refuse_unknown
from twophp.engine.current import current_intent
from twophp.wire import grammar

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Said for one call; None is the transport's own setting."""

    parent: str | None = None
    client_correlation_id: str | None = None
    requested_ttl_ms: int | None = None
    resubmit: int | None = None

    def __post_init__(self) -> None:
        for name in ("parent", "client_correlation_id"):
            value: object = getattr(self, name)
            is_id = isinstance(value, str) and grammar.read_id(value.encode("utf-8", "replace")) is not None
            if value is not None and not is_id:
                raise ConfigError(f"{name} must be 1 to 255 visible ASCII characters", code="bad_option")
        for name, least in (("requested_ttl_ms", 1), ("resubmit", 0)):
            number: object = getattr(self, name)
            if number is not None and not (type(number) is int and least <= number <= MAX_REQUESTED_TTL_MS):
                message = f"{name} must be a whole number from {least} to 2**53, not {number!r}"
                raise ConfigError(message, code="bad_option")

    def over(self, outer: CallOptions) -> CallOptions:
        """These, and where they say nothing, the outer ones."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(outer, **said)


_NOTHING: Final = CallOptions()
_current: Final[ContextVar[CallOptions]] = ContextVar("twophp_call_options", default=_NOTHING)


class calling:  # noqa: N801 - used as a statement: ``with calling(parent=...):``
    """Say something about the calls made inside the block, in its tasks and threads.

    ``parent`` is for detached work: the client correlation id of the inbound call on whose behalf it is done.
    ``client_correlation_id`` names one call for good, so that the same call may be made again after any crash: it goes
    on where it stopped, or answers what it answered. It must not be used for a second call.
    """

    @knows_its_settings(code="bad_option")
    def __init__(
        self,
        *,
        parent: str | None = None,
        client_correlation_id: str | None = None,
        requested_ttl_ms: int | None = None,
        resubmit: int | None = None,
    ) -> None:
        self._said = CallOptions(
            parent=parent,
            client_correlation_id=client_correlation_id,
            requested_ttl_ms=requested_ttl_ms,
            resubmit=resubmit,
        )

    def __enter__(self) -> Self:
        self._token = _current.set(self._said.over(_current.get()))
        return self

    def __exit__(self, *_exc_info: object) -> None:
        _current.reset(self._token)


def carrying(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, to be run in another thread as if it were called here: with this parent and these options.

    Tasks and ``to_thread`` carry them by themselves; ``executor.submit(carrying(work))`` and
    ``Thread(target=carrying(work))`` do now.
    """
    context = copy_context()

    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(function, *args, **kwargs)

    return carried


def options_of(extension: Any = None) -> CallOptions:
    """What holds for a call made here and now. ``extension`` is what httpx was given as ``extensions["twophp"]``."""
    said = _current.get()
    if extension is not None:
        said = _options_in(extension).over(said)
    if said.parent is None and (serving := current_intent()) is not None:
        said = msgspec.structs.replace(said, parent=serving.client_correlation_id)  # draft §10.2, A-51
    return said


def _options_in(extension: object) -> CallOptions:
    if isinstance(extension, CallOptions):
        return extension
    if not isinstance(extension, Mapping):
        message = f"extensions['twophp'] must be a mapping of options, or False, not of type {type(extension).__name__}"
        raise ConfigError(message, code="bad_option")
    refuse_unknown("extensions['twophp']", map(str, extension), CallOptions.__struct_fields__, "bad_option")
    return CallOptions(**extension)
