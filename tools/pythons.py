"""Test the built wheel as users get it: on every Python that we promise, or with the oldest dependencies.

    make pythons ARGS="tests/core tests/wire"
    make lowest

A Python is taken from the path, from pyenv, or from uv, which fetches one where it may. What cannot be had is said, and
is no failure. Environments stand in build/pythons; the wheel in them is installed, so no test sees the source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import dist

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build" / "pythons"
LOCK: Final = ROOT / "requirements" / "dev.txt"
UV: Final = str(Path(sys.executable).with_name("uv"))
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
OLDEST: Final = VERSIONS[0]
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", re.MULTILINE)


def interpreter(version: str) -> str | None:
    """A Python of that version, or None if there is none and none can be fetched."""
    for found in _candidates(version):
        said = _asked([found, "-c", "import platform; print(platform.python_version())"])
        if said is not None and said.startswith(f"{version}."):
            return found
    return None


def _candidates(version: str) -> Iterator[str]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield sys.executable
    if (in_path := shutil.which(f"python{version}")) is not None:
        yield in_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
    if _asked([UV, "python", "install", "--quiet", version]) is not None:
        yield _asked([UV, "python", "find", "--quiet", "--managed-python", version]) or ""


def _asked(command: list[str]) -> str | None:
    """What a program says, or None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def lowest() -> Path:
    """Write the oldest versions that our dependencies allow, and what the tests need that goes with them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    direct = {canonicalize_name(Requirement(line).name) for line in asked}
    compiling = [UV, "pip", "compile", "pyproject.toml", "--quiet", "--python-version", OLDEST, "--no-header"]
    pinned = _done([*compiling, "--all-extras", "--resolution", "lowest-direct", "--no-annotate"])
    pins = [f"{name}=={version}" for name, version in _PIN.findall(pinned) if canonicalize_name(name) in direct]
    oldest, whole = BUILD / "oldest.txt", BUILD / "lowest.txt"
    oldest.write_text("\n".join(pins) + "\n", encoding="utf-8")
    _done([*compiling, "--all-extras", "--group", "dev", "--constraints", str(oldest), "--output-file", str(whole)])
    print("lowest:", ", ".join(pins))
    return whole


def environment(python: str, name: str, wheel: Path, requirements: Path) -> Path:
    """An environment with the wheel and what its tests need."""
    folder = BUILD / name
    hashes = ["--require-hashes"] if requirements == LOCK else []
    _done([UV, "venv", "--quiet", "--clear", "--python", python, str(folder)])
    installing = [UV, "pip", "install", "--quiet", "--python", str(folder)]
    _done([*installing, *hashes, "--requirements", str(requirements)])
    _done([*installing, "--no-deps", str(wheel)])
    return folder / "bin" / "python"


def passes(python: Path, tests: list[str], *more: str) -> bool:
    """Whether the tests pass there."""
    where = _done([str(python), "-c", "import sys, twophp; print(sys.version.split()[0], twophp.__file__)"])
    version, _space, file = where.partition(" ")
    if not file.startswith(str(python.parents[1])):
        raise RuntimeError(f"this is not the wheel: {file}")
    print(f"\n{version}: {' '.join(tests)}", flush=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0  # noqa: S603 - ours


def _done(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout.strip()


def main() -> int:
    """Test; 1 if anything fails."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--lowest"]
    tests = arguments or ["tests"]
    BUILD.mkdir(parents=True, exist_ok=True)
    wheel, _archive = dist.build(BUILD)
    is_lowest = "--lowest" in sys.argv
    ended: dict[str, str] = {}
    for version in (OLDEST,) if is_lowest else VERSIONS:
        python = interpreter(version)
        if python is None:
            ended[version] = "not to be had here"
            continue
        name, requirements = ("lowest", lowest()) if is_lowest else (version, LOCK)
        more = ["-W", "default"] if is_lowest else []  # Old packages warn of themselves.
        did_pass = passes(environment(python, name, wheel, requirements), tests, *more)
        ended[version] = "passed" if did_pass else "FAILED"
    for version, how in ended.items():
        print(f"{'lowest on ' if is_lowest else ''}{version}: {how}")
    return 1 if "FAILED" in ended.values() else 0


if __name__ == "__main__":
    sys.exit(main())
