"""``twophp ledger prove``, and ``verify`` against a central ledger: with hashes alone (RFC 9162).

A head is ``SIZE:ROOT``. An operator who notes one in another place finds out later if a leaf before it was rewritten,
removed or slipped in. The central ledger is not believed about a proof: leaves are hashed here, and paths walked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import click
import msgspec

from twophp.central.proof.merkle import leaf_hash, verify_consistency, verify_inclusion
from twophp.cli.output import FOUND, counted, examples, note, out, print_json
from twophp.cli.remote import Remote
from twophp.core.errors import ConfigError, Refused, WireError
from twophp.wire.rows import decode_rows

ROOT_BYTES: Final = 32


class TreeHead(msgspec.Struct, frozen=True):
    """A tree head that an operator noted."""

    size: int
    root: bytes

    @classmethod
    def parse(cls, text: str) -> TreeHead:
        """Understand ``SIZE:ROOT``."""
        size, _colon, root = text.partition(":")
        try:
            head = cls(int(size), bytes.fromhex(root))
        except ValueError:
            head = cls(-1, b"")
        if head.size < 0 or len(head.root) != ROOT_BYTES:
            raise ConfigError("a tree head is SIZE:ROOT, as `twophp ledger verify` prints it", code="bad_head")
        return head

    def __str__(self) -> str:
        return f"{self.size}:{self.root.hex()}"


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
    head = _head(remote)  # After the rows: a row that arrived in between would be left out of its own proof.
    proofs = [_inclusion(remote, row["sequence"], head) for row in rows]
    print_json({"head": str(head), "proofs": proofs})
    broken = [proof["sequence"] for proof in proofs if not _holds(proof, head)]
    for sequence in broken:
        note(f"the proof of row {sequence} does not hold")
    ctx.exit(FOUND if broken else 0)


def _inclusion(remote: Remote, sequence: int, head: TreeHead) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = remote.find(f"/v1/proofs/inclusion/{sequence}", size=head.size)
    if found is None:
        raise Refused(f"the central ledger has no proof of row {sequence}", code="no_proof")
    return found


def _holds(proof: Mapping[str, Any], head: TreeHead) -> bool:
    """Whether the row itself, hashed here, is where the proof says under this head."""
    try:
        (entry,) = decode_rows(msgspec.json.encode([proof["row"]]))
        path = [bytes.fromhex(part) for part in proof["path"]]
        index = int(proof["sequence"]) - 1
    except (KeyError, TypeError, ValueError, WireError):
        return False
    return verify_inclusion(leaf_hash(entry), index, head.size, path, head.root)


def _head(remote: Remote) -> TreeHead:
    document = remote.get("/v1/proofs/head")
    return TreeHead(document["size"], bytes.fromhex(document["root"]))


def verify_central(ctx: click.Context, url: str, expect: str | None, proof: str | None, *, as_json: bool) -> None:
    """Verify that the central ledger still holds what a noted head, or a proof, says it held."""
    remote = Remote(url)
    now = _head(remote)
    findings: list[str] = []
    noted = [] if expect is None else [TreeHead.parse(expect)]
    rows = 0
    if proof is not None:
        document = _read(proof)
        at = TreeHead.parse(document.head)
        noted.append(at)
        rows = len(document.proofs)
        findings += [
            f"row {one.get('sequence')}: not in the tree of {at}" for one in document.proofs if not _holds(one, at)
        ]
    findings += [f"what is there now does not continue {head}" for head in noted if not _continues(remote, head, now)]
    if as_json:
        print_json({"holds": not findings, "head": str(now), "rows": rows, "findings": findings})
    else:
        _print(findings, now, rows, checked=bool(noted))
    ctx.exit(FOUND if findings else 0)


def _continues(remote: Remote, old: TreeHead, now: TreeHead) -> bool:
    if old.size > now.size:
        return False
    found = remote.get("/v1/proofs/consistency", old_size=old.size, new_size=now.size)
    path = [bytes.fromhex(part) for part in found["path"]]
    return verify_consistency(old.size, old.root, now.size, now.root, path)


def _read(path: str) -> _Proofs:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Proofs)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a proof that `twophp ledger prove` wrote", code="bad_proof") from error


def _print(findings: list[str], now: TreeHead, rows: int, *, checked: bool) -> None:
    console = out()
    for finding in findings:
        console.print(f"[red]broken[/red]: {finding}")
    if not checked:
        note("nothing to compare with: note the head elsewhere, and give it with --expect next time")
    elif not findings:
        proven = f", {counted(rows, 'row')} proven" if rows else ""
        console.print(f"[green]the central ledger holds what it held[/green]{proven}")
    console.print(f"head {now}", markup=False)
