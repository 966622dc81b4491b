"""An extra brings something, and the page that names the extras names all of them."""

from __future__ import annotations

import re
import tomllib

import pytest

from tools import docs

NAMED = re.compile(r"`([a-z0-9]+)`")
NAMES = {"prometheus-client": "prometheus_client", "opentelemetry-api": "opentelemetry", "twophp": "twophp"}
OF_UVICORN = {"httptools>=0.6.3", "uvloop>=0.21"}  # It takes what is there; twophp.uvicorn stands on its httptools.
EXTRAS: dict[str, list[str]] = tomllib.loads((docs.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def module(requirement: str) -> str:
    name = re.split(r"[\[<>=]", requirement)[0]
    return NAMES.get(name, name)


@pytest.mark.parametrize("requirement", sorted({one for extra in EXTRAS.values() for one in extra}))
def test_whatever_an_extra_brings_is_used(requirement: str) -> None:
    if requirement in OF_UVICORN:
        return
    used = re.compile(
        rf"^\s*(from|import) {module(requirement)}\b|import_module\(\"{module(requirement)}\"", re.MULTILINE
    )
    assert any(used.search(path.read_text(encoding="utf-8")) for path in (docs.ROOT / "src").rglob("*.py"))


def test_the_page_of_the_installation_names_every_extra_and_no_other() -> None:
    text = (docs.ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    table = text.partition("| extra | brings |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in NAMED.findall(row.partition("|")[2].partition("|")[0])}
    assert named == set(EXTRAS)
    assert EXTRAS["all"] == [f"twophp[{','.join(sorted(EXTRAS.keys() - {'all'}))}]"]
