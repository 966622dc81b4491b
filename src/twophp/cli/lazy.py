"""Commands that are loaded when they are used: what each of them brings takes time to import, or needs an extra."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final, cast

import click

from twophp.core.errors import ConfigError, TwoPHPError

UNUSABLE: Final = 2
"""The exit code for wrong usage or settings."""
SIGNALLED: Final = 128
"""What shells add to the number of a signal. 1 would say that something was found."""


class Commands(click.Group):
    """A group whose commands may raise our errors: each is one line, never a traceback.

    ``places`` says of every command in which module it is, under its own name.
    """

    def __init__(self, *args: Any, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = places

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # A terminal without some letter shows another in its place.
        try:
            return super().invoke(ctx)
        except TwoPHPError as error:
            _say(error.code, error.message)
            ctx.exit(UNUSABLE)
        except UnicodeEncodeError:
            _say("bad_text", "an argument is no text: it holds bytes that are not UTF-8")
            ctx.exit(UNUSABLE)
        except BrokenPipeError:  # The reader, such as `head`, has ended: nothing was found, nothing is wrong.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # For what Python flushes at its end.
            ctx.exit(SIGNALLED + signal.SIGPIPE)
        except OSError as error:  # A full disk, a folder of another user.
            _say("os_error", str(error))
            ctx.exit(UNUSABLE)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(SIGNALLED + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted([*super().list_commands(ctx), *self._places])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name not in self._places:
            return super().get_command(ctx, cmd_name)
        return cast("click.Command", getattr(importlib.import_module(self._places[cmd_name]), cmd_name))


def _say(code: str, words: str) -> None:
    click.echo(f"error[{code}]: {words}", err=True)


class LazyGroup(click.Group):
    """Stands for the group ``name`` of a module that needs an extra. Without the extra it can still be listed."""

    def __init__(self, name: str, module: str, *, extra: str, help: str, short_help: str) -> None:  # noqa: A002 - click's own word.
        super().__init__(name, help=help, short_help=short_help)
        self._module = module
        self._extra = extra

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        return self._loaded().get_command(ctx, cmd_name)

    def _loaded(self) -> click.Group:
        assert self.name is not None
        try:
            return cast("click.Group", getattr(importlib.import_module(self._module), self.name))
        except ModuleNotFoundError as error:
            raise ConfigError(f"this needs the extra twophp[{self._extra}]", code="missing_extra") from error
