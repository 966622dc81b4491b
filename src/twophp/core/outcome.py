"""The outcome that a handler's status means.

A handler with a 2xx has done its work, and so has one with 303: with "see other" a POST points to its result (RFC 9110
§15.4.4). Every other 3xx points elsewhere or says that nothing is new, so the handler has done nothing. A handler with
a 4xx or 5xx has failed (A-08).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twophp.core.intent import CONFIRMED_BY_SERVER, Intent, Phase

if TYPE_CHECKING:
    from twophp.core.intent_commands import Register

SUCCESS_END: Final = 300
SEE_OTHER: Final = 303
FAILURE_STATUS: Final = 400
REDIRECTS: Final = frozenset({301, 302, 307, 308})
"""Statuses with a place where the same request may be made again (RFC 9110 §15.4)."""
INDETERMINATE: Final = "indeterminate"
"""The event of the line that settles an intent whose effects are unknown (A-34)."""


def has_succeeded(status: int) -> bool:
    """Whether the handler has done its work."""
    return status < SUCCESS_END or status == SEE_OTHER


def has_failed(status: object) -> bool:
    """Whether the status means failure. False for a value that is no status."""
    return type(status) is int and not has_succeeded(status)


def was_redirected(intent: Intent) -> bool:
    """Whether the handler did nothing but send the client elsewhere."""
    return intent.phase is Phase.FAILED and intent.status in REDIRECTS


def is_followed_by(intent: Intent, command: Register) -> bool:
    """T2 row 7: the same request once more, at the place of the redirect. Only that place differs."""
    return (
        was_redirected(intent)
        and command.follows == intent.server_correlation_id
        and command.method == intent.method
        and command.request_digest == intent.request_digest
        and command.callback == intent.callback
        and (command.mode in CONFIRMED_BY_SERVER) == (intent.mode in CONFIRMED_BY_SERVER)
    )
