"""What services answer on demand and central does not keep: all about one call, and who executes what until when.

A ledger row says what became of a call; the journal behind it, the attempts and the obligations stay with the service
(A-47), and so does its lease, which is renewed while its process lives (A-54, ADR 20). Both are asked for with the
management credential, for an operator who may pull, and shown to that operator. A service that cannot be asked is part
of the answer, not an error: the other side may still have given what is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from twophp.central.api.problems import PROBLEMS, ApiProblem
from twophp.central.ingest.pull import MOST_LEASES, Puller
from twophp.central.ports import Row, Service
from twophp.core.entry import LedgerEntry
from twophp.core.pairing import PairKey
from twophp.wire.evidence import EvidenceFacts, LeaseFacts

MOST_ASKED: Final = 8
"""At most this many services are asked for one answer."""


class ServiceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one service answered, or why it did not."""

    service: Service
    evidence: EvidenceFacts | None = None
    code: str | None = None
    words: str = ""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one call's lease: the service's word, or why there is none."""

    facts: LeaseFacts | None = None
    code: str | None = None
    words: str = ""

    @property
    def state(self) -> str:
        """``ended``; ``held`` while a process executes it; ``settled`` if it is over; else ``unknown``."""
        if self.facts is None:
            return "unknown"
        if self.facts.has_ended:
            return "ended"
        return "held" if self.facts.owner is not None else "settled"


def key_of(entry: LedgerEntry) -> PairKey:
    """Both ids of the call that a row is about."""
    return entry.client_correlation_id, entry.server_correlation_id


def keepers(rows: Sequence[LedgerEntry], services: Iterable[Service]) -> list[Service]:
    """The services to ask about a call: each that wrote a row of it, and the callee if its row is not here."""
    written_by = {row.service_ledger_id for row in rows}
    has_server = any(row.actor == "server" for row in rows)
    called = set() if has_server else {row.target for row in rows}
    found = [one for one in services if one.service_ledger_id in written_by or one.name in called]
    return found[:MOST_ASKED]


async def told_about(puller: Puller, asked: Iterable[Service], key: PairKey) -> list[ServiceReply]:
    """Ask them all about one call, at the same time."""

    async def ask(service: Service) -> ServiceReply:
        try:
            return ServiceReply(service=service, evidence=await puller.evidence(service, *key))
        except ApiProblem as problem:
            return ServiceReply(service=service, code=problem.code, words=_words(problem))

    return list(await asyncio.gather(*(ask(service) for service in asked)))


async def leases_of(puller: Puller, services: Iterable[Service], rows: Iterable[Row]) -> Mapping[PairKey, Lease]:
    """Ask the services that execute these calls, each once, about all of its own."""
    wanted: dict[str, list[PairKey]] = {}
    for row in rows:
        wanted.setdefault(row.entry.service_ledger_id, []).append(key_of(row.entry))
    asked = [one for one in services if one.service_ledger_id in wanted][:MOST_ASKED]
    answers = await asyncio.gather(*(_leases(puller, one, wanted[one.service_ledger_id]) for one in asked))
    return {key: lease for answer in answers for key, lease in answer.items()}


async def _leases(puller: Puller, service: Service, keys: Sequence[PairKey]) -> dict[PairKey, Lease]:
    try:
        told = await puller.leases(service, keys)
    except ApiProblem as problem:
        return dict.fromkeys(keys, Lease(code=problem.code, words=_words(problem)))
    unknown = Lease(code="not_found", words="the service does not know this call any more")
    found = dict.fromkeys(keys[:MOST_LEASES], unknown)
    for facts in told:
        key = facts.client_correlation_id, facts.server_correlation_id
        if key in found:  # A service answers only for the calls that it was asked about.
            found[key] = Lease(facts=facts)
    return found


def _words(problem: ApiProblem) -> str:
    return problem.detail or PROBLEMS[problem.code].title
