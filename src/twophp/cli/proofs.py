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
from twophp.cli.remote import Remote
from twophp.core.errors import ConfigError, Refused, WireError
from twophp.wire.rows import decode_rows


def noted_head(text: str) -> Noted:
    """Understand ``SIZE:ROOT``."""
    size, _colon, root = text.partition(":")
    try:
        head = Noted(int(size), bytes.fromhex(root))
    except ValueError:
        head = Noted(-1, b"")
    if head.size < 0 or len(head.root) != HASH_BYTES:
        raise ConfigError("a tree head is SIZE:ROOT, as `twophp ledger verify` prints it", code="bad_head")
    return head


class _Proofs(msgspec.Struct):
    """What ``prove`` writes. Without a row it would prove nothing, and hold."""

    head: str
    proofs: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


@click.command(
    short_help="Prove that a call is in the central ledger's tree.",
    epilog=examples(
        "ledger prove 5f0c9a1e-... https://central.example > proof.json",
        "ledger verify https://central.example --proof proof.json",
    ),
)
@click.argument("correlation_id")
@click.argument("central", metavar="CENTRAL")
@click.option("--json", is_flag=True, expose_value=False, help="A proof is JSON with or without it.")
@click.pass_context
def prove(ctx: click.Context, correlation_id: str, central: str) -> None:
    """Prove that the rows of a call are in the central ledger's tree: a JSON document that can be verified later.

    Each proof is walked before it is printed. Exits with 1 if one does not hold.
    """
    remote = Remote(central)
    rows = [row for page in remote.pages("/v1/entries", "rows", correlation_id=correlation_id) for row in page]
    if not rows:
        raise Refused(f"no row has the id {correlation_id}", code="unknown_id")
    head = head_of(remote)  # After the rows: a row that arrived in between would be left out of its own proof.
    proofs = [_inclusion(remote, row["sequence"], head) for row in rows]
    print_json({"head": str(head), "proofs": proofs})
    broken = [proof["sequence"] for proof in proofs if not _holds(proof, head)]
    for sequence in broken:
        note(f"the proof of row {sequence} does not hold")
    ctx.exit(FOUND if broken else 0)


def _inclusion(remote: Remote, sequence: int, head: Noted) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = remote.find(f"/v1/proofs/inclusion/{sequence}", size=head.size)
    if found is None:
        raise Refused(f"the central ledger has no proof of row {sequence}", code="no_proof")
    return found


def _holds(proof: Mapping[str, Any], head: Noted) -> bool:
    """Whether the row itself, hashed here, is where the proof says under this head."""
    try:
        (entry,) = decode_rows(msgspec.json.encode([proof["row"]]))
        path = [bytes.fromhex(part) for part in proof["path"]]
        index = int(proof["sequence"]) - 1
    except (KeyError, TypeError, ValueError, WireError):
        return False
    return verify_inclusion(leaf_hash(entry), index, head.size, path, head.root)


def _head(remote: Remote) -> Noted:
    document = remote.get("/v1/proofs/head")
    return Noted(document["size"], bytes.fromhex(document["root"]))


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


def proven(path: str) -> tuple[Noted, list[str], int]:
    """The head of a proof's file, which of its rows are not in that tree, and how many rows it has."""
    document = _read(path)
    head = noted_head(document.head)
    broken = [
        f"row {one.get('sequence')}: not in the tree of {head}" for one in document.proofs if not _holds(one, head)
    ]
    return head, broken, len(document.proofs)


def _read(path: str) -> _Proofs:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Proofs)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a proof that `twophp ledger prove` wrote", code="bad_proof") from error
