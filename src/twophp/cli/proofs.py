"""``twophp ledger prove``, and ``verify`` against a central ledger: with hashes alone (RFC 9162).

A head is ``SIZE:ROOT``. An operator who notes one in another place finds out later if a leaf before it was rewritten,
removed or slipped in. The central ledger is not believed about a proof: leaves are hashed here, and paths walked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from twophp.central.proof.merkle import HASH_BYTES, leaf_hash, verify_consistency, verify_inclusion
from twophp.central.proof.verify import Noted
from twophp.cli.output import FOUND, examples, note, print_json
from twophp.cli.remote import BAD_ANSWER, STRANGER, Remote
from twophp.core.errors import ConfigError, Refused, WireError
from twophp.identity import notes
from twophp.wire.rows import decode_rows


def noted_head(text: str) -> Noted:
    """Understand ``SIZE:ROOT``, or a file with a signed head, as a witness keeps it."""
    if Path(text).is_file():
        said = notes.read(Path(text).read_text(encoding="utf-8"))
        return Noted(said.size, said.root)
    size, _colon, root = text.partition(":")
    try:
        head = Noted(int(size), bytes.fromhex(root))
    except ValueError:
        head = Noted(-1, b"")
    if head.size < 0 or len(head.root) != HASH_BYTES:
        raise ConfigError(
            "a tree head is SIZE:ROOT, as `twophp ledger verify` prints it, or a file with one", code="bad_head"
        )
    return head


class _Proofs(msgspec.Struct):
    """What ``prove`` writes. Without a row it would prove nothing, and hold."""

    head: str
    proofs: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    note: str = ""  # The head as it was signed.


@click.command(
    short_help="Prove what the central ledger says of a call, or said.",
    epilog=examples(
        "ledger prove 5f0c9a1e-... https://central.example > proof.json",
        "ledger prove 5f0c9a1e-... https://central.example --at 2026-11-19T09:00:00Z > then.json",
        "ledger verify --proof proof.json --key twophp-central-1f0e...",
    ),
)
@click.argument("correlation_id")
@click.argument("central", metavar="CENTRAL")
@click.option("--at", metavar="TIME", help="What it said then: ISO 8601 with its offset, 2026-11-19T09:00:00Z.")
@click.option("--json", is_flag=True, expose_value=False, help="A proof is JSON with or without it.")
@click.pass_context
def prove(ctx: click.Context, correlation_id: str, central: str, at: str | None) -> None:
    """Prove that the rows of a call are in the central ledger's tree: one JSON file that can be verified without it.

    The file has a signed head, and each row with the way from its leaf to the root. With --at these are the versions
    that the rows had then, under the last head that was signed until then. Each proof is walked before it is printed.
    Exits with 1 if one does not hold.
    """
    document = Remote(central).get("/v1/proofs/rows", correlation_id=correlation_id, at=at)
    if not document["proofs"]:
        raise Refused(f"no row has the id {correlation_id}{' in the head of then' if at else ''}", code="unknown_id")
    try:
        found = msgspec.convert(document, _Proofs)
    except msgspec.ValidationError as error:
        raise Refused(f"{STRANGER}: {error}", code=BAD_ANSWER) from error
    print_json(document)
    _head, broken, _count = _judged(found, document["key"])
    for words in broken:
        note(words)
    ctx.exit(FOUND if broken else 0)


def _holds(proof: Mapping[str, Any], head: Noted) -> bool:
    """Whether the row itself, hashed here, is where the proof says under this head."""
    try:
        (entry,) = decode_rows(msgspec.json.encode([proof["row"]]))
        path = [bytes.fromhex(part) for part in proof["path"]]
        index = int(proof["sequence"]) - 1
    except (KeyError, TypeError, ValueError, WireError):
        return False
    return verify_inclusion(leaf_hash(entry), index, head.size, path, head.root)


def head_of(remote: Remote) -> Noted:
    """The head now."""
    document = remote.get("/v1/proofs/head")
    return Noted(document["size"], bytes.fromhex(document["root"]))


def continues(remote: Remote, old: Noted, now: Noted) -> bool:
    """Whether the central ledger can prove that its tree of ``now`` begins with the one of ``old``."""
    if old.size > now.size:
        return False
    found = remote.get("/v1/proofs/consistency", old_size=old.size, new_size=now.size)
    path = [bytes.fromhex(part) for part in found["path"]]
    return verify_consistency(old.size, old.root, now.size, now.root, path)


def proven(path: str, key: str | None = None) -> tuple[Noted, list[str], int]:
    """The head of a proof's file, what does not hold, and how many rows it has. ``key`` must have signed the head."""
    return _judged(_read(path), key)


def _judged(document: _Proofs, key: str | None) -> tuple[Noted, list[str], int]:
    head = noted_head(document.head)
    broken = [
        f"row {one.get('sequence')}: not in the tree of {head}" for one in document.proofs if not _holds(one, head)
    ]
    if key is not None:
        try:
            said = notes.head_of(document.note, notes.PublicKey.parse(key))
            if (said.size, said.root) != (head.size, head.root):
                broken.append(f"the signed head is another than {head}")
        except Refused as error:
            broken.append(error.message)
    return head, broken, len(document.proofs)


def _read(path: str) -> _Proofs:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Proofs)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a proof that `twophp ledger prove` wrote", code="bad_proof") from error
