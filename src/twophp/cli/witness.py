"""``twophp witness``: somebody on another machine who remembers what the central ledger said, and signs it.

The ledger's operator can rewrite rows, tree and signed heads alike, and sign anew. Nobody finds that out who has not
kept a head. A witness keeps the last one, lets the ledger prove that the next one continues it, and co-signs only
that. Two heads with the ledger's signature that do not continue each other are the evidence, and are kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.markup import escape

from twophp.cli.output import FOUND, examples, note, out, print_json
from twophp.cli.remote import Remote
from twophp.core.errors import ConfigError, DeliveryFailed, Refused, StoreUnavailable
from twophp.delivery.egress_http import check_success
from twophp.delivery.fetch import Origin, fetch, read_origin
from twophp.identity import notes
from twophp.stores.clock import pause, wall_clock
from twophp.stores.ring_file import sync_folder
from twophp.stores.vault import mint_key

log: Final = logging.getLogger("twophp.witness")

OTHER_TREE: Final = "other_tree"


class Memory(msgspec.Struct, kw_only=True):
    """What a witness keeps: its own key, the last head it co-signed, and heads that broke a promise."""

    private_key: str
    note: str = ""
    alarms: list[dict[str, Any]] = []


@click.command(
    short_help="Co-sign the central ledger's heads, and find forks.",
    epilog=examples(
        "witness https://central.example --key twophp-central-1f0e... --store witness.json",
        "witness https://central.example --key twophp-central-1f0e... --store witness.json --every 60",
    ),
)
@click.argument("central", metavar="CENTRAL")
@click.option("--key", required=True, help="The ledger's public key, as `twophp central key` prints it.")
@click.option("--store", required=True, type=click.Path(dir_okay=False), help="Where the last head is kept.")
@click.option("--name", default="twophp-witness", show_default=True, help="The name of a new witness's key.")
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Go on until there is an alarm.")
@click.option("--webhook", metavar="URL", help="Where an alarm is sent to, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
def witness(
    ctx: click.Context,
    central: str,
    key: str,
    store: str,
    name: str,
    every: float | None,
    webhook: str | None,
    *,
    as_json: bool,
) -> None:
    """Look at the central ledger's newest head, and co-sign it if it continues the last one that was seen.

    Run it on another machine than the ledger's, by another operator. It needs a token that may read, in
    TWOPHP_OPERATOR_TOKEN. It prints the note with both signatures, which is a head for `ledger verify --expect FILE`.

    Exits with 1, and with an error in the log, if the head is a fork or a roll-back: nothing is co-signed then, and
    both notes are kept in the store as evidence.
    """
    remote, public = Remote(central), notes.PublicKey.parse(key)
    told = None if webhook is None else read_origin(webhook)  # Now: an alarm is too late to find out that it is no URL.
    while True:
        try:
            alarm = _look(remote, public, Path(store), name)
        except StoreUnavailable as error:
            if every is None:
                raise
            log.warning("the central ledger was not seen: %s", error)
            alarm = None
        if alarm is not None:
            _raise(alarm, told, as_json=as_json)
            ctx.exit(FOUND)
        if every is None:
            break
        pause(every)
    kept = _memory(Path(store), name)
    if as_json:
        print_json({"witness": str(_signer(kept).public), "note": kept.note})
    else:
        out().print(kept.note, markup=False, end="")


def _look(remote: Remote, public: notes.PublicKey, store: Path, name: str) -> dict[str, Any] | None:
    """One look; an alarm if the ledger broke its promise."""
    memory = _memory(store, name)
    last = notes.read(memory.note) if memory.note else None
    try:
        said = remote.text("/v1/heads/latest")
    except Refused as error:
        if error.code != OTHER_TREE:
            raise
        return _kept(store, memory, {"what": "fork", "message": error.message, "seen": memory.note, "now": ""})
    now = notes.head_of(said, public)
    broken = None if last is None else _broken(remote, last, now)
    if broken is not None and last is not None:
        message = f"head {now.number}, of {now.size} leaves, does not continue head {last.number}, of {last.size}"
        return _kept(store, memory, {"what": broken, "message": message, "seen": memory.note, "now": said})
    memory.note = _signer(memory).cosign(said, wall_clock() // 1_000)
    _keep(store, memory)
    return None


def _broken(remote: Remote, last: notes.Head, now: notes.Head) -> str | None:
    path: list[bytes] = []
    if last.size <= now.size:
        found = remote.get("/v1/proofs/consistency", old_size=last.size, new_size=now.size)
        path = [bytes.fromhex(part) for part in found["path"]]
    return notes.broken_promise(last, now, path)


def _raise(alarm: dict[str, Any], webhook: Origin | None, *, as_json: bool) -> None:
    log.error("%s: %s", alarm["what"], alarm["message"])
    if as_json:
        print_json(alarm)
    else:
        out().print(f"[red]{alarm['what']}[/red]: {escape(alarm['message'])}")
    if webhook is not None:
        asyncio.run(_tell(webhook, msgspec.json.encode(alarm)))


async def _tell(webhook: Origin, alarm: bytes) -> None:
    path, headers = "" if webhook.path else "/", {"Content-Type": "application/json"}
    try:
        check_success((await fetch(webhook, "POST", path, headers=headers, body=alarm)).status)
    except DeliveryFailed as error:
        note(f"the webhook was not told: {error.message}")


def _kept(store: Path, memory: Memory, alarm: dict[str, Any]) -> dict[str, Any]:
    memory.alarms.append(alarm)
    _keep(store, memory)
    return alarm


def _signer(memory: Memory) -> notes.Signer:
    return notes.Signer.parse(memory.private_key, notes.WITNESS)


def _memory(store: Path, name: str) -> Memory:
    """What is kept, or a new witness's."""
    try:
        return msgspec.json.decode(store.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory(private_key=str(notes.Signer(name, mint_key()[1], notes.WITNESS)))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{store} is not what a witness keeps", code="bad_state") from error


def _keep(store: Path, memory: Memory) -> None:
    """All of it or nothing, and durable: what a witness forgets can be rewritten."""
    with tempfile.NamedTemporaryFile(prefix=f".{store.name}.", dir=store.absolute().parent, delete=False) as file:
        file.write(msgspec.json.format(msgspec.json.encode(memory)))
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(store)
    sync_folder(store.absolute())
