"""The command: which checks are made, and how their findings are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from rich.text import Text

from twophp.asgi import TwoPhaseMiddleware
from twophp.cli.doctor.database import check_ledger
from twophp.cli.doctor.findings import EXIT_CODES, Finding, Level, fail, failed_with, ok, warn, worst
from twophp.cli.doctor.heads import check_noted, heads_of_file, noted_in
from twophp.cli.doctor.keys import check_certificate, check_keys
from twophp.cli.doctor.loading import load_app, middlewares, routes_of
from twophp.cli.doctor.service import check_service
from twophp.cli.doctor.store import (
    check_central,
    check_clock,
    check_journal,
    check_owner,
    check_store,
    check_store_time,
    examine,
)
from twophp.cli.output import counted, examples, out, print_json, safe, sqlite_path
from twophp.core.errors import TwoPHPError
from twophp.stores.clock import steady_clock, wall_clock
from twophp.stores.keys import Keys
from twophp.stores.sqlite.verify import ProvenHead
from twophp.stores.urls import POSTGRESQL, REDIS, parse_store_url

_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_LONGEST: Final = max(map(len, _STYLES))


@click.command(
    short_help="Check keys, store, journal, clock, TLS and policies.",
    epilog=examples(
        "doctor orders.db",
        "doctor --app shop.main:app",
        "doctor postgresql://orders@db.internal/orders --head /mnt/notes/orders.head",
        "doctor redis://redis.internal/0 --head /mnt/notes/orders.head",
        "doctor sqlite:///orders.db --certificate /etc/tls/orders.pem --json",
    ),
)
@click.argument("store", required=False)
@click.option(
    "--app", "spelled", metavar="MODULE:ATTRIBUTE", help="The application; its module is imported, not started."
)
@click.option(
    "--certificate", "certificates", multiple=True, metavar="PEM", help="A certificate to look at; repeatable."
)
@click.option(
    "--head",
    "note",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the journal's head in FILE, and tell if the ledger was set back since. Keep FILE on another machine.",
)
@click.option("--no-write", is_flag=True, help="Do not make the scratch database.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(
    ctx: click.Context,
    store: str | None,
    spelled: str | None,
    certificates: tuple[str, ...],
    note: Path | None,
    *,
    no_write: bool,
    as_json: bool,
) -> None:
    """Check keys, store, journal, clock, TLS and policies, and say what to fix.

    STORE is the service's database; with --app it is found there. Everything is only read, with one exception: beside
    the database, or where it will be, a scratch database is made, written with a sync, and removed (--no-write leaves
    that out). Nothing is written beside a file that is not the service's own. Run it as the service's user, where the
    service runs.

    With --head FILE it keeps the journal's newest line in FILE and compares it the next time: a ledger that was
    restored to an older point has forgotten what it ran since, and would run it again.

    Exit codes: 0 all is well, 1 there are warnings, 2 something fails.
    """
    findings = list(_findings(store, spelled, certificates, note, may_write=not no_write))
    if as_json:
        print_json({"findings": findings, "worst": worst(findings)})
    else:
        _print(findings)
    ctx.exit(EXIT_CODES[worst(findings)])


def _findings(
    store: str | None, spelled: str | None, certificates: Sequence[str], note: Path | None, *, may_write: bool
) -> Iterator[Finding]:
    if store is None and spelled is None and not certificates:
        raise click.UsageError("name the service's database, or its application with --app")
    if note is not None and store is None:
        raise click.UsageError("--head is about a ledger: name the service's database")
    begun = wall_clock(), steady_clock()
    if store is not None:
        yield from _check_store(store, note, may_write=may_write)
    if spelled is not None:
        yield from _check_app(spelled, store, may_write=may_write)
    for path in certificates:
        yield from check_certificate(path, wall_clock())
    yield check_clock(wall_clock() - begun[0], steady_clock() - begun[1])


def _check_app(spelled: str, store: str | None, *, may_write: bool) -> Iterator[Finding]:
    app = load_app(spelled)
    try:
        found = middlewares(app)
    except TwoPHPError as error:
        yield failed_with("app", error, "correct the setting: the service cannot start with it")
        return
    if not found:
        remedy = "name the object that your server runs, after the middleware was added"
        yield fail("app", f"{spelled} has no TwoPhaseMiddleware around it", remedy)
    for middleware in found:
        yield from _check_middleware(middleware, app, store, may_write=may_write)


def _check_middleware(
    middleware: TwoPhaseMiddleware, app: object, store: str | None, *, may_write: bool
) -> Iterator[Finding]:
    url = middleware.store_url
    yield ok("app", f"service {safe(middleware.settings.service)}, store {_without_secrets(url)}")
    yield from check_service(middleware.settings, routes_of(app))
    where = parse_store_url(url)
    if where.kind == "memory":
        yield warn("store.file", "memory: forgets everything with the process", "use sqlite:///orders.db")
        return
    if where.kind in ("postgresql", "redis"):
        if store is None:
            yield from check_ledger(url, None)
        return
    yield from check_owner(where.path, middleware.settings.service)
    if store is None:
        yield from _check_database(where.path, middleware.keys, may_write=may_write)
    elif sqlite_path(store) != where.path:
        yield warn("app", f"it keeps its records in {where.path}, not in {store}", "check the database it uses as well")


def _check_store(store: str, note: Path | None, *, may_write: bool) -> Iterator[Finding]:
    if store.startswith((*POSTGRESQL, *REDIS)):
        yield from check_ledger(store, note)
        return
    path = sqlite_path(store)
    yield from _check_database(path, None, may_write=may_write)
    if note is not None:
        noted = noted_in(note)
        line = 0 if noted is None else ProvenHead.parse(noted.head).seq
        yield check_noted(note, noted, *heads_of_file(path, line), wall_clock())


def _check_database(path: str, keys: Keys | None, *, may_write: bool) -> Iterator[Finding]:
    yield from check_keys(path, keys, wall_clock())
    yield from check_store(path, steady_clock, may_write=may_write)
    if not Path(path).is_file():
        return  # There is nothing to look into.
    health = examine(path)
    if isinstance(health, Finding):
        yield health
        return
    yield check_journal(health, path)
    yield from check_central(path)
    yield from check_store_time(health.written_at, wall_clock())


def _without_secrets(url: str) -> str:
    return safe(url.partition("@")[2] or url)


def _print(findings: Sequence[Finding]) -> None:
    console = out()
    for finding in findings:
        level = finding.level
        console.print(
            Text.assemble((level.ljust(_LONGEST), _STYLES[level]), f"  {safe(finding.check)}: ", safe(finding.means))
        )
        if finding.remedy:
            console.print(Text(f"{' ' * _LONGEST}  -> {safe(finding.remedy)}"))
    levels = Counter(finding.level for finding in findings)
    wrong = f"{counted(levels['warn'], 'warning')}, {counted(levels['fail'], 'failure')}"
    console.print(f"\n{levels['ok']} ok, {wrong}")
