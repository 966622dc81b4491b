"""The store: whether its file is ours and well, whether what it lies on keeps what was written, and its time."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from twophp.cli.doctor.findings import Finding, fail, failed_with, ok, warn
from twophp.cli.output import counted
from twophp.cli.rows import lasted
from twophp.core.errors import StoreUnavailable, TwoPHPError
from twophp.core.policy import SECOND_MS
from twophp.core.records import Instant
from twophp.ports import Clock
from twophp.shipping.remembering import ALARM, Alarm
from twophp.stores.sqlite.health import Health, is_wal, look_at, prove_writes
from twophp.stores.sqlite.reader import ledger_reader
from twophp.stores.sqlite.reading import kept, reading

STEP_MS: Final = 100
AHEAD_MS: Final = 60 * SECOND_MS
SYNC: Final = "let NTP or chrony discipline the clock, slewing and not stepping it"
QUICK_LINES: Final = 1_000
SLOW_COMMIT_MS: Final = 50
MIB: Final = 1024 * 1024
LITTLE_BYTES: Final = 256 * MIB
NO_BYTES: Final = 16 * MIB
LONG_LOG_BYTES: Final = 256 * MIB
MOUNTS: Final = Path("/proc/self/mountinfo")

FORGETS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
FAR: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
LAYERS: Final = frozenset({"overlay", "aufs"})
NOT_OURS: Final = frozenset({"foreign_database", "central_database", "not_a_database"})
LIES: Final = frozenset({"nobarrier", "barrier=0"})

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """Where a file system is mounted, its type and its options."""

    point: str
    kind: str
    options: frozenset[str]


def check_store(path: str, steady: Clock, *, may_write: bool) -> Iterator[Finding]:
    """Everything about the file and the folder it lies in."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        yield fail("store.file", f"there is no folder {folder}", f"mkdir {folder}, owned by the service's user")
        return
    yield from _check_file(path)
    yield from check_file_system(folder, mount_of(folder, _mounts()), os.environ)
    yield from _check_space(folder)
    if may_write and may_be_ours(path):
        yield _check_writes(folder, steady)


def may_be_ours(path: str) -> bool:
    """Whether this is a service's database or the place for one. Beside what is somebody else's nothing is written."""
    file = Path(path)
    if not file.is_file():
        return not file.exists()
    try:
        with reading(path):
            return True
    except TwoPHPError as error:
        return error.code not in NOT_OURS


def examine(path: str) -> Health | Finding:
    """What the database says of itself, or why it cannot be asked."""
    try:
        return look_at(path, QUICK_LINES)
    except StoreUnavailable as error:
        return failed_with(
            "store.schema", error, "make the file and its folder readable for the user who runs this, then again"
        )
    except TwoPHPError as error:
        is_central = error.code == "central_database"
        restore = "" if is_central else ", or restore it from its backup"
        return failed_with("store.schema", error, f"use the service's own database{restore}")


def check_owner(path: str, service: str) -> Iterator[Finding]:
    """Whether the database is this service's. A start with another's is refused."""
    try:
        with ledger_reader(path) as reader:
            owner = reader.service()
    except TwoPHPError:
        return  # Its own checks say why.
    if owner is not None and owner != service:
        means = f"{path} belongs to the service {owner!r}, not to {service!r}"
        yield fail("store.owner", means, "give each service a database of its own")


def check_central(path: str) -> Iterator[Finding]:
    """Whether the central ledger ever broke what it had promised this service with a signed head."""
    try:
        with reading(path) as connection:
            said = kept(connection, ALARM)
    except TwoPHPError:
        return  # Its own checks say why.
    if said is not None:
        alarm = msgspec.json.decode(said, type=Alarm)
        means = f"the central ledger's history is not what this service was told: {alarm.what}: {alarm.message}"
        yield fail("central.history", means, "verify it with `twophp ledger verify`; both signed heads are in `meta`")


def check_journal(health: Health, path: str) -> Finding:
    """The newest history, quickly. The whole of it is ``twophp ledger verify``'s."""
    if health.broken:
        return fail("journal.head", f"the journal does not hold: {health.broken}", f"twophp ledger verify {path}")
    return ok("journal.head", f"the newest {counted(health.checked, 'line')} of {health.lines:,} hold")


def _check_file(path: str) -> Iterator[Finding]:
    file, log = Path(path), Path(f"{path}-wal")
    if file.exists() and not file.is_file():
        yield fail("store.file", f"{path} is no file", "name the file that is the service's database")
        return
    if not file.is_file():
        yield warn("store.file", f"there is no database {path} yet", "start its service once, which makes it")
        return
    if file.stat().st_mode & 0o002:
        yield fail("store.file", f"every user can write {path}", f"chmod o-w {path}")
    elif not os.access(file, os.W_OK):
        yield warn("store.file", f"the user who runs this cannot write {path}", "run this as the service's user")
    else:
        yield ok("store.file", f"{path} can be written by its owner")
    if is_wal(path):
        yield ok("store.log", "it keeps a write-ahead log; a service syncs it at every commit, or refuses to start")
    else:
        yield fail("store.log", "it keeps no write-ahead log", "start its service once, which turns it on")
    if log.exists() and log.stat().st_size > LONG_LOG_BYTES:
        means = f"the log has grown to {log.stat().st_size // MIB:,} MiB: a reader has been open for a long time"
        yield warn("store.log_size", means, "end long readers of the database, such as backups that hang")


def check_file_system(folder: Path, mount: Mount | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the database lies on."""
    if "eatmydata" in environ.get("LD_PRELOAD", ""):
        yield fail("store.disk", "LD_PRELOAD names eatmydata: no sync reaches the disk", "unset LD_PRELOAD")
    if mount is None:
        yield warn("store.disk", f"it is unknown what {folder} lies on", "make sure that it is a local disk")
        return
    what = f"{folder} lies on {mount.kind} ({mount.point})"
    if mount.kind in FORGETS:
        yield warn("store.disk", f"{what}, which is memory: a reboot loses everything", "move it to a disk")
    elif mount.kind in FAR:
        yield fail("store.disk", f"{what}, which is another machine's: the log needs shared memory", "use a local disk")
    elif mount.kind in LAYERS:
        yield warn("store.disk", f"{what}, which goes with its container", "put the database on a volume")
    elif lies := mount.options & LIES:
        yield fail("store.disk", f"{what} with {', '.join(lies)}: a power cut loses commits", "mount it with barriers")
    else:
        yield ok("store.disk", what)


def mount_of(folder: Path, mountinfo: str) -> Mount | None:
    """The file system that a folder lies on: of all mount points above it the longest, and of those the last."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _mount(line)
        if mount is None or not folder.is_relative_to(mount.point):
            continue
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best


def _mount(line: str) -> Mount | None:
    """A line of mountinfo: see proc(5)."""
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(), after.split()
    if not dash or len(fields) < 6 or len(rest) < 3:  # noqa: PLR2004 - as many as proc(5) promises
        return None
    point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return Mount(point, rest[0], frozenset(f"{fields[5]},{rest[2]}".split(",")))


def _mounts() -> str:
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _check_space(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    means = f"{free // MIB:,} MiB are free"
    if free < NO_BYTES:
        yield fail("store.space", means, "make room: a full disk refuses every registration")
    elif free < LITTLE_BYTES:
        yield warn("store.space", means, "make room soon: a full disk refuses every registration")
    else:
        yield ok("store.space", means)


def _check_writes(folder: Path, steady: Clock) -> Finding:
    try:
        commit_ms = prove_writes(folder, steady)
    except TwoPHPError as error:
        return failed_with("store.writes", error, "give the service a folder on a local disk that it may write to")
    means = f"a scratch database in {folder} took {commit_ms:.1f} ms for a synced commit, and was removed"
    if commit_ms > SLOW_COMMIT_MS:
        return warn("store.writes", means, "use a faster disk: every registration waits for a sync")
    return ok("store.writes", means)


def check_clock(wall_ms: int, steady_ms: int) -> Finding:
    """Two clocks over the same while: one that people may set, and one that cannot be set."""
    off_ms = abs(wall_ms - steady_ms)
    if off_ms > STEP_MS:
        means = f"the clock was set while this ran: {lasted(off_ms)} in {lasted(max(steady_ms, 0))}"
        return warn("clock.steady", means, SYNC)
    return ok("clock.steady", f"wall clock and steady clock went alike for {lasted(steady_ms)}")


def check_store_time(written_at: Instant, now: Instant) -> Iterator[Finding]:
    """A store's time never runs backwards (A-29): if the clock does, the store's time goes on ahead of it."""
    ahead_ms = written_at - now
    if ahead_ms > STEP_MS:
        means = f"the store was written {lasted(ahead_ms)} in the future, and its time goes on from there"
        level = fail if ahead_ms > AHEAD_MS else warn
        yield level("clock.store", means, f"correct this machine's clock; {SYNC}")
    else:
        yield ok("clock.store", "the store was last written in the past")
