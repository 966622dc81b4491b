"""Generated pages are current, and no page points at nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import docs

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
PAGES = [
    *docs.ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples") for page in (docs.ROOT / folder).rglob("*.md")),
]


def dead_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    links = LINK.findall(page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]


def test_the_generated_pages_are_what_the_code_says() -> None:
    assert list(docs.stale(docs.ROOT, docs.PAGES)) == [], "run `make docs` and commit what it writes"


def test_a_page_is_stale_until_it_is_written(tmp_path: Path) -> None:
    pages = {"docs/machine.md": lambda: "a diagram\n"}
    found = docs.stale(tmp_path, pages)
    assert found == {"docs/machine.md": "a diagram\n"}
    docs.write(tmp_path, found)
    assert docs.stale(tmp_path, pages) == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[me](page.md#top), [gone](gone.md) and [away](https://example.com/x)", encoding="utf-8")
    assert dead_links(page) == ["gone.md"]
