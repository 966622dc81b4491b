"""A page as a reader works through it: files are written, commands run in one shell, outputs compared.

A ``python`` block that begins with ``# name.py`` is that file. The ``sh`` blocks of a page are one session. A ``text``
block after one shows what it prints, where ``...`` stands for anything. A block that cannot run here has
``<!-- not run: why -->`` above it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+)\n")
PORT = re.compile(r"(?<=[: ])8\d{3}\b")
MARK = "--- block {} ---"
TIME_LIMIT_S = 600  # A page takes half a minute at most on a quiet machine.


class PageError(AssertionError):
    """A page does not do what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block that is run, written to a file, or compared."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that this block is, if it is one."""
        found = FILE.match(self.text)
        return found[1] if found and self.language == "python" else ""


def blocks(markdown: str) -> list[Block]:
    """Return the blocks of a page that are not excused, in their order."""
    found = [(excuse, Block(language=language, text=text)) for excuse, language, text in BLOCK.findall(markdown)]
    return [block for excuse, block in found if not excuse and block.language in {"python", "sh", "text"}]


def has_session(markdown: str) -> bool:
    """Whether a page has commands to run."""
    return any(block.language == "sh" for block in blocks(markdown))


def run(markdown: str, folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Work through a page in a folder, which begins with an environment in ``.venv``. Raises PageError.

    ``environ`` is what a reader has set.
    """
    for port in sorted(set(PORT.findall(markdown))):
        markdown = re.sub(rf"(?<=[: ]){port}\b", str(_free_port()), markdown)
    parts = blocks(markdown)
    (folder / ".venv").symlink_to(sys.prefix)
    script = "\n".join(["set -eo pipefail", *(_shell(number, block) for number, block in enumerate(parts))])
    code, output = _session(script, folder, environ or {})
    if code:
        why = f"ended with {code}" if code > 0 else f"were not done after {TIME_LIMIT_S} s"
        raise PageError(f"the page's commands {why}:\n{output}")
    for number, block in enumerate(parts):
        if block.language == "text":
            _compare(block.text, _printed(output, number))


def _shell(number: int, block: Block) -> str:
    """A block as a part of the session's script."""
    if block.language == "text":
        return f"echo {shlex.quote(MARK.format(number))}"
    if block.language == "sh":
        return block.text
    if not block.file:
        raise PageError(f"a python block of a page with commands names its file in its first line: {block.text[:60]!r}")
    return f"cat > {block.file} <<'END OF FILE'\n{block.text}END OF FILE"


def _printed(output: str, number: int) -> str:
    """What was printed between the text block before this one, if there is any, and this one."""
    before = output.split(MARK.format(number), maxsplit=1)[0]
    return before.rsplit("--- block ", 1)[-1]


def _compare(expected: str, printed: str) -> None:
    """Look for the lines of a text block in an output, in which spaces that pad a column do not count."""
    patterns = [re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*") for line in expected.splitlines()]
    squeezed = "\n".join(" ".join(line.split()) for line in printed.splitlines())
    if not re.search("\n".join(patterns), squeezed, re.DOTALL):
        raise PageError(f"the page shows:\n{expected}\nand what was printed is:\n{printed}")


def _session(script: str, folder: Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a script in a process group of its own, and end the group with it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TWOPHP_")}
    paths = [str(Path(__file__).parents[2] / "src"), *filter(None, [ours.get("PYTHONPATH")])]
    log = folder / "session.log"
    with log.open("wb") as out:
        shell = subprocess.Popen(  # noqa: S603 - our own pages
            ["/bin/bash", "-c", script],
            cwd=folder,
            env={**ours, **environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
