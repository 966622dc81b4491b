"""Processes of the bench: uvicorn with one of ``bench.apps``, the receiver of callbacks, and what the kernel counts.

The process that started it ends it, by its own id.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.observed import PATH
from bench.receiver import HOST, write_certificate

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_S = 60
AFTER_THE_NAME = 2  # The first two fields of /proc/PID/stat are the id and the name, which may have spaces in it.
UTIME, STIME = 13 - AFTER_THE_NAME, 14 - AFTER_THE_NAME


class Observed(msgspec.Struct, frozen=True):
    """What a server reports about itself since the last question."""

    gc_ms: list[float]
    log_bytes: int


class Server(msgspec.Struct, frozen=True):
    """A server that runs."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """User and system time of the process so far, of all its threads, as the kernel counts it (10 ms ticks)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_SECOND

    def written_bytes(self) -> int:
        """What the process has had written to the disk so far: the log, checkpoints and everything else."""
        lines = Path(f"/proc/{self.pid}/io").read_text(encoding="ascii").splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    def observed(self) -> Observed:
        """What ``bench.observed`` has seen."""
        return msgspec.json.decode(httpx.get(f"{self.url}{PATH}", timeout=10).content, type=Observed)


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours, ended with the block; what it says goes to ``log``."""
    with (log or Path(os.devnull)).open("ab") as said:
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=said, stderr=said)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def receiving(folder: Path) -> Iterator[str]:
    """A receiver of callbacks, in a process of its own; yields its URL."""
    pem, port = folder / "receiver.pem", free_port()
    write_certificate(pem)
    os.environ["BENCH_RECEIVER"] = str(pem)
    try:
        with running([sys.executable, "-m", "bench.receiver", str(pem), str(port)]):
            yield f"https://{HOST}:{port}/acknowledged"
    finally:
        del os.environ["BENCH_RECEIVER"]


@contextmanager
def serving(
    factory: str,
    database: Path,
    *,
    http: str = "httptools",
    workers: int = 1,
    python: str = sys.executable,
    module: str = "bench.apps",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Uvicorn on a free port; ``database`` is the ledger's file, if the application has one."""
    port = free_port()
    command = [python, "-m", "uvicorn", f"{module}:{factory}", "--factory", "--port", str(port), "--loop", "uvloop"]
    command += ["--http", http, "--workers", str(workers), "--log-level", "error", "--no-access-log"]
    store = {"BENCH_STORE": f"sqlite:///{database}", "BENCH_DATABASE": str(database)}
    log = database.with_suffix(f".{factory}.log")
    with running(command, {**store, **(environment or {})}, log) as process:
        url = f"http://{HOST}:{port}"
        _wait_until_up(url, process, log)
        yield Server(url, process.pid)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(url, timeout=1)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    last = log.read_text(encoding="utf-8").splitlines()[-1:]
    raise RuntimeError(f"the server did not start: {' '.join(last)}")
