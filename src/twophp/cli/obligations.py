"""``twophp obligations``: look at what services have reserved, give up what will not be settled, export, report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import msgspec
from rich.markup import escape
from rich.text import Text

from twophp.cli.output import FOUND, counted, examples, out, print_json, progress_bar, safe, show, sqlite_path, table
from twophp.core.errors import ConfigError, JournalBroken
from twophp.core.identity import seal_context
from twophp.core.obligation import Decision, Obligation, ObligationError, Rollback, State, admitted
from twophp.core.records import Instant, Sealed
from twophp.delivery.outbox import Outbox
from twophp.engine.obligations.audit import Audit, AuditLine, LeakReport, as_json_line, check_chain, leak_report
from twophp.engine.obligations.effects import Effect, decode_payload
from twophp.engine.obligations.flow import Obligations
from twophp.engine.obligations.rules import Rules
from twophp.ports import JournalLine
from twophp.ports import Obligations as Question
from twophp.stores.clock import mint_uuid
from twophp.stores.portal import run_sync
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.reader import ObligationReader, reading_obligations
from twophp.stores.urls import open_vault
from twophp.wire.instant import format_instant, parse_instant, spelled

STATES: Final = ("Reserved", "Committed", "RolledBack")
_STYLES: Final = {"Reserved": "yellow", "Overdue": "bold red", "Committed": "green", "RolledBack": "dim"}

Progress: TypeAlias = Callable[[int, int], None]

json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group(short_help="Look after effects that are reserved, then settled.")
def obligations() -> None:
    """Look after obligations: effects that are reserved, then committed or rolled back.

    FILE is the database of a tracker or of a service, effects.db or sqlite:///effects.db. Looking is safe beside a
    running service: nothing is held up, made or migrated.

    Exit codes: 0 fine, 1 something was found, 2 wrong usage, or what was asked is refused.
    """


# list and show.


_FACTS: Final = ("obligation_id", "flow", "key", "trace_id", "intent", "state", "overdue")
_TIMES: Final = ("reserved_at", "timeout_ms", "settled_at", "resolution")


def _line(one: Obligation, now: Instant) -> dict[str, Any]:
    """An obligation as a program reads it. ``overdue``: still Reserved, at or over its timeout."""
    overdue = {"overdue": one.effective_state(now) is State.OVERDUE}
    return dict.fromkeys((*_FACTS, *_TIMES)) | spelled(one, (*_FACTS[:-1], *_TIMES)) | overdue


@obligations.command(
    "list",
    epilog=examples(
        "obligations list effects.db", "obligations list effects.db --state Reserved --flow publish --json"
    ),
)
@click.argument("file")
@click.option("--state", type=click.Choice(STATES, case_sensitive=False), help="Only those in this state.")
@click.option("--flow", default="", help="Only those of this flow.")
@click.option("--key", default="", help="Only those with this key.")
@click.option("--intent", default="", metavar="ID", help="Only those that the handler of this intent opened.")
@click.option("--trace", "trace_id", default="", metavar="ID", help="Only those reserved under this trace id.")
@click.option("--before", default="", metavar="ID", help="Go on after an earlier page: only those older than this one.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="How many at most.")
@json_option
def list_(file: str, state: str | None, *, as_json: bool, **wanted: Any) -> None:
    """List obligations, newest first.

    Overdue means: still Reserved at or over its timeout. No commit can reach it any more, and the next scan of its
    service rolls it back.
    """
    with reading_obligations(sqlite_path(file)) as reader:
        now = reader.now()
        found = run_sync(reader.obligations(Question(state=state or "", **wanted)))
    lines = [_line(one, now) for one in found]
    if as_json:
        print_json(lines)
        return
    if not lines:
        out().print("no obligations are found")
        return
    rows = table("obligation", "flow", "key", "state", "reserved", "settled", "by", "trace")
    for line in lines:
        word = "Overdue" if line["overdue"] else str(line["state"])
        who, when = (line[name] for name in ("obligation_id", "flow", "key")), (line["reserved_at"], line["settled_at"])
        rows.add_row(*who, Text(word, style=_STYLES[word]), *when, line["resolution"], line["trace_id"])
    show(rows)


@obligations.command(
    "show", epilog=examples("obligations show effects.db 6f1c...-2a", "obligations show effects.db ID --payload")
)
@click.argument("file")
@click.argument("obligation_id", metavar="ID")
@click.option("--payload", "with_payload", is_flag=True, help="Open the sealed payload too. Needs the key ring.")
@json_option
def show_(file: str, obligation_id: str, *, with_payload: bool, as_json: bool) -> None:
    """Show one obligation and everything that happened to it."""
    path = sqlite_path(file)
    with reading_obligations(path) as reader:
        found = _found(reader, obligation_id)
        line = _line(found, reader.now())
        history = [_event(one) for one in run_sync(reader.history(found.keys()[0]))]
        service, sealed = reader.service(), reader.sealed(obligation_id)
    document: dict[str, Any] = {**line, "history": history}
    if with_payload:
        document["payload"] = _payload(path, service, obligation_id, sealed)
    if as_json:
        print_json(document)
        return
    console = out()
    for name, value in document.items():
        if name != "history":
            console.print(f"[dim]{name:>14}[/dim]  {escape(safe(_plain(value)))}")
    for event in history:
        console.print(f"{event['at']}  [bold]{event['code']}[/bold]  {event['after']}  {escape(event['detail'])}")


def _found(reader: ObligationReader, obligation_id: str) -> Obligation:
    found = reader.find(obligation_id)
    if found is None:
        raise ObligationError(f"there is no obligation {obligation_id}")
    return found


def _event(line: JournalLine) -> dict[str, Any]:
    names = ("before", "after", "at", "observed_at", "trace_id", "detail")
    return {"code": line.event.event} | spelled(line.event, names)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _payload(path: str, service: str | None, obligation_id: str, sealed: Sealed | None) -> Any:
    if sealed is None:
        return None
    context = seal_context(service or "", obligation_id, "payload")
    found = decode_payload(open_vault(f"sqlite:///{path}").open(sealed, context=context))
    return found.hex() if isinstance(found, bytes) else found


# release.


@obligations.command(
    epilog=examples("obligations release effects.db 6f1c...-2a --trace INC-4711"),
    short_help="Roll back one that its owner will not settle.",
)
@click.argument("file")
@click.argument("obligation_id", metavar="ID")
@click.option("--trace", "trace_id", default="twophp-cli", show_default=True, metavar="ID", help="For the audit log.")
@json_option
def release(file: str, obligation_id: str, trace_id: str, *, as_json: bool) -> None:
    """Roll back one obligation that its owner will not settle, without waiting for its timeout.

    Its key is free at once. The service runs the release hook of its flow, now or when it next runs.
    Rolling back what was rolled back before succeeds and changes nothing. What is committed stays committed.
    """
    path = sqlite_path(file)
    with reading_obligations(path) as reader:
        flow, service = _found(reader, obligation_id).flow, reader.service()
    if service is None:
        raise ConfigError(f"{path} does not say whose it is", code="no_service")
    decision = asyncio.run(_release(path, service, flow, obligation_id, trace_id))
    if as_json:
        print_json({"obligation_id": obligation_id, "changed": decision.changed, "information": decision.information})
        return
    done = "rolled back" if decision.changed else "was rolled back before"
    out().print(f"{escape(obligation_id)} {done}")


async def _release(path: str, service: str, flow: str, obligation_id: str, trace_id: str) -> Decision:
    """As its service would do it. The service's hooks are not known here, so the release is always owed."""
    async with SQLiteStore(path) as store:
        vault = open_vault(f"sqlite:///{path}")
        rules = Rules(flows=frozenset({flow}), releases={flow: _by_the_service})
        outbox = Outbox(store, vault, service, deliver={})
        opened = Obligations(store, vault, service, mint=mint_uuid, rules=rules, outbox=outbox)
        decision = await opened.make(opened.settling(obligation_id, Rollback(trace_id=trace_id)))
    return admitted(decision, f"obligation {obligation_id}")


def _by_the_service(_effect: Effect) -> None:
    raise AssertionError("this process delivers nothing")


# audit and report.


@obligations.command(
    short_help="Export every event as a chain of hashes.",
    epilog=examples(
        "obligations audit effects.db --json > audit.jsonl", "obligations audit effects.db --check audit.jsonl"
    ),
)
@click.argument("file")
@click.option("--check", type=click.Path(exists=True, dir_okay=False), help="An export to compare with FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON lines.")
@click.pass_context
def audit(ctx: click.Context, file: str, check: str | None, *, as_json: bool) -> None:
    """Export every event of every obligation, oldest first, as a chain of hashes.

    With --check: prove that no line of an export was changed, and that FILE still tells the same; how many events FILE
    has beyond it is said, since an export that was cut off looks like an older one. Exit code 1 means that it does not
    hold. `twophp ledger verify` proves the journal itself.
    """
    with reading_obligations(sqlite_path(file)) as reader, _bar(as_file=check is not None) as progress:
        lines = _lines(Audit(reader), reader.last_line(), progress)
        if check is not None:
            ctx.exit(_check(Path(check), lines, as_json=as_json))
        for line in lines:
            if as_json:
                click.echo(as_json_line(line), nl=False)
            else:
                click.echo(f"{format_instant(line.at)}  {line.code}  {line.obligation_id:38}  {_words(line)}")


def _bar(*, as_file: bool) -> AbstractContextManager[Progress]:
    """Progress, unless it would stand between the lines on the same terminal."""
    return progress_bar("reading") if as_file or not sys.stdout.isatty() else nullcontext(_silent)


def _silent(_done: int, _total: int) -> None:
    pass


def _lines(export: Audit, last: int, progress: Progress) -> Iterator[AuditLine]:
    while (page := run_sync(export.page())) is not None:
        yield from page
        if page:
            progress(page[-1].seq, last)


def _words(line: AuditLine) -> str:
    return f"{line.event}: {line.detail}" if line.detail else line.event


def _check(path: Path, lines: Iterator[AuditLine], *, as_json: bool) -> int:
    exported = path.read_bytes().splitlines(keepends=True)
    holds = True
    try:
        message = f"{counted(check_chain(exported), 'line')}, unchanged, and the database says the same"
    except JournalBroken as error:
        holds, message = False, error.message
    other = _first_difference(exported, lines) if holds else None
    if other is not None:
        holds, message = False, f"line {other} of the export is not what the database says"
    if holds and (beyond := sum(1 for _line in lines)):
        message += f"; it goes on with {counted(beyond, 'event')} beyond the export"
    if as_json:
        print_json({"holds": holds, "message": message})
    else:
        out().print(escape(message), style="green" if holds else "red")
    return 0 if holds else FOUND


def _first_difference(exported: Sequence[bytes], lines: Iterator[AuditLine]) -> int | None:
    for number, theirs in enumerate(exported, 1):
        ours = next(lines, None)
        if ours is None or theirs.strip() != as_json_line(ours).strip():
            return number
    return None


@obligations.command(
    short_help="Say whether obligations leak, by flow and state.",
    epilog=examples("obligations report effects.db", "obligations report effects.db --since 2026-01-31T00:00:00Z"),
)
@click.argument("file")
@click.option("--since", metavar="INSTANT", help="Only what was reserved from then on, as in 2026-01-31T00:00:00Z.")
@json_option
@click.pass_context
def report(ctx: click.Context, file: str, since: str | None, *, as_json: bool) -> None:
    """Say whether obligations leak, by flow and state; the verdict is the exit code, too.

    LEAKS (exit code 1) means that some were rolled back since they were not settled in time, or are overdue now.
    """
    begin = 0
    if since is not None:
        parsed = parse_instant(since.encode())
        if parsed is None:
            raise click.UsageError(f"{since!r} is no instant; write 2026-01-31T00:00:00Z")
        begin = parsed
    with reading_obligations(sqlite_path(file)) as reader:
        found = run_sync(leak_report(reader, since=begin))
    if as_json:
        print_json(found)
    else:
        _print_report(found)
    ctx.exit(FOUND if found.verdict == "LEAKS" else 0)


def _print_report(found: LeakReport) -> None:
    rows = table("flow", "state", "by", "obligations")
    for one in found.counts:
        style = "red" if one.resolution == "leak_scan" else ""
        rows.add_row(one.flow, one.state, one.resolution, f"{one.count:,}", style=style)
    show(rows)
    style = "red" if found.verdict == "LEAKS" else "green"
    out().print(f"[{style}]{found.verdict}[/]: {found.leaked:,} leaked, {found.overdue:,} overdue now")
