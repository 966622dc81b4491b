"""``twophp store``: move a ledger to where replicas can share it."""

from __future__ import annotations

import asyncio

import click

from twophp.cli.output import counted, database_url, examples, out, print_json, progress_bar


@click.group(short_help="Copy a ledger to where replicas can share it.")
def store() -> None:
    """Copy the ledger of a service, of a client, of obligations or of a registrar."""


@store.command(
    epilog=examples(
        "store copy orders.db postgresql://orders@db.internal/orders",
        "store copy postgresql://old/orders 'postgresql://new/orders?schema=orders' --json",
    ),
    short_help="Copy a whole ledger into PostgreSQL, and prove the copy.",
)
@click.argument("from_", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as JSON.")
def copy(from_: str, to: str, *, as_json: bool) -> None:
    """Copy the ledger FROM a SQLite file or a schema of PostgreSQL TO an empty schema of PostgreSQL.

    Records, sealed parts, ledger rows, obligations, registrations and every line of the journal are brought over. At
    the end the new journal is verified and every row and line is compared with its original. Until then no service
    opens TO.

    Stop the service first: what is written to FROM meanwhile makes the copy useless, and is noticed. An interrupted
    copy goes on where it was: run the same command again. The keys do not move: give the service name:base64 for each
    key of FROM's ring, the active one first, as TWOPHP_KEYS. Heads that were noted of the old journal are proven by the
    old ledger alone: keep it, and note the new head that is printed here.
    """
    from twophp.stores.postgres.copying import copy as copy_ledger  # noqa: PLC0415 - It brings the driver.

    with progress_bar("copying") as progress:
        done = asyncio.run(copy_ledger(database_url(from_), to, progress=progress))
    if as_json:
        print_json(done)
        return
    rows, lines = counted(done.rows, "row"), counted(done.lines, "line")
    out().print(f"{rows} and {lines} of the journal were copied and compared\nhead: {done.head}", markup=False)
