"""What a value may look like; every check takes linear time.

A pattern of the wire is a sequence of bounded character classes, applied with ``fullmatch``; no repeat holds another
repeat, and a repeat never meets a neighbour that could start with one of its own characters. So nothing is ever
tried twice. ``tests/wire/test_linear.py`` reads the compiled patterns and keeps it so.

Each ``read_`` function takes a stripped value and returns the meaning, or None when there is none. Whether None is
refused or ignored is the caller's rule, not the grammar's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from twophp.core.intent import Phase
from twophp.core.policy import MAX_REQUESTED_TTL_MS

if TYPE_CHECKING:
    from twophp.core.policy import ReplayPolicy

OWS: Final = b" \t"
"""The only white space around a value (RFC 9110 §5.6.3). ``bytes.strip()`` would also eat CR, LF, VT and FF."""

TRUE: Final = b"true"
MAX_CALLBACK_BYTES: Final = 2048
MAX_PORT: Final = 65_535

_ID: Final = re.compile(rb"[!-~]{1,255}")  # visible ASCII
_UUID: Final = re.compile(rb"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
_DIGITS: Final = re.compile(rb"[0-9]{1,16}")  # 2**53 has sixteen, so ``int`` never sees a long number.
_RESOURCE_ID: Final = re.compile(rb"[!-~]{1,256}")  # visible ASCII
_MESSAGE: Final = re.compile(rb"[ -~]{1,200}")
_LOCATION: Final = re.compile(rb"[!-~]{1,2048}")
# draft §5.5.2: "A client-provided HTTPS endpoint". The host's class has no "@", so there is no userinfo; the
# rest has no "#", so there is no fragment, and no "\", which some URL parsers read as "/" and so see another host.
_CALLBACK: Final = re.compile(
    rb"[Hh][Tt][Tt][Pp][Ss]://"
    rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    rb"(?::([0-9]{1,5}))?"
    rb"(?:[/?][A-Za-z0-9._~:/?@!$&'()*+;=%\[\]-]{0,2048})?"
)

# An id without a comma cannot be taken for two values that were joined (RFC 9110 §5.3).
_PLAIN_ID: Final = re.compile(rb"[!-+\--~]{1,255}")

# For a caller that needs only a yes or a no: the pattern itself, without a call of ours around it.
matches_id: Final = _ID.fullmatch
matches_plain_id: Final = _PLAIN_ID.fullmatch
matches_uuid: Final = _UUID.fullmatch
matches_resource_id: Final = _RESOURCE_ID.fullmatch

_PHASES: Final = {phase.value.encode(): phase for phase in Phase if phase is not Phase.ABSENT}
_REPLAY_POLICIES: Final[dict[bytes, ReplayPolicy]] = {b"REJECT": "REJECT", b"REUSE": "REUSE"}


def is_true(value: bytes) -> bool:
    """``true`` in any case; ``1``, ``yes``, ``?1`` and the rest are not (A-11)."""
    return value.lower() == TRUE


def read_id(value: bytes) -> str | None:
    """Read a correlation id: opaque (draft §13.1), so any visible ASCII up to 255 characters (A-13)."""
    return value.decode("ascii") if _ID.fullmatch(value) else None


def is_uuid(value: bytes) -> bool:
    """Whether an id has the form the draft's figures show; any version, any case."""
    return _UUID.fullmatch(value) is not None


def read_milliseconds(value: bytes) -> int | None:
    """Read a positive whole number of milliseconds that every JSON reader can hold (A-23)."""
    if not _DIGITS.fullmatch(value):
        return None
    number = int(value)
    return number if 0 < number <= MAX_REQUESTED_TTL_MS else None


def read_callback(value: bytes) -> str | None:
    """Read an https URL without userinfo and fragment. Where its host leads is checked elsewhere (A-65)."""
    if len(value) > MAX_CALLBACK_BYTES:
        return None
    match = _CALLBACK.fullmatch(value)
    if match is None:
        return None
    port = match[1]
    if port is not None and not 0 < int(port) <= MAX_PORT:
        return None
    return value.decode("ascii")


def read_phase(value: bytes) -> Phase | None:
    """Read one of the six names (draft §7), in exactly their spelling."""
    return _PHASES.get(value)


def read_replay_policy(value: bytes) -> ReplayPolicy | None:
    """Read ``REJECT`` or ``REUSE`` (draft §8.2)."""
    return _REPLAY_POLICIES.get(value)


def read_resource_id(value: bytes) -> str | None:
    """Read up to 256 visible ASCII characters (A-05)."""
    return value.decode("ascii") if _RESOURCE_ID.fullmatch(value) else None


def read_message(value: bytes) -> str | None:
    """Read up to 200 printable ASCII characters (A-69)."""
    return value.decode("ascii") if _MESSAGE.fullmatch(value) else None


def read_location(value: bytes) -> str | None:
    """Read a URL reference that cannot break out of its header field."""
    return value.decode("ascii") if _LOCATION.fullmatch(value) else None
