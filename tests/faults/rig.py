"""The rig: makes victims, and attaches strace to one of them with a fault to inject."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
STRACE = shutil.which("strace")
ATTACHED = "attached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the N-th call of one kind: ``effect`` as strace spells it. Each thread counts for itself."""

    syscall: str
    effect: str
    when: int = 1

    @property
    def injection(self) -> str:
        return f"inject={self.syscall}:{self.effect}:when={self.when}"


def _struck_call(fault: Fault | None) -> str:
    return "none" if fault is None else fault.syscall


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a victim said, how it ended, and whether the fault struck at all."""

    said: list[str] = field(default_factory=list)
    exit: int = 0
    struck: bool = False
    pauses_at_errors: bool = True

    @property
    def acknowledged(self) -> int:
        """How many steps of the handshake were answered with yes."""
        return sum(line.startswith("ack ") for line in self.said)

    @property
    def found(self) -> int | None:
        """The version that the victim read after an unknown outcome, if it did."""
        words = [line.split()[-1] for line in self.said if line.startswith("found ")]
        return int(words[-1]) if words else None


class Rig:
    """Victims on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._complaints = folder / "stderr.txt"
        command = [sys.executable, "-m", "tests.faults.handshake", str(self._complaints)]
        pipe = subprocess.PIPE
        self._makers = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)  # noqa: S603
        assert self._next() == "ready"

    def close(self) -> None:
        with self._makers:  # Closing its input ends it.
            self._input.close()

    @property
    def _input(self) -> IO[str]:
        assert self._makers.stdin is not None
        return self._makers.stdin

    def _next(self) -> str:
        assert self._makers.stdout is not None
        return self._makers.stdout.readline().strip()

    def run(
        self,
        database: Path,
        *,
        fault: Fault | None = None,
        pause: str = "start",
        when_unknown: str = "resume",
        trace: Path | None = None,
        at_pause: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Make a victim and let it live, with a fault to meet, or with its calls written to ``trace``, or neither."""
        watched = fault is not None or trace is not None
        print(database, pause if watched else "never", when_unknown, file=self._input)
        pid = self._next().removeprefix("pid ")
        outcome = Outcome(pauses_at_errors=when_unknown != "die")
        if not watched:
            self._listen(outcome)
            return outcome
        log = trace or self.folder / "strace.txt"
        while (line := self._next()) != f"at {pause}":
            outcome.said.append(line)
        at_pause()
        with self._attached(pid, log, fault, in_full=trace is not None) as strace:
            self._go()
            self._listen(outcome, strace)
        outcome.struck = fault is not None and ("INJECTED" in log.read_text() or outcome.exit == -9)
        return outcome

    def _go(self) -> None:
        print("go", file=self._input)

    def _listen(self, outcome: Outcome, strace: subprocess.Popen[str] | None = None) -> None:
        while not (line := self._next()).startswith("exit "):
            assert line, self.complaints()
            outcome.said.append(line)
            if strace is not None and line.startswith("error ") and outcome.pauses_at_errors:
                strace.terminate()  # It lets go of the victim: one fault is enough.
                strace.wait()
                self._go()
        outcome.exit = int(line.removeprefix("exit "))

    @contextmanager
    def _attached(self, pid: str, log: Path, fault: Fault | None, *, in_full: bool) -> Iterator[subprocess.Popen[str]]:
        assert STRACE is not None
        calls = "openat,pwrite64,fdatasync,fsync,ftruncate,unlink,write" if in_full else _struck_call(fault)
        options = ["-y", "-xx", "-s", "2000000"] if in_full else []
        if fault is not None:
            options += ["-e", fault.injection]
        command = [STRACE, "-f", "-p", pid, "-o", str(log), "-e", f"trace={calls}", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:  # noqa: S603
            assert strace.stderr is not None
            line = strace.stderr.readline()
            assert ATTACHED in line, line
            yield strace
            strace.stderr.read()

    def complaints(self) -> str:
        """What victims wrote to their standard error."""
        return self._complaints.read_text(encoding="utf-8")
