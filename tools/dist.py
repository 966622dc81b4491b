"""Build what is published, twice, and compare: ``make dist``.

In dist/ stand the wheel, the source archive, a software bill of materials and their digests. Two builds of one commit,
in different folders, with different times and permissions, have the same bytes; so has the wheel that is built from the
source archive. Times in the archives are the commit's (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools import sbom

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
EPOCH: Final = "SOURCE_DATE_EPOCH"
SUMS: Final = "SHA256SUMS"


class NotReproducible(Exception):
    """Two builds differ."""


def tracked(root: Path = ROOT) -> list[str]:
    """The files of the project: what git knows, and what it would."""
    listed = _run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], root
    )
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def epoch(root: Path = ROOT) -> int:
    """The time of the commit, unless the environment names another."""
    given = os.environ.get(EPOCH)
    return int(given or _run(["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"], root))


def build(into: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the source archive, as often as it takes to know that others would get the same."""
    at = epoch(root)
    with TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("first", "the-second-is-elsewhere")]
        for folder, (mode, age_s) in zip(folders, ((0o644, 0), (0o600, 1_000_000)), strict=True):
            _copy(root, folder, mode=mode, modified_at=at - age_s)
        first, second = (_built(folder, at) for folder in folders)
        _compare(first, second)
        again = Path(scratch) / "again"
        shutil.unpack_archive(first["sdist"], again, filter="data")
        (unpacked,) = again.iterdir()
        _compare({"wheel": first["wheel"]}, {"wheel": _built(unpacked, at)["wheel"]})
        into.mkdir(parents=True, exist_ok=True)
        wheel, archive = (Path(shutil.copy(first[kind], into)) for kind in ("wheel", "sdist"))
    return wheel, archive


def _copy(root: Path, into: Path, *, mode: int, modified_at: int) -> None:
    for name in tracked(root):
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, path)
        path.chmod(mode | (0o111 if os.access(root / name, os.X_OK) else 0))
        os.utime(path, (modified_at, modified_at))


def _built(folder: Path, at: int) -> dict[str, Path]:
    _run([sys.executable, "-m", "hatchling", "build"], folder, {EPOCH: str(at)})
    (wheel,), (archive,) = ((folder / "dist").glob(kind) for kind in ("*.whl", "*.tar.gz"))
    return {"wheel": wheel, "sdist": archive}


def _compare(first: dict[str, Path], second: dict[str, Path]) -> None:
    for kind, path in first.items():
        if path.read_bytes() != second[kind].read_bytes():
            raise NotReproducible(f"two builds of {path.name} differ")


def _run(command: list[str], folder: Path, more: dict[str, str] | None = None) -> str:
    environ = os.environ | (more or {})
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Fill dist/ anew."""
    shutil.rmtree(DIST, ignore_errors=True)
    wheel, archive = build(DIST)
    bill = DIST / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    bill.write_bytes(sbom.render(wheel, ROOT / "requirements" / "dev.txt", epoch()))
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (archive, bill, wheel)]
    (DIST / SUMS).write_text("".join(sums), encoding="ascii")
    print("".join(sums), end="")


if __name__ == "__main__":
    main()
