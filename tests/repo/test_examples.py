"""Every Python block of the pages runs; test_pages.py runs those of the pages that have commands, too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.pages import has_session
from tools import docs

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = ("tutorial", "how-to", "reference", "explanation")
PAGES = [
    *(docs.ROOT / name for name in ("README.md", "docs/index.md", "docs/errors.md", "docs/glossary.md")),
    *(page for folder in FOLDERS for page in sorted((docs.ROOT / "docs" / folder).glob("*.md"))),
]


def is_ours(page: Path) -> bool:
    """Whether a page's Python blocks are one program. In a guide with commands they are files of a session."""
    text = page.read_text(encoding="utf-8")
    return bool(BLOCK.search(text)) and not (page.parent.name in {"tutorial", "how-to"} and has_session(text))


WITH_EXAMPLES = [page for page in PAGES if page.exists() and is_ours(page)]


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page one after the other, as a reader would paste them."""
    program = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    return subprocess.run(  # noqa: S603 - our own pages
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_broken_example_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport twophp\ntwophp.no_such_name\n```\n", encoding="utf-8")
    assert "no_such_name" in run(page, tmp_path).stderr
