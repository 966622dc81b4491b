"""The command line: ``twophp``. One file per group of commands; this one puts them together."""

from __future__ import annotations

from typing import Final

import click

from twophp import __version__
from twophp.cli.lazy import Commands, LazyGroup

PLACES: Final = {
    "demo": "twophp.cli.demo.command",
    "doctor": "twophp.cli.doctor.command",
    "keys": "twophp.cli.keys",
    "ledger": "twophp.cli.ledger",
    "obligations": "twophp.cli.obligations",
    "registrar": "twophp.cli.registrar",
    "serve": "twophp.cli.serve",
    "store": "twophp.cli.store",
    "witness": "twophp.cli.witness",
}


@click.group(cls=Commands, places=PLACES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twophp")
def main() -> None:
    """Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once.

    Exit codes: 0 fine, 1 something was found, 2 wrong usage or settings; 130 after Ctrl-C, 141 if its reader ends.
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
