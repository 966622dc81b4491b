"""Ledger rows as they travel to the central ledger and out of it: JSON, the draft's sixteen names, ISO 8601 instants.

All sixteen keys are there even where the value is null (P-9.8-0), then those of ours. What a newer writer adds is not
read; what it leaves out of the sixteen is refused. Nothing here is trusted: lengths, characters and ranges are judged
while reading, the rules between fields by ``core.entry.broken_rules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from twophp.core.entry import Actor, LedgerEntry
from twophp.core.errors import WireError
from twophp.core.intent import Mode, Phase
from twophp.core.misfits import UNREADABLE, WORDS, misfit
from twophp.core.records import Instant, since_epoch
from twophp.wire.instant import spelled


def _text(characters: str, least: int, most: int, words: str) -> Meta:
    """Text of these characters, all of it: ``$`` would let a newline by at the end."""
    said = f"a text of {least} to {most} {words}"
    return Meta(
        min_length=least,
        max_length=most,
        pattern=rf"\A{characters}{'+' if least else '*'}\Z",
        extra={WORDS: said},
    )


_ID: Final = "[!-~]"  # ids are opaque
_PRINTED: Final = r"[^\x00-\x1f\x7f]"
_UNCONTROLLED: Final = "characters, none of them a control character"

Id: TypeAlias = Annotated[str, _text(_ID, 1, 255, "visible ASCII characters")]
Name: TypeAlias = Annotated[str, _text(_PRINTED, 1, 256, _UNCONTROLLED)]
EndpointName: TypeAlias = Annotated[str, _text(_PRINTED, 1, 4096, _UNCONTROLLED)]
Reference: TypeAlias = Annotated[str, _text(_PRINTED, 0, 1024, _UNCONTROLLED)]
Digest: TypeAlias = Annotated[str, _text("[0-9A-Za-z:_=+/-]", 0, 128, "letters, digits or any of :_=+/-")]
At: TypeAlias = Annotated[datetime, Meta(tz=True)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=2**53 - 1)]


class WireRow(msgspec.Struct, kw_only=True, gc=False):
    """One row as JSON spells it."""

    client_correlation_id: Id
    server_correlation_id: Id
    service_ledger_id: Id
    service_endpoint: EndpointName
    actor: Actor
    source: Name
    target: Name | None
    parent_reference_id: Id
    phase: Phase
    phase_1_timestamp: At
    phase_2_timestamp: At | None
    ttl_ms: Positive
    outcome: Phase | None
    payload_ref: Reference | None
    sync_timestamp: At | None
    transaction_reference: Reference | None
    version: Positive
    mode: Mode = Mode.STANDARD
    client_id_is_proxy: bool = False
    settled_at: At | None = None
    request_digest: Digest | None = None
    indeterminate: bool = False


class _Batch(msgspec.Struct):
    """Rows are read one by one, so that the one that is wrong can be named."""

    rows: list[msgspec.Raw]
    drained: bool | UnsetType = UNSET
    head: Annotated[int, Meta(ge=0, le=2**53 - 1)] | UnsetType = UNSET


class Batch(msgspec.Struct, frozen=True):
    """What a shipper sends. ``drained``: its writer had nothing more to send when it was made.

    ``head`` is the size of the last tree head that it was given; None: it keeps none.
    """

    rows: Sequence[LedgerEntry]
    drained: bool = False
    head: int | None = None


_encode: Final = msgspec.json.Encoder().encode
_batch: Final = msgspec.json.Decoder(_Batch).decode
_row: Final = msgspec.json.Decoder(WireRow).decode
_rows: Final = msgspec.json.Decoder(list[WireRow]).decode


def row_document(entry: LedgerEntry) -> dict[str, Any]:
    """The row for a JSON encoder, in the draft's order."""
    return spelled(entry)


def encode_batch(entries: Iterable[LedgerEntry], *, drained: bool = False, head: int | None = None) -> bytes:
    """A batch for ``POST /v1/entries``."""
    seen = {} if head is None else {"head": head}
    return _encode({"rows": [row_document(entry) for entry in entries], "drained": drained, **seen})


def decode_batch(body: bytes, *, most: int) -> Batch:
    """Read an untrusted batch; raises WireError that names the first thing wrong, and takes nothing half."""
    try:
        batch = _batch(body)
    except UNREADABLE as error:
        raise WireError(f"not a batch: {misfit(error, _Batch, body)}", code="bad_batch") from None
    if len(batch.rows) > most:
        raise WireError(f"a batch has at most {most:,} rows", code="bad_batch")
    head = None if batch.head is UNSET else batch.head
    return Batch([_read(number, raw) for number, raw in enumerate(batch.rows)], batch.drained is True, head)


def _read(number: int, raw: msgspec.Raw) -> LedgerEntry:
    try:
        return _entry(_row(raw))
    except (*UNREADABLE, ValueError) as error:
        raise WireError(f"row {number}: {misfit(error, WireRow, bytes(raw))}", code="bad_batch") from None


def decode_rows(body: bytes) -> list[LedgerEntry]:
    """Rows as the central ledger or a service's own answers them; raises WireError."""
    try:
        return [_entry(row) for row in _rows(body)]
    except (*UNREADABLE, ValueError) as error:
        raise WireError(f"not rows: {misfit(error, list[WireRow], body)}", code="bad_batch") from None


_TIMES: Final = tuple(
    place for place, name in enumerate(WireRow.__struct_fields__) if name.endswith(("_timestamp", "_at"))
)
"""Where an instant stands. ``WireRow`` has the fields of ``LedgerEntry`` in their order."""


def _entry(row: WireRow) -> LedgerEntry:
    values = list(msgspec.structs.astuple(row))
    for place in _TIMES:
        if values[place] is not None:
            values[place] = instant_of(values[place])
    return LedgerEntry(*values)


def instant_of(at: datetime) -> Instant:
    """Milliseconds since the epoch; raises ValueError before it."""
    found = since_epoch(at)
    if found < 0:
        raise ValueError("an instant lies before 1970")
    return found
