"""Requests that look like an opt-in and are none (A-11): they run unprotected, and an operator should know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from twophp.wire import fields
from twophp.wire.grammar import OWS

if TYPE_CHECKING:
    from twophp.wire.parse import RawHeaders

Kind: TypeAlias = Literal["value", "name", "missing"]
"""The opt-in is not ``true``; a name is almost one of the twelve; other fields came without the opt-in."""

_NO: Final = frozenset({b"false", b"no", b"off", b"0", b"?0"})
_ENABLED: Final = fields.ENABLED.key
_SENT: Final = frozenset(field.key for field in fields.REQUEST_FIELDS)


class Mistaken(NamedTuple):
    """What is wrong, and the field that shows it, as it was sent."""

    kind: Kind
    field: str


def mistaken_opt_in(headers: RawHeaders) -> Mistaken | None:
    """What looks like an opt-in in a request that has none. A client that opts out explicitly makes no mistake.

    Names are looked at in the spelling that ASGI prescribes. An ordinary one costs two searches.
    """
    found: Mistaken | None = None
    for name, value in headers:
        if b"2php" not in name and b"dtt-" not in name:
            continue
        is_no = value.strip(OWS).lower() in _NO
        if name == _ENABLED:
            return None if is_no else Mistaken("value", fields.ENABLED.name)
        if name not in fields.BY_KEY:
            if not is_no:
                found = Mistaken("name", name.decode("latin-1"))
        elif name in _SENT and found is None:
            found = Mistaken("missing", fields.BY_KEY[name].name)
    return found
