"""The command: set the stage, play the scenes, report them, and say with the exit code whether all was as promised."""

from __future__ import annotations

import importlib
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click

from twophp.cli.lazy import SIGNALLED
from twophp.cli.output import FOUND, examples
from twophp.core.errors import ConfigError

NEEDS: Final = ("fastapi", "httpx2", "jinja2", "joserfc", "uvicorn")


@click.command(
    epilog=examples("demo --once", "demo --keep ./demo", "demo --once --json"),
    short_help="See it work: nine processes, and their ledgers.",
)
@click.option("--once", is_flag=True, help="End when the story is told; without it, go on with calls until Ctrl-C.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where ledgers and logs go; a new folder among the temporary files otherwise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def demo(ctx: click.Context, *, once: bool, keep: Path | None, as_json: bool) -> None:
    """See it work: nine processes on loopback, calls that succeed, fail, stall and repeat, and the ledgers after them.

    The chain is the draft's own (§10.3): client -> A -> B1, B2, B3 -> C1, D1, E1.

    Exits with 0 only if its fourteen rows are there and paired, and the other calls ended as they must; with 1 if they
    did not; with 2 if a process failed.
    """
    _check_installed()
    # These need what was just looked for.
    from twophp.cli.demo.report import Report  # noqa: PLC0415
    from twophp.cli.demo.show import show  # noqa: PLC0415
    from twophp.cli.demo.story import Story  # noqa: PLC0415

    with _ending_by_signal():
        holds = show(_folder(keep), Report() if as_json else Story(), once=once)
    ctx.exit(0 if holds else FOUND)


def _check_installed() -> None:
    for name in NEEDS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            message = f"the demo needs {', '.join(NEEDS)}, and {name} is not installed: it needs the extra twophp[demo]"
            raise ConfigError(message, code="not_installed") from error


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="twophp-demo-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ConfigError(f"{keep} is not empty: every demo begins with new ledgers", code="not_empty")
    return keep.resolve()


@contextmanager
def _ending_by_signal() -> Iterator[None]:
    """A closed terminal or a polite kill ends the demo as Ctrl-C does: and leaves no process behind."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
