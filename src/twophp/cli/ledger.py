"""``twophp ledger``: look at ledgers, local and central. This file has the group, ``verify`` and ``migrate``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from rich.markup import escape

from twophp.cli.ledger_calls import pairs, show_, tree
from twophp.cli.ledger_rows import initiated, stalled, tail
from twophp.cli.output import FOUND, counted, examples, out, print_json, progress_bar, sqlite_path
from twophp.cli.proofs import prove
from twophp.cli.remote import is_remote
from twophp.cli.verify_central import Asked, is_central, verify_central
from twophp.stores.sqlite.connection import migrate as migrate_file
from twophp.stores.sqlite.connection import open_connection, schema_of
from twophp.stores.sqlite.reading import holds_seals
from twophp.stores.sqlite.verify import Progress, ProvenHead, Report
from twophp.stores.sqlite.verify import verify as verify_file
from twophp.stores.urls import POSTGRESQL, REDIS, open_vault


@click.group(short_help="Look at ledgers: who called whom, with what outcome.")
def ledger() -> None:
    """Look at ledgers: who called whom, what became of it, and whether both sides say so.

    A LEDGER is the file of a service or a client, orders.db or sqlite:///orders.db, or the URL of a central ledger,
    which is asked with TWOPHP_OPERATOR_TOKEN. Several are joined. Reading is safe beside a running service: nothing is
    held up, made or migrated.

    Exit codes: 0 fine, 1 something was found, 2 a ledger cannot be read or an id is not in it, 3 a call is
    indeterminate and nothing worse was found (tree, show, pairs).
    """


for _command in (tree, show_, stalled, pairs, initiated, tail, prove):
    ledger.add_command(_command)


@ledger.command(
    short_help="Prove that a journal or a tree is unchanged.",
    epilog=examples(
        "ledger verify orders.db",
        "ledger verify sqlite:///orders.db --expect 42:9f86d081...",
        "ledger verify orders.db --open-seals",
        "ledger verify postgresql://orders@db.internal/orders",
        "ledger verify redis://redis.internal/0",
        "ledger verify https://central.example --expect 42:9f86d081...",
        "ledger verify sqlite:///central.db --resume verify.state",
        "ledger verify --proof proof.json --key twophp-central-1f0e...",
    ),
)
@click.argument("url_or_path", required=False, default="")
@click.option(
    "--expect",
    metavar="SEQ:HASH",
    multiple=True,
    help="A head noted earlier: history up to there must be the same. Of a central ledger, as often as you like.",
)
@click.option("--proof", metavar="FILE", help="What `ledger prove` wrote: its rows must still be there (central only).")
@click.option("--key", metavar="KEY", help="Who must have signed the heads. With --proof no URL is needed then.")
@click.option("--resume", metavar="FILE", help="Keep in FILE how far it is, and go on from there (central only).")
@click.option("--quick", is_flag=True, help="Walk the proofs alone, and look at no row (a central ledger's URL only).")
@click.option(
    "--open-seals",
    is_flag=True,
    help="Open every sealed payload and answer with the key ring as well; not of a central ledger.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def verify(
    ctx: click.Context,
    url_or_path: str,
    expect: tuple[str, ...],
    proof: str | None,
    key: str | None,
    resume: str | None,
    *,
    quick: bool,
    open_seals: bool,
    as_json: bool,
) -> None:
    """Prove that the journal is unchanged, or say which line is not; of a central ledger, that no row is.

    Finds edited, deleted and cut-off lines, and records and ledger rows that are not what the journal says. The service
    may go on running. Note the head it prints in another place: with --expect a journal that was rewritten
    as a whole is found, too. With --open-seals a payload or an answer that was changed or moved is found; the ring is
    the one beside the database, or what TWOPHP_KEYS or TWOPHP_KEYS_FILE says.

    Of a central ledger, by its URL or its database, every row that is served is hashed and compared with its leaf in
    the tree: rewritten, removed and slipped-in rows are named. What was rewritten together with the tree is found
    with --expect or --proof.
    """
    if proof is not None and key is not None and not (url_or_path or expect):
        alone = Asked(url="", expect=expect, proof=proof, key=key, resume=None, quick=True, as_json=as_json)
        verify_central(ctx, alone)
    database = url_or_path.startswith(("http://", "https://", *POSTGRESQL, *REDIS))
    path = None if database else sqlite_path(url_or_path)
    if is_central(url_or_path, path):
        if open_seals:
            raise click.UsageError("--open-seals is for a ledger's file: a central ledger holds nothing sealed")
        if quick and not is_remote(url_or_path):
            raise click.UsageError("--quick is for a central ledger's URL")
        url = url_or_path if path is None else f"sqlite:///{path}"
        asked = Asked(url=url, expect=expect, proof=proof, key=key, resume=resume, quick=quick, as_json=as_json)
        verify_central(ctx, asked)
    if proof is not None or key is not None or resume is not None or quick or len(expect) > 1:
        raise click.UsageError("--proof, --key, --resume, --quick and a second --expect are for a central ledger")
    _verify_service(ctx, url_or_path, expect, open_seals=open_seals, as_json=as_json)


def _verify_service(
    ctx: click.Context, url_or_path: str, expect: Sequence[str], *, open_seals: bool, as_json: bool
) -> None:
    """Verify the ledger of a service or a client."""
    noted = ProvenHead.parse(expect[0]) if expect else None
    with progress_bar("verifying") as progress:
        if url_or_path.startswith((*POSTGRESQL, *REDIS)):
            report = _verify_database(url_or_path, noted, progress, open_seals=open_seals)
        else:
            path = sqlite_path(url_or_path)
            vault = open_vault(f"sqlite:///{path}") if open_seals and holds_seals(path) else None
            report = verify_file(path, expect=noted, progress=progress, vault=vault)
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    ctx.exit(0 if report.holds else FOUND)


def _verify_database(url: str, noted: ProvenHead | None, progress: Progress, *, open_seals: bool) -> Report:
    if url.startswith(REDIS):
        from twophp.stores.redis.verify import verify as verify_server  # noqa: PLC0415 - It brings the driver.

        if open_seals:
            raise click.UsageError("--open-seals is not for a ledger in Redis yet")
        return asyncio.run(verify_server(url, expect=noted, progress=progress))
    from twophp.stores.postgres.verify import verify as verify_database  # noqa: PLC0415 - It brings the driver.

    vault = open_vault(url) if open_seals else None
    return asyncio.run(verify_database(url, expect=noted, progress=progress, vault=vault))


@ledger.command(
    short_help="Bring a ledger's file to this version's format.",
    epilog=examples("ledger migrate orders.db", "ledger migrate sqlite:///orders.db --json"),
)
@click.argument("url_or_path")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def migrate(url_or_path: str, *, as_json: bool) -> None:
    """Bring the file of a service or a client to the format of this version, and say how far it is.

    A service does the same when it starts; here you can watch. Stop the services of an older version first: from
    the first step on they can write no more. An interruption, by a full disk too, loses nothing: run it again. It
    needs about as much room as the file has.
    """
    path = sqlite_path(url_or_path)
    before = schema_of(path)
    connection = open_connection(path, must_exist=True)
    with progress_bar("migrating") as progress:
        migrate_file(connection, path, progress=progress)
    connection.close()
    after = schema_of(path)
    if as_json:
        print_json({"path": path, "schema_before": before, "schema": after})
    else:
        done = "is of this version's format" if before == after else f"was migrated from schema {before}"
        out().print(f"{escape(path)}: {done}, schema {after}")


def _document(report: Report) -> dict[str, object]:
    return {
        "holds": report.holds,
        "lines": report.lines,
        "records": report.records,
        "head": str(report.head),
        "findings": report.findings,
        "findings_count": report.findings_count,
    }


def _print(report: Report) -> None:
    console = out()
    for finding in report.findings:
        console.print(f"[red]{finding.what}[/red]: {escape(finding.message)}")
    unnamed = report.findings_count - len(report.findings)
    if unnamed:
        console.print(f"and {unnamed:,} more")
    verdict = "[green]the journal holds[/green]" if report.holds else "[red]the journal does not hold[/red]"
    console.print(f"{verdict}: {counted(report.lines, 'line')}, {counted(report.records, 'record')}")
    console.print(f"head {report.head}")
