"""``twophp keys``: the key ring that payloads and stored responses are sealed with."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import NoReturn

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from twophp.cli.output import FOUND, counted, examples, out, print_json, progress_bar, sqlite_path
from twophp.cli.rows import lasted
from twophp.core.errors import ConfigError
from twophp.core.records import Instant
from twophp.stores.clock import system_clock
from twophp.stores.keys import KEYS_FILE_VARIABLE, KEYS_VARIABLE, RETIRE_GRACE_MS, RingKey
from twophp.stores.ring_file import KeysFile, RingFile
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.reading import holds_seals, reading, rows_by_key
from twophp.stores.sqlite.rotate import Rotation, retire_keys
from twophp.stores.sqlite.rotate import rotate as rotate_store
from twophp.stores.urls import POSTGRESQL, StoreUrl, ring_source
from twophp.stores.vault import KeyRing


@click.group(short_help="Look after the keys that stored data is sealed with.")
def keys() -> None:
    """Look after the keys that payloads and stored responses are sealed with.

    The ring of orders.db is the file orders.db.keys beside it, unless TWOPHP_KEYS or TWOPHP_KEYS_FILE holds it: for
    each key its name and base64 of 32 bytes, as in new:base64,old:base64, the active one first.
    """


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``keys list``."""

    name: str
    rows: int
    active: bool = False
    in_ring: bool = True
    created_at: str | None = None
    replaced_at: str | None = None


@keys.command(
    "list",
    epilog=examples("keys list sqlite:///orders.db"),
    short_help="List the keys, and how many rows each one seals.",
)
@click.argument("url_or_path")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def list_(ctx: click.Context, url_or_path: str, *, as_json: bool) -> None:
    """List the keys: which is active, since when, and how many rows are sealed with each.

    Exits with 1 if rows are sealed with a key that is not in the ring.
    """
    path = sqlite_path(url_or_path)
    lines = _lines(_source(path), rows_by_key(path))
    if as_json:
        print_json(lines)
    else:
        _print_lines(lines)
    ctx.exit(0 if all(line.in_ring for line in lines) else FOUND)


def _source(path: str) -> KeyRing | RingFile:
    """Where the keys of an existing database come from. Looking never makes a ring."""
    with reading(path):
        source = ring_source(StoreUrl("sqlite", path))
    if isinstance(source, KeysFile):
        return source.ring()
    if isinstance(source, RingFile) and not source.exists() and not holds_seals(path):
        raise ConfigError(f"{path} has no key ring yet; its service makes one on its first start", code="ring_missing")
    return source


def _lines(source: KeyRing | RingFile, rows: dict[str, int]) -> list[KeyLine]:
    if isinstance(source, KeyRing):
        known = [KeyLine(name=name, rows=rows.get(name, 0), active=name == source.active) for name in source.keys]
    else:
        stored = source.load()
        known = [
            KeyLine(
                name=key.name,
                rows=rows.get(key.name, 0),
                active=key.name == stored.active,
                created_at=_iso(key.created_at),
                replaced_at=None if key.replaced_at is None else _iso(key.replaced_at),
            )
            for key in stored.keys
        ]
    strange = sorted(rows.keys() - {line.name for line in known})
    return [*known, *(KeyLine(name=name, rows=rows[name], in_ring=False) for name in strange)]


def _iso(at: Instant) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _print_lines(lines: list[KeyLine]) -> None:
    table = Table("key", "state", "rows", "created", "replaced", box=None)
    for line in lines:
        state = "active" if line.active else "opens" if line.in_ring else "[red]not in the ring[/red]"
        name = escape(line.name) or "(not sealed bytes)"
        table.add_row(name, state, f"{line.rows:,}", line.created_at or "", line.replaced_at or "")
    out().print(table)


@keys.command(
    epilog=examples("keys rotate sqlite:///orders.db", "keys rotate sqlite:///orders.db --retire"),
    short_help="Make a new active key and seal everything with it.",
)
@click.argument("url_or_path")
@click.option("--retire", is_flag=True, help="Then retire old keys, as `twophp keys retire` does.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@click.pass_context
def rotate(ctx: click.Context, url_or_path: str, *, retire: bool, as_json: bool) -> None:
    """Make a new active key and seal every stored payload and response with it.

    The service may go on running: it takes the new key up by itself, and old keys still open. If this is interrupted,
    run it again and it goes on. Rows that do not open are named, left as they are, and make the exit code 1. With
    TWOPHP_KEYS or TWOPHP_KEYS_FILE no key is made: put the new one first there, restart, then run this.
    """
    if url_or_path.startswith(POSTGRESQL):
        _rotate_database(ctx, url_or_path, retire=retire, as_json=as_json)
    path = sqlite_path(url_or_path)
    source = _source(path)
    if retire:
        _own(source)
    done = asyncio.run(_rotate(path, source))
    if retire and isinstance(source, RingFile) and not done.left:
        done = msgspec.structs.replace(done, retired=retire_keys(path, source))
    if as_json:
        print_json(done)
    else:
        _print_rotation(done, source)
        if retire:
            _print_kept(path, _own(source))
    ctx.exit(0 if done.complete else FOUND)


def _rotate_database(ctx: click.Context, url: str, *, retire: bool, as_json: bool) -> NoReturn:
    from twophp.stores.postgres.rotate import rotate as rotate_database  # noqa: PLC0415 - It brings the driver.

    source = ring_source(StoreUrl("postgresql", url))
    ring = source if isinstance(source, KeyRing) else source.ring() if isinstance(source, KeysFile) else None
    if retire or ring is None:
        raise click.UsageError("no ring of PostgreSQL's is ours to change; take the old key out of yours afterwards")
    with progress_bar("sealing") as progress:
        done = asyncio.run(rotate_database(url, ring, progress=progress))
    if as_json:
        print_json(done)
    else:
        _print_rotation(done, ring)
    ctx.exit(0 if done.complete else FOUND)


@keys.command("retire", epilog=examples("keys retire sqlite:///orders.db"))
@click.argument("url_or_path")
@click.option("--json", "as_json", is_flag=True, help="Print the names of the removed keys as JSON.")
def retire_(url_or_path: str, *, as_json: bool) -> None:
    """Remove the keys that no row uses any more.

    A key stays for a minute after it was replaced, because a running service may just have sealed something with it. A
    retired key is gone for good: older backups of the database no longer open.
    """
    path = sqlite_path(url_or_path)
    source = _own(_source(path))
    names = retire_keys(path, source)
    if as_json:
        print_json(names)
        return
    for name in names:
        out().print(f"retired key {escape(name)}")
    _print_kept(path, source)


def _print_kept(path: str, source: RingFile) -> None:
    """Why each key is still there."""
    stored, rows, now = source.load(), rows_by_key(path), system_clock()
    for key in stored.keys:
        if key.name == stored.active:
            out().print(f"key {escape(key.name)} stays: it is the active one")
        else:
            out().print(f"key {escape(key.name)} stays: {_why_kept(key, rows.get(key.name, 0), now)}")


def _why_kept(key: RingKey, rows: int, now: Instant) -> str:
    if rows:
        return f"{counted(rows, 'part')} sealed with it; run `twophp keys rotate` first"
    if key.replaced_at is None:
        return "the ring does not say when it was replaced"
    left_ms = max(key.replaced_at + RETIRE_GRACE_MS - now, 0)
    return f"a running service may just have sealed something with it; try again in {lasted(left_ms)}"


def _own(source: KeyRing | RingFile) -> RingFile:
    if isinstance(source, KeyRing):
        raise click.UsageError(f"keys from {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE} are yours to remove")
    return source


async def _rotate(path: str, source: KeyRing | RingFile) -> Rotation:
    async with SQLiteStore(path) as store:
        with progress_bar("sealing") as progress:
            return await rotate_store(store, source, progress=progress)


def _print_rotation(done: Rotation, source: KeyRing | RingFile) -> None:
    console = out()
    for failed in done.unopened:
        console.print(f"[red]{failed.code}[/red]: {escape(failed.subject)}, {failed.part}: {escape(failed.message)}")
    if done.unopened_count:
        console.print(f"do not open and were left as they are: {counted(done.unopened_count, 'part')}")
    if done.left:
        console.print(f"still being sealed with an older key: {counted(done.left, 'part')}; run this again")
    how = "new key" if done.minted else "active key"
    console.print(f"{how} {escape(done.active)}: {counted(done.resealed, 'part')} sealed with it")
    for name in done.retired:
        console.print(f"retired key {escape(name)}")
    if isinstance(source, RingFile):  # Also when it goes on: the run that made the key was cut short before it said so.
        console.print(f"back up {escape(str(source.path))} now: without key {escape(done.active)} nothing opens")
