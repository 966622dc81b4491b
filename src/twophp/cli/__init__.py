"""The command line: ``twophp``. One file per group of commands; this one puts them together."""

from __future__ import annotations

import click

from twophp import __version__
from twophp.cli.demo import demo
from twophp.cli.doctor import doctor
from twophp.cli.keys import keys
from twophp.cli.lazy import LazyGroup
from twophp.cli.ledger import ledger
from twophp.cli.obligations import obligations
from twophp.cli.output import Commands
from twophp.cli.registrar import registrar


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twophp")
def main() -> None:
    """Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once.

    Exit codes: 0 fine, 1 something was found, 2 wrong usage or settings.
    """


main.add_command(
    LazyGroup(
        "central",
        "twophp.cli.central",
        extra="central",
        short_help="Run the central ledger and manage it.",
        help="Run the central ledger, and manage its tokens, services and pulls.",
    )
)
main.add_command(demo)
main.add_command(doctor)
main.add_command(keys)
main.add_command(ledger)
main.add_command(obligations)
main.add_command(registrar)
