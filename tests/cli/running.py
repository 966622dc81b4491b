"""Running the command line: in this process, or as its users do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from twophp.cli import main

OK, FOUND, UNUSABLE = 0, 1, 2


def run(*arguments: object) -> Result:
    """Run one command. An exception other than an exit fails the test."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def command(*arguments: object) -> Sequence[str]:
    """The same as a process of its own."""
    return [sys.executable, "-m", "twophp.cli", *map(str, arguments)]
