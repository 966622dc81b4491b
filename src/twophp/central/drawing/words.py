"""How things are called on a page: phases, verdicts, durations. Short, and the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from twophp.central.drawing.svg import NO_BREAK
from twophp.central.missing import Missing
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.pairing import Pair, Reason
from twophp.core.policy import DAY_MS, HOUR_MS, SECOND_MS

MINUTE_MS: Final = 60 * SECOND_MS

Written: TypeAlias = Callable[[float], str]
"""How a number is written."""

PHASES: Final = (
    Phase.COMMITTED,
    Phase.FAILED,
    Phase.TTL_EXPIRED,
    Phase.ABANDONED,
    Phase.WAITING_CONFIRM,
    Phase.PROCESSING,
)
INDETERMINATE: Final = "INDETERMINATE"
"""How a FAILED call is shown if it is unknown whether its effects happened (A-34)."""

State: TypeAlias = str
"""What a page shows of a call: its phase, or that it is indeterminate."""

STATES: Final[Sequence[State]] = (*PHASES[:2], INDETERMINATE, *PHASES[2:])
"""In the order that pictures and legends have them: how calls end, then those that have not."""

CLASSES: Final[Mapping[State, str]] = {state: state.lower().replace("_", "-") for state in (*Phase, INDETERMINATE)}
"""The name of a state's colour in the style sheet and of its symbol, so that no state is shown by colour alone."""

LABELS: Final[Mapping[State, str]] = {
    Phase.ABSENT: "Absent",
    Phase.WAITING_CONFIRM: "Waiting",
    Phase.PROCESSING: "Processing",
    Phase.COMMITTED: "Committed",
    Phase.FAILED: "Failed",
    INDETERMINATE: "Indeterminate",
    Phase.TTL_EXPIRED: "Expired",
    Phase.ABANDONED: "Abandoned",
}

MEANINGS: Final[Mapping[State, str]] = {
    Phase.ABSENT: "nothing is known of it",
    Phase.WAITING_CONFIRM: "registered, not confirmed yet; nothing has run",
    Phase.PROCESSING: "confirmed; past the point of no return, and running",
    Phase.COMMITTED: "done, and its answer is kept",
    Phase.FAILED: "ran and failed; its answer is kept",
    INDETERMINATE: "failed, and nobody knows whether its effects happened: look before it is made anew",
    Phase.TTL_EXPIRED: "not confirmed in time; nothing ran",
    Phase.ABANDONED: "never confirmed, and cleaned up; nothing ran",
}

_SHORT: Final[Mapping[Reason, str]] = {
    Reason.NONE: "",
    Reason.TWO_WRITERS: "two ledgers claim one side",
    Reason.ALTERED_COPY: "one version, two contents",
    Reason.ENDPOINT_DIFFERS: "the rows name other endpoints",
    Reason.CALLEE_DIFFERS: "another service answered",
    Reason.REQUEST_DIFFERS: "sent is not what was received",
    Reason.PHASE_CONTRADICTS: "the two phases contradict",
    Reason.TRANSPARENT: "plain caller, by design",
    Reason.ANSWER_LOST: "never confirmed, answer lost",
    Reason.ANSWER_UNDER_WAY: "not confirmed yet",
    Reason.CALLBACK_LOST: "callback has not arrived",
    Reason.CLIENT_UNREAD: "client has not synced it",
    Reason.SERVER_UNREAD: "server has not synced it",
    Reason.SERVER_ROW_MISSING: "server never registered it",
}
_SHORT_MISSING: Final[Mapping[Missing, str]] = {
    Missing.PLAIN_CALLER: "plain caller, by design",
    Missing.EXPIRED: "never confirmed, answer lost",
    Missing.NEVER_REGISTERED: "ledger not registered here",
    Missing.NOT_SYNCED_YET: "not synced yet",
    Missing.LOST: "lost: should be here",
}


def row_state(entry: LedgerEntry) -> State:
    """What a page shows of a row."""
    return INDETERMINATE if entry.indeterminate else entry.phase


def reason(pair: Pair, missing: Missing | None) -> str:
    """Why a call is not simply paired, in a few words."""
    return _SHORT_MISSING[missing] if missing is not None else _SHORT[pair.reason]


def duration(duration_ms: float) -> str:
    """``0.4 ms``, ``38 ms``, ``1.2 s``, ``4.5 min``, ``5 h``, ``6 d``."""
    if duration_ms < 0:
        return "-" + duration(-duration_ms)
    units = ((SECOND_MS, 1, "ms"), (MINUTE_MS, SECOND_MS, "s"), (2 * HOUR_MS, MINUTE_MS, "min"))
    for below_ms, unit_ms, name in (*units, (2 * DAY_MS, HOUR_MS, "h")):
        if duration_ms < below_ms:
            return f"{_short(duration_ms / unit_ms)}{NO_BREAK}{name}"
    return f"{_short(duration_ms / DAY_MS)}{NO_BREAK}d"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"  # noqa: PLR2004 - Two digits are enough.


def count(value: float) -> str:
    """``1,234``; from a million on ``1.2 M``."""
    million = 1_000_000
    return f"{value / million:.1f}{NO_BREAK}M" if value >= million else f"{value:,.0f}"


def rate(part: float, whole: float) -> str:
    """``99.2 %``, never rounded up to all nor down to none."""
    if not whole:
        return "\N{EN DASH}"
    percent = 100 * part / whole
    if 0 < percent < 0.1:  # noqa: PLR2004 - Less than what is written.
        return f"<{NO_BREAK}0.1{NO_BREAK}%"
    if 99.95 <= percent < 100:  # noqa: PLR2004 - See above.
        return f">{NO_BREAK}99.9{NO_BREAK}%"
    return f"{percent:.1f}{NO_BREAK}%"


def confirmed_after_ms(entry: LedgerEntry) -> int | None:
    """From Phase 1 to Phase 2, by the writer's clock (A-56)."""
    return None if entry.phase_2_timestamp is None else entry.phase_2_timestamp - entry.phase_1_timestamp


def ran_for_ms(entry: LedgerEntry) -> int | None:
    """From Phase 2 to the outcome; where the server confirmed by itself, from Phase 1 (A-44)."""
    begun = entry.phase_2_timestamp or entry.phase_1_timestamp
    is_settled = entry.phase in {Phase.COMMITTED, Phase.FAILED}
    return entry.settled_at - begun if is_settled and entry.settled_at is not None else None
