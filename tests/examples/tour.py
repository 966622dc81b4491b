"""An example, walked through as its README says: its commands in their order, and what it says that one sees.

A README shows a session in ``console`` blocks: a command after ``$``, then what it prints, where ``...`` stands for
what differs from run to run. Its ports are replaced by free ones, in its commands and in a copy of the programs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.patience import PATIENCE_S
from tests.postgres import free_port

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
COMMANDS: Final = {
    "python": [sys.executable],
    "twophp": [sys.executable, "-m", "twophp.cli"],
    "uvicorn": [sys.executable, "-m", "uvicorn"],
}

_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT: Final = re.compile(r"\b80\d\d\b")
_SERVES: Final = "Uvicorn running on"
_WITHOUT_TLS: Final = re.compile(r"^\w+: two-phase requests are sent without TLS \(allow_insecure\)\n", re.MULTILINE)


class Step(NamedTuple):
    """A command of a README, and what it prints."""

    command: str
    prints: str


class Running:
    """A process that a step has started, and all that it has said so far."""

    def __init__(self, step: Step, folder: Path, exported: Mapping[str, str]) -> None:
        self.step = step
        program, *arguments = shlex.split(step.command)
        self._process = subprocess.Popen(  # noqa: S603 - our own READMEs
            [*COMMANDS[program], *arguments],
            cwd=folder,
            env={**_environment(), **exported},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._is_silent = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def said(self) -> str:
        """What it has printed, but for what the examples need no TLS for: it is said once, in each README's prose."""
        return _WITHOUT_TLS.sub("", "".join(self._said))

    def until(self, words: str) -> None:
        """Wait until it has said this."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_silent or words in self.said, PATIENCE_S)
        assert words in self.said, f"{self.step.command}: {self.said}"

    def serves(self) -> Self:
        """Wait until this server serves."""
        self.until(_SERVES)
        return self

    def ends(self, code: int = 0) -> str:
        """Wait for its end; what it has said."""
        assert self._process.wait(PATIENCE_S) == code, f"{self.step.command}: {self.said}"
        self._listener.join(PATIENCE_S)
        return self.said

    def kill(self) -> None:
        """As the machine would."""
        self._process.kill()
        self.ends(-signal.SIGKILL)

    def stop(self) -> None:
        """As Ctrl-C does, if it is there still."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._listener.join(PATIENCE_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._hear(line)
        self._hear("", is_last=True)

    def _hear(self, line: str, *, is_last: bool = False) -> None:
        with self._changed:
            self._said.append(line)
            self._is_silent = is_last
            self._changed.notify_all()


class Tour:
    """One example's README, from its first command to its last."""

    def __init__(self, name: str, folder: Path, running: ExitStack) -> None:
        self.folder = folder / name
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
        self._running = running
        self._exported: dict[str, str] = {}
        self._ports: dict[str, str] = {}
        for program in self.folder.rglob("*.py"):
            program.write_text(self._with_free_ports(program.read_text(encoding="utf-8")), encoding="utf-8")
        self._steps = list(steps(self._with_free_ports((self.folder / "README.md").read_text(encoding="utf-8"))))

    def start(self, command: str) -> Running:
        """Run the next command of the README beside what follows."""
        return self._started(self._next(command))

    def aside(self, command: str) -> Running:
        """Run what the README does not show."""
        return self._started(Step(self._with_free_ports(command), ""))

    def port(self, shown: int) -> int:
        """The free port in the place of one that the README shows."""
        return int(self._with_free_ports(str(shown)))

    def export(self, command: str) -> None:
        """Set variables for what follows, as the next command of the README does."""
        _export, *settings = shlex.split(self._next(command).command)
        self._exported |= dict(setting.split("=", 1) for setting in settings)

    def serve(self, command: str) -> Running:
        """Start a server, and wait until it serves."""
        return self.start(command).serves()

    def run(self, command: str, code: int = 0) -> str:
        """Run the next command of the README to its end, and compare what it prints."""
        return self.sees(self.start(command), code)

    def sees(self, running: Running, code: int = 0) -> str:
        """Wait for the end of a command, and compare what it has printed."""
        said = running.ends(code)
        assert re.fullmatch(pattern(running.step.prints), plain(said)), f"{running.step}\n\nprinted:\n{said}"
        return said

    def is_over(self) -> bool:
        """Whether nothing of the README is left."""
        return not self._steps

    def _started(self, step: Step) -> Running:
        started = Running(step, self.folder, self._exported)
        self._running.callback(started.stop)
        return started

    def _next(self, command: str) -> Step:
        assert self._steps, f"the README ends before: {command}"
        step = self._steps.pop(0)
        assert step.command == self._with_free_ports(command)
        return step

    def _with_free_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: self._ports.setdefault(found[0], str(free_port())), text)


@contextmanager
def tour(name: str, folder: Path) -> Iterator[Tour]:
    """Walk through an example. Whatever it started has ended in the end."""
    with ExitStack() as running:
        yield Tour(name, folder, running)


def steps(readme: str) -> Iterator[Step]:
    """The commands of a README, and what each prints."""
    for block in _BLOCK.findall(readme):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, prints = shown.partition("\n")
            yield Step(command, plain(prints))


def plain(text: str) -> str:
    """Without the spaces at the ends of lines, and without empty lines around."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def pattern(prints: str) -> str:
    """What matches the text of a README: a line ``...`` is any lines, and within a line it is anything."""
    return r"\n".join(
        r"(?:.*\n)*?.*" if line == "..." else ".*?".join(map(re.escape, line.split("...")))
        for line in prints.split("\n")
    )


def _environment() -> dict[str, str]:
    """Nothing of ours is set, and nothing is buffered."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TWOPHP_")}
    return kept | {"PYTHONUNBUFFERED": "1"}
