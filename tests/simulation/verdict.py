"""What must hold at the end, when all faults are over and everybody has come to an end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.database import Database
from tests.simulation.service import RING, SERVICE
from twophp.core.call import OPEN, UNPROVEN, Call, Stage, call_facts
from twophp.core.identity import intent_seal_context
from twophp.core.intent import SETTLED, Intent, Phase, by_pair, fixed_facts, outcome_facts
from twophp.core.job import Job
from twophp.core.job import State as JobState
from twophp.core.obligation import LEAK_EVENT, Obligation, State
from twophp.core.pairing import Pair, Reason, Verdict, pair_up
from twophp.engine.exchange import decode_response
from twophp.kernel.journal import GENESIS, decode_lines, is_intact
from twophp.stores.vault import AesGcmVault

if TYPE_CHECKING:
    from tests.simulation.world import World

_VAULT: Final = AesGcmVault(RING)
_AT_REST: Final = frozenset({Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED})
_ENDED: Final = frozenset({JobState.DELIVERED, JobState.DEAD})
# Where the fields stand in a line: its number, the line before it, the record, then the event's own.
_EVENT, _AFTER, _FENCE, _DETAIL = 5, 7, 10, 12


def restless(world: World) -> Iterator[str]:
    """What has not come to its end."""
    for wanted in world.wanted:
        if not wanted.is_over:
            yield f"order {wanted.order.number} has a caller that waits"
    for shop in world.shop_ledgers:
        for call in shop.of("call"):
            if call.stage in OPEN or call.stage is Stage.GIVEN_UP:
                yield f"call {call.client_correlation_id} of {shop.name} is {call.stage}: {call.last_error}"
    yield from _restless_records(world.orders)


def _restless_records(orders: Database) -> Iterator[str]:
    for intent in orders.of("intent"):
        if intent.phase not in _AT_REST:
            yield f"intent {intent.server_correlation_id} is {intent.phase}, owned by {intent.owner}"
    for obligation in orders.of("obligation"):
        if obligation.state is State.RESERVED:
            yield f"obligation {obligation.obligation_id} of {obligation.intent} is Reserved"
    for job in orders.of("job"):
        if job.state not in _ENDED:
            yield f"job {job.job_id} is {job.state}"


def findings(world: World) -> Iterator[str]:
    """Everything that does not hold."""
    for database in (world.orders, *world.shop_ledgers):
        yield from _journal(database)
    yield from _outcomes(world)
    yield from _obligations(world)
    yield from _rows(world)
    yield from _pairs(world)
    yield from _hooks(world)


def _outcomes(world: World) -> Iterator[str]:
    orders, oracle = world.orders, world.oracle
    for id_, (phase, status, body) in oracle.acknowledged.items():
        found = orders.intent(id_)
        if found is None or found.phase != phase:
            yield f"{id_} was acknowledged as {phase} and is {None if found is None else found.phase}"
        elif (kept := _response(orders, found)) is None or (status != 200 and kept[0] != status) or kept[1] != body:
            yield f"{id_} was acknowledged with {status} {body!r}, and what is kept is {kept}"
    for intent in orders.of("intent"):
        if intent.phase in SETTLED and _response(orders, intent) is None:
            yield f"{intent.server_correlation_id} has no stored answer"
        number = _answering_run(world, intent) if intent.phase in SETTLED else None
        runs = oracle.runs.get(intent.server_correlation_id, ())
        if number is not None and not any((run.number, run.intent.fence) == (number, intent.fence) for run in runs):
            yield f"{intent.server_correlation_id} has fence {intent.fence}, and the answer of run {number}"
        if intent.phase is Phase.COMMITTED and not oracle.runs.get(intent.server_correlation_id):
            yield f"{intent.server_correlation_id} is COMMITTED and never ran"
        if intent.phase is Phase.ABANDONED and oracle.runs.get(intent.server_correlation_id):
            yield f"{intent.server_correlation_id} is ABANDONED and ran"


def _response(database: Database, intent: Intent) -> tuple[int, bytes] | None:
    key = by_pair(intent.client_correlation_id, intent.server_correlation_id)
    sealed = database.unseal(key, "response")
    if sealed is None:
        return None
    response = decode_response(_VAULT.open(sealed, context=intent_seal_context(SERVICE, intent, "response")))
    return response.status, response.body


def _answering_run(world: World, intent: Intent) -> int | None:
    """The run whose answer is the outcome; None if the outcome was found out otherwise."""
    kept = _response(world.orders, intent)
    _order, run_mark, number = (b"", b"", b"") if kept is None else kept[1].partition(b"-r")
    return int(number.rstrip(b'"}')) if run_mark else None


def _obligations(world: World) -> Iterator[str]:
    orders = world.orders
    settled = Counter(
        event.subject
        for _record, event in orders.lines
        if event.kind == "obligation" and event.after in {State.COMMITTED, State.ROLLED_BACK}
    )
    of_intent: defaultdict[str, list[Obligation]] = defaultdict(list)
    for obligation in orders.of("obligation"):
        if obligation.flow == "publish":
            of_intent[obligation.intent].append(obligation)
            if settled[obligation.obligation_id] != 1:
                yield f"obligation {obligation.obligation_id} was settled {settled[obligation.obligation_id]} times"
    for id_, held in of_intent.items():
        intent = orders.intent(id_)
        committed = sum(one.state is State.COMMITTED for one in held)
        number = None if intent is None else _answering_run(world, intent)
        if committed and (intent is None or intent.phase is not Phase.COMMITTED):
            yield f"{committed} obligations of {id_} are committed, and it is not"
        elif intent is not None and intent.phase is Phase.COMMITTED and number is not None:
            run = next(run for run in world.oracle.runs[id_] if run.number == number)
            if committed != run.order.reserves:
                yield f"{id_} is COMMITTED with {committed} of {run.order.reserves} obligations"


def _rows(world: World) -> Iterator[str]:
    """Business rows and COMMITTED are one commit."""
    found = Counter((id_, run) for id_, _order, run in world.orders.business)
    wanted: Counter[tuple[str, int]] = Counter()
    for intent in world.orders.of("intent"):
        if intent.phase is Phase.COMMITTED and (number := _answering_run(world, intent)) is not None:
            runs = world.oracle.runs[intent.server_correlation_id]
            if any(run.number == number and run.order.writes_row for run in runs):
                wanted[intent.server_correlation_id, number] += 1
    for row in (found - wanted).keys() | (wanted - found).keys():
        yield f"{row} has {found[row]} business rows, and should have {wanted[row]}"


def _pairs(world: World) -> Iterator[str]:
    ledgers = (world.orders, *world.shop_ledgers)
    rows = [entry for database in ledgers for entry in database.entries.values()]
    for pair in pair_up(rows, read=frozenset({SERVICE})):
        if not _is_explained(world, pair):
            phases = f"client {pair.client and pair.client.phase}, server {pair.server and pair.server.phase}"
            yield f"{pair.key} is {pair.verdict}: {pair.reason}; {phases}"


def _is_explained(world: World, pair: Pair) -> bool:
    if pair.reason is Reason.PHASE_CONTRADICTS:  # A confirm that arrived in time was decided late: see the page.
        return any(call.last_error == UNPROVEN for call in _calls(world, pair))
    if pair.is_alarm or pair.verdict is Verdict.CLIENT_ONLY:
        return False
    if pair.reason is Reason.CLIENT_UNREAD:
        return pair.client_correlation_id in world.unledgered
    if pair.verdict is Verdict.PAIRED and pair.client is not None and pair.server is not None:
        ended = {Phase.TTL_EXPIRED: Phase.ABANDONED}.get(pair.client.phase, pair.client.phase)
        return ended == pair.server.phase
    return pair.reason is not Reason.ANSWER_UNDER_WAY


def _calls(world: World, pair: Pair) -> Iterator[Call]:
    for ledger in world.shop_ledgers:
        yield from (call for call in ledger.of("call") if call.client_correlation_id == pair.client_correlation_id)


def _hooks(world: World) -> Iterator[str]:
    jobs: dict[str, Job] = {job.job_id: job for job in world.orders.of("job")}
    for intent in world.orders.of("intent"):
        id_ = f"{intent.server_correlation_id}/told/{intent.phase}"
        if id_ not in jobs:
            yield f"no hook is owed for {id_}"
        elif jobs[id_].state is JobState.DELIVERED and not world.oracle.told.get(id_.replace("/told/", ":")):
            yield f"the hook of {id_} counts as delivered and was never called"


def _journal(database: Database) -> Iterator[str]:
    """The chain holds, and records are as the last lines about them say."""
    lines: dict[int, list[object]] = {}
    previous = GENESIS
    for link in database.links:
        if link.expected(previous) != link.hash:
            yield f"{database.name}: link {link.id} does not follow from the one before it"
        previous = link.hash
        lines.update((line[0], line) for line in decode_lines(link.lines))
    for number, line in lines.items():
        if not is_intact(line):
            yield f"{database.name}: line {number} was changed"
    for row in database.rows.values():
        last = lines.get(database.last_line.get(row.id, 0))
        if last is not None and (wrong := _differs(row.record, last)):
            yield f"{database.name}: {row.keys[0].values} differs from its last line: {wrong}"


def _differs(record: object, line: list[object]) -> str:
    if isinstance(record, Intent):
        wanted = (record.phase.value, record.fence)
        found: tuple[object, ...] = (line[_AFTER], line[_FENCE])
        if line[_EVENT] in {"COMMITTED", "FAILED"} and line[_DETAIL] not in {"", outcome_facts(record)}:
            return "its outcome was changed"
        if line[_EVENT] == "WAITING_CONFIRM" and line[_DETAIL] not in {"", fixed_facts(record)}:
            return "its request was changed"
    elif isinstance(record, Call):
        wanted, found = (record.stage.value, record.fence), (line[_AFTER], line[_FENCE])
        if line[_DETAIL] != call_facts(record) and line[_EVENT] != LEAK_EVENT:
            return "its facts were changed"
    elif isinstance(record, Job):
        wanted, found = (record.state.value, record.attempts), (line[_AFTER], line[_FENCE])
    elif isinstance(record, Obligation):
        wanted, found = (record.state.value, 0), (line[_AFTER], 0)
    else:
        return ""
    return "" if wanted == found else f"{wanted}, {found}"
