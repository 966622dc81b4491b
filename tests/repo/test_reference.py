"""The reference and the glossary name what there is."""

from __future__ import annotations

import re

import pytest

from tests.repo.test_public_names import PUBLIC
from tools import docs
from twophp.wire.fields import FIELDS

DOCS = docs.ROOT / "docs"
WORDS = """intent, Phase 1, Phase 2, register, confirm, settle, COMMITTED, FAILED, point of no return, lease, fence,
tombstone, horizon, ledger row, journal, link, obligation, reserve, commit, rollback, leak, registrar, nonce, attempt,
logical key, principal, policy, mode, replay, callback, hook, outbox, indeterminate, central ledger, verdict, pair"""


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def defined() -> list[str]:
    """The words that the glossary defines, each in the order of the page; one heading may define several."""
    heads = re.findall(r"^\*\*(.+?)\*\*.*\n: ", text("glossary.md"), re.MULTILINE)
    return [word for head in heads for word in head.replace("`", "").split(", ")]


@pytest.mark.parametrize("word", re.split(r",\s+", WORDS))
def test_the_glossary_defines(word: str) -> None:
    assert word in defined()


def test_a_word_has_one_meaning() -> None:
    words = [word.lower() for word in defined()]
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize(("module", "names"), PUBLIC.items())
def test_a_public_name_is_in_the_glossary_or_the_api_reference(module: str, names: list[str]) -> None:
    api = text("reference/api.md")
    if f".. automodule:: {module}\n" in api:  # It has every name of the module; test_site.py looks at what it becomes.
        return
    assert [name for name in names if not re.search(rf"\b{name}\b", text("glossary.md") + api)] == []


def test_every_header_field_is_described() -> None:
    page = text("reference/headers.md")
    assert [field.name for field in FIELDS if f"| `{field.name}` |" not in page] == []


def test_every_metric_is_described() -> None:
    source = (docs.ROOT / "src" / "twophp" / "asgi" / "metrics.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(twophp_[a-z_]+)"', source))
    assert names
    assert [name for name in names if not re.search(rf"`{name}(_total)?`", text("reference/observability.md"))] == []


# The page of the machines is drawn for those who change them, with the requirements that each rule enforces.
IDS = re.compile(r"\b(?:A-\d{1,3}|P-\d[\w.]*-\w+|OBL-[A-Z]+-\d+|REG-[A-Z]+-\d+|T[1-4]-\d+)\b")
GUIDES = [
    page
    for name in ("tutorial", "how-to", "reference", "explanation")
    for page in (DOCS / name).glob("*.md")
    if page.name != "machines.md"
]


@pytest.mark.parametrize("page", [docs.ROOT / "README.md", DOCS / "index.md", *GUIDES], ids=lambda page: page.name)
def test_a_guide_names_no_requirement(page: object) -> None:
    """IDs are for those who change the code: in requirements, decisions, tests and code."""
    assert hasattr(page, "read_text")
    assert IDS.findall(page.read_text(encoding="utf-8")) == []
