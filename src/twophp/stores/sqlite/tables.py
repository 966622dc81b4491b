"""How records become rows and rows become records: one ``Table`` per kind, nothing else knows a column."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import msgspec

from twophp.core import call, job
from twophp.core.budget import BY_FLOW, Spent
from twophp.core.call import BY_CLIENT_ID, CALL, Call, Stage
from twophp.core.entry import LedgerEntry
from twophp.core.fence import BY_RESOURCE, Fence
from twophp.core.intent import BY_LOGICAL_KEY, BY_PAIR, BY_SERVER_ID, CHANGING_FIELDS, INTENT, Intent, Mode, Phase
from twophp.core.job import BY_JOB_ID, JOB, Job
from twophp.core.obligation import BY_FLOW_AND_KEY, BY_ID, OBLIGATION, Obligation, State
from twophp.core.quota import BY_PRINCIPAL, Usage
from twophp.stores.sqlite.registrar_tables import REGISTRAR_TABLES
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table

_MODES: Final = {mode.value: mode for mode in Mode}
_PHASES: Final = {phase.value: phase for phase in Phase}
_STATES: Final = {state.value: state for state in State}
_STAGES: Final = {stage.value: stage for stage in Stage}
_JOB_STATES: Final = {state.value: state for state in job.State}

# A row that is read has the id, the record's fields, and then the number of the newest line about it.
_INTENT_LINE, _OBLIGATION_LINE, _JOB_LINE, _CALL_LINE = (
    1 + len(record.__struct_fields__) for record in (Intent, Obligation, Job, Call)
)
INTENT_PLACE: Final = _INTENT_LINE + 1
INTENT_HASH: Final = _INTENT_LINE + 2


def _intent(row: Row) -> Intent:
    """Spelled out by position: this runs once for every record of every batch."""
    values = list(row)
    values[6] = bool(row[6])
    values[7] = _MODES[row[7]]
    values[15] = _PHASES[row[15]]
    values[24] = bool(row[24])
    values[28] = bool(row[28])
    return Intent(*values[1:_INTENT_LINE])


def _obligation(row: Row) -> Obligation:
    values = list(row)
    values[8] = _STATES[row[8]]
    values[13] = bool(row[13])
    return Obligation(*values[1:_OBLIGATION_LINE])


def _job(row: Row) -> Job:
    values = list(row)
    values[6] = _JOB_STATES[row[6]]
    return Job(*values[1:_JOB_LINE])


def _call(row: Row) -> Call:
    values = list(row)
    values[8] = _MODES[row[8]]
    values[10] = _STAGES[row[10]]
    values[29] = bool(row[29])
    return Call(*values[1:_CALL_LINE])


def entry_of(row: Row) -> LedgerEntry:
    """A ledger row, read back."""
    values = list(row)
    values[9] = _PHASES[row[9]]
    values[13] = _PHASES[row[13]] if row[13] is not None else None
    values[18] = _MODES[row[18]]
    values[19] = bool(row[19])
    values[22] = bool(row[22])
    return LedgerEntry(*values[1:])


entry_changes: Final = attrgetter(
    *("phase", "phase_2_timestamp", "outcome", "payload_ref", "sync_timestamp", "transaction_reference", "version"),
    *("settled_at", "indeterminate"),
)

INTENTS: Final = Table(
    kind=INTENT,
    reads={
        **dict.fromkeys((BY_PAIR, BY_LOGICAL_KEY), sql("intents_by_client_id")),  # Nearly always one row.
        BY_SERVER_ID: sql("intents_by_server_id"),
    },
    due=sql("intents_due"),
    owners=sql("owners_of_intents"),
    owned=sql("intents_owned"),
    identity=BY_PAIR,
    seal=sql("seal_of_intent"),
    last_line=sql("last_line_of_intent"),
    line_column=_INTENT_LINE,
    insert=sql("insert_intent"),
    update=sql("update_intent"),
    delete=sql("delete_intent"),
    record=_intent,
    row=msgspec.structs.astuple,
    changes=attrgetter(*CHANGING_FIELDS),
)
OBLIGATIONS: Final = Table(
    kind=OBLIGATION,
    reads={BY_ID: sql("obligations_by_id"), BY_FLOW_AND_KEY: sql("obligations_by_flow_and_key")},
    due=sql("obligations_due"),
    identity=BY_ID,
    seal=sql("seal_of_obligation"),
    last_line=sql("last_line_of_obligation"),
    line_column=_OBLIGATION_LINE,
    insert=sql("insert_obligation"),
    update=sql("update_obligation"),
    delete=sql("delete_obligation"),
    record=_obligation,
    row=msgspec.structs.astuple,
    changes=attrgetter(*Obligation.__struct_fields__[7:]),
)
JOBS: Final = Table(
    kind=JOB,
    reads={BY_JOB_ID: sql("jobs_by_id")},
    due=sql("jobs_due"),
    identity=BY_JOB_ID,
    seal=sql("seal_of_job"),
    last_line=sql("last_line_of_job"),
    line_column=_JOB_LINE,
    insert=sql("insert_job"),
    update=sql("update_job"),
    delete=sql("delete_job"),
    record=_job,
    row=msgspec.structs.astuple,
    changes=attrgetter(*Job.__struct_fields__[5:]),
)
CALLS: Final = Table(
    kind=CALL,
    reads={BY_CLIENT_ID: sql("calls_by_client_id")},
    due=sql("calls_due"),
    owners=sql("owners_of_calls"),
    owned=sql("calls_owned"),
    identity=BY_CLIENT_ID,
    seal=sql("seal_of_call"),
    last_line=sql("last_line_of_call"),
    line_column=_CALL_LINE,
    insert=sql("insert_call"),
    update=sql("update_call"),
    delete=sql("delete_call"),
    record=_call,
    row=msgspec.structs.astuple,
    changes=attrgetter(*Call.__struct_fields__[call.FIXED_FIELDS :]),
)
QUOTAS: Final = Table(
    kind="quota",
    reads={BY_PRINCIPAL: sql("quotas_by_principal")},
    identity=BY_PRINCIPAL,
    insert=sql("insert_quota"),
    update=sql("update_quota"),
    delete=sql("delete_quota"),
    record=lambda row: Usage(*row[1:]),
    row=msgspec.structs.astuple,
    changes=attrgetter("open_intents", "open_bytes", "version"),
)

BUDGETS: Final = Table(
    kind="budget",
    reads={BY_FLOW: sql("budgets_by_flow")},
    identity=BY_FLOW,
    insert=sql("insert_budget"),
    update=sql("update_budget"),
    delete=sql("delete_budget"),
    record=lambda row: Spent(*row[1:]),
    row=msgspec.structs.astuple,
    changes=attrgetter("reserved", "version"),
)
FENCES: Final = Table(
    kind="fence",
    reads={BY_RESOURCE: sql("fences_by_resource")},
    identity=BY_RESOURCE,
    insert=sql("insert_fence"),
    update=sql("update_fence"),
    delete=sql("delete_fence"),
    record=lambda row: Fence(*row[1:]),
    row=msgspec.structs.astuple,
    changes=attrgetter("token", "obligation_id", "version"),
)

# The kinds that fall due and have a history. A count or a fence has neither: the records it is about have both.
TABLES: Final = {table.kind: table for table in (INTENTS, OBLIGATIONS, JOBS, CALLS)}
TABLE_OF_RECORD: Final[dict[type, Table]] = {
    Intent: INTENTS,
    Obligation: OBLIGATIONS,
    Job: JOBS,
    Call: CALLS,
    Usage: QUOTAS,
    Spent: BUDGETS,
    Fence: FENCES,
    **REGISTRAR_TABLES,
}
TABLE_OF_KEY: Final[dict[str, Table]] = {by: table for table in TABLE_OF_RECORD.values() for by in table.reads}
HASHED_KEYS: Final = frozenset({BY_PAIR, BY_LOGICAL_KEY})
"""The keys that are looked for by the hash of their first value: see ``hashes``."""
# The keys that are looked for by all their values; for the others the first is enough.
WHOLE_KEYS: Final = {by for table in TABLE_OF_KEY.values() for by, read in table.reads.items() if "->>" in read}
