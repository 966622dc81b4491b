"""``twophp ledger verify`` of a central ledger: over its API, or of its database, with the same eyes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec
from rich.markup import escape

from twophp.central.ports import TreeHead
from twophp.central.proof.verify import Noted, Report, Verification
from twophp.central.stores.sqlite.database import CENTRAL
from twophp.cli.central_sources import KeptHead, Source, reading
from twophp.cli.output import FOUND, counted, note, out, print_json, progress_bar
from twophp.cli.proofs import continues, head_of, noted_head, proven
from twophp.cli.remote import Remote, is_remote
from twophp.core.consistency import verify_consistency
from twophp.core.errors import Refused
from twophp.identity import notes
from twophp.stores.sqlite.connection import belongs_to
from twophp.stores.urls import POSTGRESQL


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification is to find out."""

    url: str
    expect: Sequence[str]
    proof: str | None
    key: str | None  # Whose signature the proof and the heads that were kept must have.
    resume: str | None
    quick: bool
    as_json: bool


def is_central(url: str, path: str | None) -> bool:
    """Whether an argument means a central ledger: its URL, its file or its database."""
    if is_remote(url):
        return True
    if url.startswith(POSTGRESQL):
        return asyncio.run(_has_central(url))
    return path is not None and belongs_to(path, CENTRAL)


async def _has_central(url: str) -> bool:
    from twophp.stores.postgres.driver import THEIRS, asyncpg, place_of, translate  # noqa: PLC0415 - It is an extra.

    if asyncpg is None:
        return False
    try:
        connection = await asyncpg.connect(place_of(url).dsn)
    except THEIRS as error:
        raise translate(error) from error
    try:
        return await connection.fetchval("SELECT to_regclass('twophp_central_schema') IS NOT NULL") is True
    finally:
        await connection.close()


def verify_central(ctx: click.Context, asked: Asked) -> None:
    """Verify a central ledger, print what was found, and end with its exit code."""
    noted, findings, proofs = [noted_head(text) for text in asked.expect], list[dict[str, Any]](), 0
    if asked.proof is not None:
        head, broken, proofs = proven(asked.proof, asked.key)
        noted.append(head)
        findings = [_said("not_proven", None, message) for message in broken]
    if not asked.url:
        found = _unseen(noted[-1], [])
    elif asked.quick:
        found = _quick(Remote(asked.url), noted)
    else:
        found = asyncio.run(_verified(asked, noted))
    found["findings"] = findings + found["findings"]
    found["findings_count"] += len(findings)
    found["proven"] = proofs
    holds = not found["findings_count"]
    if asked.as_json:
        print_json({"holds": holds} | found)
    else:
        _print(found, has_noted=bool(noted))
    ctx.exit(0 if holds else FOUND)


def _quick(remote: Remote, noted: Sequence[Noted]) -> dict[str, Any]:
    """What can be said without the rows."""
    now = head_of(remote)
    broken = [head for head in noted if not continues(remote, head, now)]
    found = [_said("other_history", None, f"what is there now does not continue {head}") for head in broken]
    return _unseen(now, found)


def _unseen(head: Noted, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """A report about no row."""
    return {"head": str(head), "leaves": None, "findings": findings, "findings_count": len(findings)}


def _document(report: Report) -> dict[str, Any]:
    return {
        "head": str(Noted(report.head.size, report.head.root)),
        "leaves": report.leaves,
        "rows": report.rows,
        "past": report.past,
        "without_row": report.without_row,
        "findings": [_said(one.what, one.sequence, one.message) for one in report.findings],
        "findings_count": report.findings_count,
    }


def _said(what: str, sequence: int | None, message: str) -> dict[str, Any]:
    return {"what": what, "sequence": sequence, "message": message}


async def _verified(asked: Asked, noted: Sequence[Noted]) -> dict[str, Any]:
    async with reading(asked.url) as source:
        with tempfile.TemporaryDirectory(prefix="twophp-verify-") as folder:
            verification = Verification(asked.resume or f"{folder}/seen.db", asked.url, noted)
            is_done = False
            try:
                with progress_bar("verifying") as progress:
                    await _take_all(source, verification, progress)
                    report = await asyncio.to_thread(verification.finish)
                is_done = True
            finally:
                verification.close(forget=is_done)
        found = _document(report)
        kept = await _check_kept(source, report, asked.key)
        found["findings"] += kept
        found["findings_count"] += len(kept)
        return found


async def _take_all(source: Source, verification: Verification, progress: Callable[[int, int], None]) -> None:
    """Each page is looked at while the next one is fetched."""
    wanted, more = verification.wanted, True
    coming = asyncio.ensure_future(source.leaves(wanted))
    try:
        while more:
            page = await coming
            more = page.until <= page.size
            if more:
                coming = asyncio.ensure_future(source.leaves(page.until))
            await asyncio.to_thread(verification.take, page)
            progress(min(page.until - 1, page.size), page.size)
    finally:
        coming.cancel()


async def _check_kept(source: Source, report: Report, key: str | None) -> list[dict[str, Any]]:
    """Whether the tree continues the heads that were signed and kept; if not, between which two it was changed."""
    now = report.head
    head = await source.head_before(None)
    if head is None or not report.is_whole:
        return []  # Of a tree that does not follow from its leaves, no root says anything.
    if key is not None and not notes.is_signed(head.note, notes.PublicKey.parse(key)):
        return [_said("not_proven", None, f"head {head.number} is not signed by the key that is believed")]
    if await _is_of(source, head, now):
        return []
    good, bad = 0, head  # The newest head of this tree is looked for by halves.
    holds: KeptHead | None = None
    while (middle := (good + bad.number) // 2) > good:
        tried = await source.head_before(middle + 1)
        if tried is None or tried.number <= good:
            good = middle
        elif await _is_of(source, tried, now):
            good, holds = middle, tried
        else:
            bad = tried
    since = 0 if holds is None else holds.size
    message = f"leaves {since + 1} to {bad.size} are not those of head {bad.number}, which was signed"
    return [_said("other_history", None, message)]


async def _is_of(source: Source, head: KeptHead, now: TreeHead) -> bool:
    """Whether one continues the other: a head may have been signed after the last leaf was looked at."""
    ends = sorted([(head.size, head.root), (now.size, now.root)])
    try:
        path = await source.consistency(ends[0][0], ends[1][0])
    except Refused:
        return False  # There are not so many leaves any more.
    return verify_consistency(*ends[0], *ends[1], path)


def _print(found: dict[str, Any], *, has_noted: bool) -> None:
    console = out()
    for one in found["findings"]:
        console.print(f"[red]{one['what']}[/red]: {escape(one['message'])}")
    unnamed = found["findings_count"] - len(found["findings"])
    if unnamed:
        console.print(f"and {unnamed:,} more")
    if found["proven"] and found["leaves"] is None:
        verdict = "[red]the proof does not hold[/red]" if found["findings_count"] else "[green]the proof holds[/green]"
        console.print(f"{verdict}: {counted(found['proven'], 'row')}, no other was looked at")
    elif found["findings_count"]:
        console.print("[red]the central ledger does not hold what it took up[/red]")
    else:
        console.print(
            f"[green]the central ledger holds what it {'held' if has_noted else 'took up'}[/green]{_what(found)}"
        )
    if not has_noted:
        note(
            "a history that was rewritten as a whole is found by a head that was noted: give it with --expect next time"
        )
    console.print(f"head {found['head']}", markup=False)


def _what(found: dict[str, Any]) -> str:
    parts = [f"{counted(found['proven'], 'row')} proven"] if found["proven"] else []
    if found["leaves"] is None:
        parts.append("rows not looked at")
    else:
        parts.append(f"{counted(found['rows'], 'row')} and {counted(found['past'], 'older version')} hashed")
        if found["without_row"]:
            parts.append(f"{counted(found['without_row'], 'leaf')} older than the history, without a row")
    return ": " + ", ".join(parts)
