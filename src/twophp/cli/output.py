"""How every command speaks: results on stdout, progress and errors on stderr, and exit codes that scripts can use."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from twophp.stores.urls import POSTGRESQL, StoreUrl, parse_store_url

FOUND: Final = 1
INDETERMINATE: Final = 3  # 2 is click's own, for what cannot be done.

FILE_WIDTH: Final = 10_000

FILES: Final = "a path, sqlite:///relative.db or sqlite:////absolute.db"


def examples(*commands: str) -> str:
    """The end of a command's help. The control character keeps click from filling the lines."""
    return "\b\nExample:\n" + "\n".join(f"  twophp {command}" for command in commands)


def note(text: str) -> None:
    """Something to know about the result that is not part of it: on stderr, where no pipe takes it for data."""
    click.echo(f"note: {text}", err=True)


def safe(value: str) -> str:
    """Text from a ledger, harmless to a terminal: a registered text must not move its cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)


class Stdout(Console):
    """Rich's, with two differences: plain text is harmless, and a reader that has gone ends a command as everywhere."""

    def render_str(self, text: str, **more: Any) -> Text:
        """See rich. Lines stay lines; a table's cells come by here, too."""
        return super().render_str("\n".join(map(safe, text.split("\n"))), **more)

    def on_broken_pipe(self) -> None:
        """See rich, which exits with 1 here."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def out() -> Console:
    """Where results go. Made when it is used, so that it finds the stdout of that moment."""
    return Stdout(soft_wrap=True, highlight=False)


def show(shown: RenderableType, *, narrow: RenderableType | None = None) -> None:
    """Print a table or a tree without losing anything: a terminal folds what is too wide, a file has long lines.

    A terminal too narrow for ``shown`` gets ``narrow``, if there is one. Plain strings in them are plain:
    brackets mean nothing.
    """
    console = Stdout(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    wide = console.options.update(width=FILE_WIDTH)  # Measured in the terminal's own width, everything would fit.
    if narrow is not None and Measurement.get(console, wide, shown).maximum > console.width:
        shown = narrow
    console.print(shown)


def table(*columns: str) -> Table:
    """A table that folds and never cuts."""
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def counted(count: int, noun: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)))  # Bytes: JSON is UTF-8 on any terminal.


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while it is a terminal; nothing otherwise, so logs stay readable."""
    if not sys.stderr.isatty():  # A bar that is only disabled writes an empty line with rich 13 and 14.
        yield lambda _done, _total: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def database_url(url_or_path: str) -> str:
    """The URL of a database that an argument means: of PostgreSQL, or a plain path for a file."""
    return url_or_path if url_or_path.startswith(POSTGRESQL) else f"sqlite:///{sqlite_path(url_or_path)}"


def sqlite_path(url_or_path: str) -> str:
    """The database that an argument means: a plain path will do."""
    if not url_or_path:
        raise click.UsageError(f"an empty name is no database; use {FILES}")
    if ":" not in url_or_path.partition("/")[0]:
        return url_or_path
    where: StoreUrl = parse_store_url(url_or_path, supported=FILES)
    if where.kind != "sqlite":
        kinds = {"memory": f"{url_or_path} keeps nothing", "redis": "this command reads no Redis yet"}
        why = kinds.get(where.kind, "this command reads no PostgreSQL yet")
        raise click.UsageError(f"{why}; use {FILES}")
    return where.path
