"""A group of commands that is loaded when it is used: it needs an extra, and what that brings takes time to import."""

from __future__ import annotations

import importlib
from typing import cast

import click

from twophp.core.errors import ConfigError


class LazyGroup(click.Group):
    """Stands for the group ``name`` of a module."""

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
