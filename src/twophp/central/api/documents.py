"""What the API says, as types: the answers are made of these, and the OpenAPI document is generated from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from twophp.central.ingest.told import Lease, ServiceReply
from twophp.central.missing import WORDS as MISSING_WORDS
from twophp.central.missing import Missing
from twophp.central.ports import Ack, Alarm, Role, Row, Service, Sla, Token, TreeHead
from twophp.core.calltree import Branch
from twophp.core.misfits import WORDS
from twophp.core.pairing import Pair, PairKey, Reason, Verdict
from twophp.wire.evidence import EvidenceFacts, facts_document
from twophp.wire.instant import spelled
from twophp.wire.rows import Id, Name, WireRow, row_document

InstantText: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Guid: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", extra={WORDS: "a GUID in lower case"})
]
Hex: TypeAlias = Annotated[str, Meta(pattern=r"\A([0-9a-f]{2})*\Z")]

_encode: Final = msgspec.json.Encoder().encode


def json_answer(document: Any, status: int = 200) -> Response:
    """A JSON answer that no cache keeps: what a ledger says is for the caller who asked."""
    return Response(_encode(document), status, {"Cache-Control": "no-store"}, "application/json")


class RowDocument(WireRow, kw_only=True):
    """A row: the draft's sixteen fields, ours, and the number it arrived under."""

    sequence: int


class RowsDocument(msgspec.Struct, kw_only=True):
    """A page of rows, newest arrival first; ``cursor`` goes on, null at the end."""

    rows: list[RowDocument]
    cursor: str | None


class LeaseDocument(msgspec.Struct, kw_only=True):
    """What a service says about who executes a call: `ended`, `held`, `settled` by now, or `unknown` and why."""

    client_correlation_id: str
    server_correlation_id: str
    state: Literal["ended", "held", "settled", "unknown"]
    owner: str | None
    lease_until: InstantText | None
    fence: int | None
    code: str | None
    words: str


class StalledDocument(RowsDocument, kw_only=True):
    """The draft's stalled rows; and apart, those that have been PROCESSING for long (A-54).

    With ``ask_leases`` the services are asked whose lease has ended: what is held or settled is then left out of
    ``processing_past_lease``, and ``leases`` has what was said of each. Else ``leases`` is null.
    """

    processing_past_lease: list[RowDocument]
    leases: list[LeaseDocument] | None


class CallDocument(msgspec.Struct, kw_only=True):
    """One call: both rows as far as they are here, the verdict, and why a side is missing."""

    client_correlation_id: str
    server_correlation_id: str
    verdict: Verdict
    reason: Reason
    words: str
    is_alarm: bool
    indeterminate: bool
    missing: Missing | None
    missing_words: str | None
    client: WireRow | None
    server: WireRow | None
    rivals: list[WireRow]


class PairsDocument(msgspec.Struct, kw_only=True):
    """A page of calls, the one that changed last first."""

    pairs: list[CallDocument]
    cursor: str | None


class ToldDocument(msgspec.Struct, kw_only=True):
    """What one service tells about a call beside its rows; without `evidence`, `code` and `words` say why not."""

    service_ledger_id: str
    name: str
    evidence: EvidenceFacts | None
    code: str | None
    words: str


class IntentDocument(msgspec.Struct, kw_only=True):
    """A call, and what the services on both sides tell about it now. Nothing of that is kept here."""

    call: CallDocument
    told: list[ToldDocument]


class TreeCallDocument(CallDocument, kw_only=True):
    """A call in a tree. Calls come breadth first; ``parent`` is the place of the one it was made for."""

    depth: int
    parent: int | None


class TreeDocument(msgspec.Struct, kw_only=True):
    """A call tree: up to the root, then everything below. ``complete``: no side of any call is missing."""

    calls: list[TreeCallDocument]
    rows: int
    complete: bool
    above: str | None
    too_deep: bool
    cut: bool


class AckDocument(msgspec.Struct, kw_only=True):
    """What became of one row of a batch."""

    client_correlation_id: str
    server_correlation_id: str
    actor: str
    version: int
    outcome: Literal["stored", "known", "older", "refused"]
    sync_timestamp: InstantText | None
    code: str | None
    detail: str | None


class GivenHeadDocument(msgspec.Struct, kw_only=True):
    """The newest head, signed, the key, and the proof that it continues the one that the writer was given last."""

    note: str
    key: str
    path: list[Hex]


class AcksDocument(msgspec.Struct, kw_only=True):
    """One for each row, in the order of the batch; and the newest head for whoever says which one it has."""

    acks: list[AckDocument]
    head: GivenHeadDocument | None


class BatchDocument(msgspec.Struct, kw_only=True):
    """A batch of rows. ``drained``: the writer has nothing more to send. ``head``: the size of the last head it has."""

    rows: Annotated[list[WireRow], Meta(max_length=5_000)]
    drained: bool = False
    head: Annotated[int, Meta(ge=0, le=2**53 - 1)] | UnsetType = UNSET


class ClaimDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A service's registration. It claims the GUID it has written rows under since its first start (A-59)."""

    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    service_ledger_id: Guid | None = None
    pull_url: Annotated[str, Meta(max_length=2048)] | None = None


class ServiceDocument(msgspec.Struct, kw_only=True):
    """A registered ledger."""

    service_ledger_id: str
    name: str
    registered_at: InstantText
    last_sync_at: InstantText | None
    rows: int
    can_be_pulled: bool


class ServicesDocument(msgspec.Struct, kw_only=True):
    """Every registered ledger, by name."""

    services: list[ServiceDocument]


class PullRequestDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to pull: everything that was not sent yet, or every row with one id."""

    correlation_id: Id | None = None


class SlaDocument(msgspec.Struct, kw_only=True):
    """The report: one line per endpoint and day (UTC), from server rows."""

    since: InstantText
    until: InstantText
    lines: list[Sla]


class AlarmDocument(msgspec.Struct, kw_only=True):
    """Something that an operator must look at."""

    alarm_id: int
    at: InstantText
    code: str
    service_ledger_id: str
    client_correlation_id: str
    server_correlation_id: str
    detail: str


class AlarmsDocument(msgspec.Struct, kw_only=True):
    """The newest alarms."""

    alarms: list[AlarmDocument]


class TokenDocument(msgspec.Struct, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    roles: list[Role]
    created_at: InstantText
    service_ledger_id: str | None
    expires_at: InstantText | None
    revoked_at: InstantText | None
    last_used_at: InstantText | None


class TokensDocument(msgspec.Struct, kw_only=True):
    """Every token, newest first."""

    tokens: list[TokenDocument]


class NewTokenDocument(TokenDocument, kw_only=True):
    """A new token with its secret, which is shown once."""

    secret: str


class TokenRequestDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to be made."""

    name: Name
    roles: Annotated[list[Role], Meta(min_length=1, max_length=4)]
    expires_in_days: Annotated[int, Meta(ge=1, le=3650)] | None = None


class RevokedDocument(msgspec.Struct, kw_only=True):
    """The token that no longer opens anything."""

    token_id: str


class HeadDocument(msgspec.Struct, kw_only=True):
    """The Merkle tree's head (RFC 9162)."""

    size: int
    root: Hex
    at: InstantText


class InclusionDocument(msgspec.Struct, kw_only=True):
    """That leaf ``sequence`` is in the tree of ``size`` leaves with this root. Leaves count from 1."""

    sequence: int
    size: int
    root: Hex | None
    leaf: Hex
    path: list[Hex]
    row: RowDocument | None


class RowProofDocument(msgspec.Struct, kw_only=True):
    """A row in one version, and the way from its leaf to the root."""

    sequence: int
    leaf: Hex
    path: list[Hex]
    row: RowDocument


class RowProofsDocument(msgspec.Struct, kw_only=True):
    """A proof as one file: a signed head, the key that signed it, and rows under it. `head` is SIZE:ROOT."""

    head: str
    note: str
    key: str
    proofs: list[RowProofDocument]


class ConsistencyDocument(msgspec.Struct, kw_only=True):
    """That the tree of ``new_size`` leaves begins with the one of ``old_size``."""

    old_size: int
    new_size: int
    new_root: Hex | None
    path: list[Hex]


class HealthDocument(msgspec.Struct, kw_only=True):
    """Well."""

    status: Literal["ok"]


def row_of(row: Row) -> dict[str, Any]:
    """See RowDocument."""
    return row_document(row.entry) | {"sequence": row.sequence}


def call_of(pair: Pair, missing: Mapping[PairKey, Missing]) -> dict[str, Any]:
    """See CallDocument."""
    why = missing.get(pair.key)
    names = (
        "client_correlation_id",
        "server_correlation_id",
        "verdict",
        "reason",
        "words",
        "is_alarm",
        "indeterminate",
    )
    return {name: getattr(pair, name) for name in names} | {
        "missing": why,
        "missing_words": None if why is None else MISSING_WORDS[why],
        "client": None if pair.client is None else row_document(pair.client),
        "server": None if pair.server is None else row_document(pair.server),
        "rivals": [row_document(row) for row in pair.rivals],
    }


def told_of(told: ServiceReply) -> dict[str, Any]:
    """See ToldDocument."""
    return {
        "service_ledger_id": told.service.service_ledger_id,
        "name": told.service.name,
        "evidence": None if told.evidence is None else facts_document(told.evidence),
        "code": told.code,
        "words": told.words,
    }


def lease_of(key: PairKey, lease: Lease) -> dict[str, Any]:
    """See LeaseDocument."""
    facts = dict.fromkeys(("owner", "lease_until", "fence")) if lease.facts is None else facts_document(lease.facts)
    return {
        "client_correlation_id": key[0],
        "server_correlation_id": key[1],
        "state": lease.state,
        "owner": facts["owner"],
        "lease_until": facts["lease_until"],
        "fence": facts["fence"],
        "code": lease.code,
        "words": lease.words,
    }


def tree_calls_of(calls: Iterable[Branch], missing: Mapping[PairKey, Missing]) -> list[dict[str, Any]]:
    """See TreeCallDocument: flat, so that no depth is too much for its reader."""
    documents: list[dict[str, Any]] = []
    parents: dict[int, int] = {}
    for place, call in enumerate(calls):
        parents |= dict.fromkeys(map(id, call.children), place)
        made_for = {"depth": call.depth, "parent": parents.get(id(call))}
        documents.append(call_of(call.pair, missing) | made_for)
    return documents


def ack_of(ack: Ack) -> dict[str, Any]:
    """See AckDocument."""
    return spelled(ack)


def service_of(service: Service) -> dict[str, Any]:
    """See ServiceDocument."""
    names = [name for name in Service.__struct_fields__ if name != "pull_url"]
    return spelled(service, names) | {"can_be_pulled": service.pull_url is not None}


def token_of(token: Token) -> dict[str, Any]:
    """See TokenDocument."""
    return spelled(token) | {"roles": sorted(token.roles)}


def alarm_of(alarm: Alarm) -> dict[str, Any]:
    """See AlarmDocument."""
    return spelled(alarm)


def head_of(head: TreeHead) -> dict[str, Any]:
    """See HeadDocument."""
    return spelled(head) | {"root": head.root.hex()}
