"""Generated pages are current, and no page points at nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import docs

PAGES = [
    *docs.ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples") for page in (docs.ROOT / folder).rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def dead_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead to no file, or to no heading of it."""
    dead = []
    for link, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(f"{link}#{anchor}" if anchor else link)
    return dead


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub and the site make them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


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
    text = "# The top: `a`\n[me](page.md#the-top-a), [gone](gone.md), [here](#no), [away](https://example.com/x)"
    page.write_text(f"{text}\n```sh\n# no\n```\n", encoding="utf-8")
    assert dead_links(page) == ["gone.md", "#no"]
