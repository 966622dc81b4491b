"""What is published: the same bytes every time, everything that belongs in, and an installation that works."""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import twophp
from tools import dist, sbom
from tools.docs import ROOT

LOCK = ROOT / "requirements" / "dev.txt"
AT = 1_700_000_000
# What an extra of pyproject.toml brings, by the name that is imported.
OF_EXTRAS = {
    *("asyncpg", "fastapi", "starlette", "httptools", "httpx", "httpx2", "jinja2", "joserfc", "opentelemetry"),
    *("markupsafe", "prometheus_client", "pyarrow", "requests", "urllib3", "uvicorn", "uvloop"),
}
# What whoever imports a module has anyway: the suite of contracts for other stores, and the framework of a service.
OF_USERS = {"twophp.stores.testing": "pytest", "twophp.wsgi.django": "django"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive. ``build`` raises unless two builds are the same, byte by byte."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    return dist.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bill(built: tuple[Path, Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.render(built[0], LOCK, AT))
    return found


def test_a_wheel_has_every_file_of_the_package_and_no_other(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in dist.tracked() if name.startswith("src/twophp/")}
    kinds = {Path(name).suffix for name in names} | {Path(name).name for name in names}
    assert {".sql", ".html", ".css", ".js", "py.typed"} <= kinds


def test_a_source_archive_can_build_and_test_itself(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {member.name.partition("/")[2] for member in archive}
    assert {name for name in dist.tracked() if not name.startswith((".ci/", ".gitignore"))} <= names


def test_an_installation_says_what_it_needs(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (metadata["Version"], metadata["Requires-Python"]) == (twophp.__version__, project["requires-python"])
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    plain = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {Requirement(line) for line in plain} == {Requirement(line) for line in project["dependencies"]}


def test_two_builds_that_differ_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a.whl", tmp_path / "b.whl"
    first.write_bytes(b"x")
    second.write_bytes(b"y")
    with pytest.raises(dist.NotReproducible, match=r"a\.whl"):
        dist._compare({"wheel": first}, {"wheel": second})


# An installation


def needed(name: str, found: set[str] | None = None) -> set[str]:
    """A distribution and all that it needs without extras, of what is installed here."""
    found = set() if found is None else found
    if name not in found:
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(canonicalize_name(requirement.name), found)
    return found


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and, out of ours, what it needs without any extra: nothing is fetched."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv is not None
    python = str(folder / "bin" / "python")
    offline = ["--quiet", "--offline", "--no-index", "--no-deps"]
    command = [uv, "pip", "install", *offline, "--python", python, str(built[0])]
    subprocess.run(command, check=True)  # noqa: S603 - the wheel that was just built
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    for name in needed("twophp") - {"twophp"}:
        for file in importlib.metadata.files(name) or []:
            ours = packages / file.parts[0]
            if file.parts[0] != ".." and not ours.exists():
                ours.symlink_to(str(importlib.metadata.distribution(name).locate_file(file.parts[0])))
    return folder


@pytest.fixture(scope="module")
def found(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What installed.py finds in that environment."""
    program = Path(__file__).with_name("installed.py")
    folder = tmp_path_factory.mktemp("data")
    command = [str(installed / "bin" / "python"), "-I", "-W", "error", str(program), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    told["ledger"] = str(folder / "orders.db")
    return told


def test_an_installed_wheel_does_a_handshake_an_obligation_and_a_gate(found: dict[str, Any], installed: Path) -> None:
    assert found["where"].startswith(str(installed))
    assert found["version"] == [twophp.__version__] * 2
    assert found["handshake"] == ["WAITING_CONFIRM", "COMMITTED"]
    assert found["obligation"] == "Committed"
    assert found["gate"] == "Registrar"


def test_without_extras_only_what_needs_one_is_missing(found: dict[str, Any]) -> None:
    missing = found["missing"]
    assert {module: lacks for module, lacks in missing.items() if lacks not in OF_EXTRAS} == OF_USERS
    for public in ("twophp", "twophp.asgi", "twophp.client", "twophp.obligations", "twophp.registrar", "twophp.cli"):
        assert public not in missing


def test_the_installed_command_reads_what_was_done(found: dict[str, Any], installed: Path) -> None:
    command = [installed / "bin" / "twophp", "ledger", "pairs", found["ledger"], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    (call,) = json.loads(done.stdout)["calls"]
    assert (call["verdict"], call["server"]["phase"]) == ("SERVER_ONLY", "COMMITTED")


# The bill of materials


def test_the_bill_names_what_is_pinned(bill: dict[str, Any]) -> None:
    pinned = sbom.pins(LOCK.read_text(encoding="utf-8"))
    components = {one["name"]: one for one in bill["components"]}
    assert all(pinned[name].version == one["version"] for name, one in components.items())
    required = {name for name, one in components.items() if one["scope"] == "required"}
    assert required == needed("twophp") - {"twophp"}
    assert {"asyncpg", "fastapi", "pydantic-core", "uvicorn"} <= components.keys() - required
    assert not {"pytest", "mypy", "sphinx"} & components.keys()


def test_every_reference_of_the_bill_leads_somewhere(bill: dict[str, Any]) -> None:
    known = {bill["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert {one["ref"] for one in bill["dependencies"]} == known
    assert {name for one in bill["dependencies"] for name in one["dependsOn"]} <= known


def test_the_bill_is_the_same_every_time_and_names_no_host(built: tuple[Path, Path]) -> None:
    first = sbom.render(built[0], LOCK, AT)
    assert first == sbom.render(built[0], LOCK, AT)
    assert b"://" not in first


def test_a_wheel_that_needs_what_is_not_pinned_has_no_bill(built: tuple[Path, Path], tmp_path: Path) -> None:
    lock = tmp_path / "dev.txt"
    lock.write_text("anyio==4.8.0\n    # via twophp (pyproject.toml)\n", encoding="utf-8")
    with pytest.raises(LookupError, match="apsw"):
        sbom.render(built[0], lock, AT)
