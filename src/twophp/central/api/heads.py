"""Signed tree heads over HTTP, for auditors and witnesses: text in the formats of transparency logs (ADR 47)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from twophp.central.api.documents import InstantText, json_answer
from twophp.central.api.problems import ApiProblem
from twophp.central.api.routes import describe
from twophp.central.api.state import Central, CentralPart, Reader
from twophp.central.ports import SignedHead
from twophp.core.errors import Refused
from twophp.wire.instant import format_instant
from twophp.wire.rows import instant_of

MOST: Final = 2**53 - 1
At: TypeAlias = Annotated[datetime | None, Query(description="An instant with its offset from UTC.")]
TEXT: Final = "text/plain; charset=utf-8"

router: Final = APIRouter(tags=["proofs"])


class HeadKeyDocument(msgspec.Struct, kw_only=True):
    """The key that signs tree heads: `NAME+ID+BASE64(0x01 || Ed25519 key)`. Note it where no operator of it can."""

    key: str


class SignedHeadDocument(msgspec.Struct, kw_only=True):
    """A tree head as it was signed. `note` is a checkpoint (C2SP tlog-checkpoint) with its signature."""

    number: int
    size: int
    root: str
    at: InstantText
    note: str


class SignedHeadsDocument(msgspec.Struct, kw_only=True):
    """Heads, newest first; `next` goes on, and is null at the end."""

    heads: list[SignedHeadDocument]
    next: int | None


_note: Final[dict[str, Any]] = describe(None, 404, 409)
_note["responses"][200] = {"description": "A signed note.", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/v1/heads/key", **describe(HeadKeyDocument))
async def key(central: CentralPart) -> Response:
    """The public key. It is no secret, so nobody is asked who they are."""
    return json_answer({"key": str(central.heads.public)})


@router.get("/v1/heads/latest", **_note)
async def latest(central: CentralPart, _principal: Reader) -> Response:
    """The head of everything that is here, signed."""
    return _text((await signed_head(central, None)).note)


@router.get("/v1/heads/{number}", **_note)
async def one(central: CentralPart, _principal: Reader, number: Annotated[int, Path(ge=1, le=MOST)]) -> Response:
    """A head that was signed, by its number."""
    found = await central.store.heads(before=number + 1, limit=1)
    if not found or found[0].number != number:
        raise ApiProblem("not_found")
    return _text(found[0].note)


@router.get("/v1/heads", **describe(SignedHeadsDocument))
async def heads(
    central: CentralPart,
    _principal: Reader,
    at: At = None,
    before: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """The heads that were signed, newest first; with `at` the one that was the latest then."""
    if at is not None:
        found = await central.store.head_at(_instant(at))
        return json_answer({"heads": [] if found is None else [head_document(found)], "next": None})
    many = await central.store.heads(before=before, limit=limit)
    return json_answer({"heads": [head_document(one) for one in many], "next": _next(many, limit)})


async def signed_head(central: Central, at: datetime | None) -> SignedHead:
    """The head of now, signed; or the one that was the latest at a time."""
    if at is not None:
        found = await central.store.head_at(_instant(at))
        if found is None:
            raise ApiProblem("not_found", "no head was signed so early")
        return found
    try:
        return await central.heads.sign()
    except Refused as error:
        raise ApiProblem("other_tree", error.message) from error


def head_document(head: SignedHead) -> dict[str, Any]:
    """See SignedHeadDocument."""
    return msgspec.structs.asdict(head) | {"root": head.root.hex(), "at": format_instant(head.at)}


def _instant(at: datetime) -> int:
    try:
        return instant_of(at)
    except (TypeError, ValueError, OverflowError):
        raise ApiProblem("bad_parameter", "query.at: an instant with its offset from UTC, from 1970 on") from None


def _next(found: Any, limit: int) -> int | None:
    return found[-1].number if len(found) == limit and found[-1].number > 1 else None


def _text(note: str) -> Response:
    return Response(note, headers={"Cache-Control": "no-store"}, media_type=TEXT)
