"""docs/reference/cli.md: every command with its options, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from tools.diagrams import markdown
from twophp.cli import main

HEAD = """# Command line

Written by `make docs` from the commands; `twophp COMMAND --help` prints the same. Most commands take
`--json`. A setting with a variable is read from the environment where no option says otherwise.
"""
HELP = {"--help", "-h, --help"}


def cli_page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_command(main, None, "twophp")]).rstrip() + "\n"


def _command(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    """The section of a command, then those of its own commands."""
    context = click.Context(command, info_name=name, parent=parent)
    path = context.command_path
    if parent is not None:
        yield f"{'#' * len(path.split())} `{path}`\n"
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield from _paragraphs(command.help)
    options = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    if rows := [(f"`{_cell(names)}`", _cell(text)) for names, text in options if text and names not in HELP]:
        yield markdown(("Option", ""), rows)
    if command.epilog:
        yield _example(command.epilog)
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            yield from _command(found, context, one)


def _paragraphs(text: str | None) -> Iterator[str]:
    """A command's help. What it sets out line by line stays so."""
    for paragraph in inspect.cleandoc(text or "").replace("\b\n", "\b").split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```text\n{paragraph[1:]}\n```\n"
        elif paragraph:
            yield " ".join(re.sub(r"([*_<>])", r"\\\1", paragraph).split()) + "\n"


def _example(epilog: str) -> str:
    lines = inspect.cleandoc(epilog).replace("\b", "").strip().splitlines()
    return "```text\n" + "\n".join(line.strip() for line in lines if line.strip() != "Example:") + "\n```\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
