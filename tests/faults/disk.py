"""A disk that can lose its power: what strace saw of a process, replayed on pages that are durable only once synced.

The rules are the harshest that a kernel is known to play by. A page that was written and not synced may be there after
the power cut or not, each by itself. A page whose sync failed is called clean: it is still read back while the machine
runs, no later sync will write it, and it is gone with the power, unless somebody writes it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

PAGE = 4096
CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
HEX = re.compile(r'[<"]((?:\\x[0-9a-f]{2})*)[>"]')

Survives: TypeAlias = Callable[[int], bool]
"""Whether a page, by its number, made it to the disk although nobody has synced it."""


@dataclass(slots=True)
class File:
    """What a reader sees, what the disk has, and which pages the next sync will bring there."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if len(self.seen) < end:
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[offset:end] = data
        self.dirty.update(range(offset // PAGE, (end - 1) // PAGE + 1))

    def truncate(self, size: int) -> None:
        del self.seen[size:]
        self.seen.extend(bytes(size - len(self.seen)))
        self.dirty = {page for page in self.dirty if page * PAGE < size}

    def sync(self, *, succeeded: bool) -> None:
        if succeeded:
            self.durable = self.after_a_power_cut(lambda _page: True)
        self.dirty.clear()

    def after_a_power_cut(self, survives: Survives) -> bytearray:
        pages = [page for page in sorted(self.dirty) if survives(page)]
        if not pages and len(self.durable) <= len(self.seen):
            return bytearray(self.durable)
        left = bytearray(len(self.seen))
        left[: len(self.durable)] = self.durable[: len(left)]
        for page in pages:
            left[page * PAGE : (page + 1) * PAGE] = self.seen[page * PAGE : (page + 1) * PAGE]
        return left


class Disk:
    """One folder. A file's name is durable once the file was synced, and gone as soon as it was removed."""

    def __init__(self, folder: Path) -> None:
        """Begin with what lies in the folder, all of it durable."""
        self._folder = str(folder)
        self._files = {name: File(bytearray(data), bytearray(data)) for name, data in _contents(folder).items()}

    def replay(self, log: Path) -> Iterator[str]:
        """Do what was done; yield ``sync`` before every sync and whatever the process said, as it is said."""
        for name, arguments, result in _calls(log.read_text(encoding="ascii")):
            texts = [bytes.fromhex(found.replace("\\x", "")) for found in HEX.findall(arguments)]
            if name == "write":
                yield texts[-1].decode().strip()
                continue
            if name.endswith("sync"):
                yield "sync"
            path = texts[-1 if name == "openat" else 0].decode()
            folder, _, file = path.rpartition("/")
            if folder == self._folder and not file.endswith("-shm"):
                self._do(name, file, texts, arguments, result)

    def _do(self, name: str, file: str, texts: list[bytes], arguments: str, result: int) -> None:
        numbers = [int(part) for part in arguments.split(", ") if part.isdigit()]
        if name == "unlink":
            self._files.pop(file, None)
        elif name == "openat":
            if "O_CREAT" in arguments and result >= 0:
                self._files.setdefault(file, File())
        elif name == "pwrite64":
            assert len(texts[1]) >= result, "strace has cut the data short"
            self._files[file].write(texts[1][: max(result, 0)], numbers[-1])
        elif name == "ftruncate":
            self._files[file].truncate(numbers[-1])
        else:
            self._files[file].sync(succeeded=result == 0)

    def cut_the_power(self, folder: Path, survives: Survives) -> None:
        """Write what is left into ``folder``."""
        for name, file in self._files.items():
            if left := file.after_a_power_cut(survives):
                (folder / name).write_bytes(left)

    def looks_like(self, folder: Path) -> bool:
        """Whether the files that are really there are the ones that were replayed."""
        return _contents(folder) == {name: bytes(file.seen) for name, file in self._files.items()}


def _contents(folder: Path) -> dict[str, bytes]:
    """The files by their names, but for the shared memory, which no disk ever sees."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def _calls(log: str) -> Iterator[tuple[str, str, int]]:
    """Name, arguments and result of every call, in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        if line.endswith("<unfinished ...>"):
            begun[line.split()[0]] = line.removesuffix(" <unfinished ...>")
            continue
        if resumed := RESUMED.match(line):
            line = begun.pop(resumed[1]) + resumed[2]  # noqa: PLW2901 - The two halves of one line.
        if call := CALL.match(line):
            yield call[1], call[2], int(call[3])
