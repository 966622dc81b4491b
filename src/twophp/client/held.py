"""What an answer that breaks off in its body means (ADR 0024).

An answer that may end a two-phase call counts only with its whole body. It is read into memory before the flow receives
it, so an answer that breaks off is a lost one: the flow asks again with the same ids. A plain server's answer, and an
answer longer than the bound, is streamed instead, and a PhaseError takes the place of the library's error.
"""

from __future__ import annotations

from typing import Final

from twophp.client import repeats
from twophp.client.exchange import CallInfo
from twophp.core.errors import OUTCOME_INDETERMINATE, Advice, PhaseError
from twophp.core.intent import SETTLED, Phase
from twophp.wire import fields, grammar, response
from twophp.wire.fields import Headers

_GOES_ON: Final = frozenset({Phase.WAITING_CONFIRM, Phase.PROCESSING})


def may_be_last(step: str, headers: Headers) -> bool:
    """Whether an answer can be the end of a two-phase call, so that its body matters."""
    phase = response.field(headers, fields.PHASE_STATE.key)
    if phase is None:  # To Phase 1, a plain server's answer; to a status read, that of a server that offers none.
        return step == "phase_2" or response.refusal(headers) is not None
    return grammar.read_phase(phase) not in _GOES_ON


def broken_off(info: CallInfo) -> PhaseError:
    """For an answer that breaks off while the caller reads it. No HTTP library's error: those are retried."""
    repeats.broke_off(info["client_correlation_id"])
    if info["indeterminate"]:
        code, advice = OUTCOME_INDETERMINATE, Advice.CHECK
        text = "it failed, and may have had effects all the same; its answer broke off"
    elif info["phase"] in SETTLED:
        code, advice = "answer_gone", Advice.DONE
        text = "the call has ended, and its answer broke off; the same named call brings it again"
    else:
        code, advice = "answer_lost", Advice.CHECK
        text = "the server's answer broke off; the server is not known to speak 2PHP, so it cannot be asked again"
    return PhaseError(
        f"{text} ({code}; {advice}; client correlation id {info['client_correlation_id']})",
        code=code,
        advice=advice,
        phase=info["phase"],
        client_correlation_id=info["client_correlation_id"],
        server_correlation_id=info["server_correlation_id"],
    )
