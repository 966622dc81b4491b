"""What a service holds about one call beside its rows: the records, their history, what is owed and what is reserved.

The caller is the management of the service: the central ledger on demand, for an operator who looks into an incident
(A-47, A-63). Nothing sealed is opened here, so the evidence can contain no payload and no response.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from twophp.core.call import by_client_id
from twophp.core.intent import Intent, by_pair
from twophp.core.job import Job, by_job_id
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Key
from twophp.delivery.connectors import CONNECTORS
from twophp.ports import Evidence, JournalLine, Obligations, WholeStore
from twophp.storing.reopening import found

MOST_OBLIGATIONS: Final = 50
MOST_LINES: Final = 500
ACTS: Final = ("effect", "release")
"""What a settled obligation may owe; the id of such a job begins with the obligation's."""


async def evidence_of(store: WholeStore, client_correlation_id: str, server_correlation_id: str) -> Evidence:
    """All about one call, each part bounded. Settled obligations have no index by intent: each is read by itself."""
    of_intent, of_call = by_pair(client_correlation_id, server_correlation_id), by_client_id(client_correlation_id)
    intent, call = await _read(store, (of_intent, of_call))
    if call is not None and call.server_correlation_id != server_correlation_id:
        call = None
    wanted = Obligations(intent=server_correlation_id, limit=MOST_OBLIGATIONS)
    obligations = await store.obligations(wanted) if intent is not None else ()
    jobs = [job for job in await _read(store, _owed_by(obligations)) if job is not None]
    keys = [
        *([of_intent] if intent is not None else ()),
        *([of_call] if call is not None else ()),
        *(by_job_id(job.job_id) for job in jobs),
        *(by_id(obligation.obligation_id) for obligation in obligations),
    ]
    return Evidence(
        intent=intent,
        call=call,
        lines=await _history(store, keys),
        jobs=tuple(sorted(jobs, key=_made)),
        obligations=tuple(reversed(obligations)),
    )


async def intents_of(store: WholeStore, pairs: Iterable[tuple[str, str]]) -> list[Intent]:
    """The records of these calls, as far as they are executed here."""
    intents = await _read(store, [by_pair(*pair) for pair in pairs])
    return [intent for intent in intents if intent is not None]


async def _read(store: WholeStore, keys: Sequence[Key]) -> Sequence[Any]:
    return await found(store, keys) if keys else ()


def _owed_by(obligations: Iterable[Obligation]) -> list[Key]:
    """The jobs that may be there for them: a connector's has its obligation's own id, an effect's one made of it."""
    ids = [
        id_
        for one in obligations
        for id_ in ((one.obligation_id,) if one.flow in CONNECTORS else (f"{one.obligation_id}/{act}" for act in ACTS))
    ]
    return [by_job_id(id_) for id_ in ids]


async def _history(store: WholeStore, keys: Iterable[Key]) -> tuple[JournalLine, ...]:
    lines = [line for key in keys for line in await store.history(key)]
    return tuple(sorted(lines, key=lambda line: line.seq)[:MOST_LINES])


def _made(job: Job) -> tuple[int, str]:
    return job.created_at, job.job_id
