"""What the tutorial and the how-to guides tell a reader to do works, and prints what they show."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.repo import pages
from tools import docs

PAGES = sorted(path for name in ("tutorial", "how-to") for path in (docs.ROOT / "docs" / name).glob("*.md"))
SESSIONS = [page for page in PAGES if pages.has_session(page.read_text(encoding="utf-8"))]


@pytest.fixture
def tools() -> None:
    """What the pages take for granted."""
    for command in ("bash", "curl", "openssl", "redis-server"):
        if shutil.which(command) is None:
            pytest.skip(f"needs {command}")
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip("needs an environment of its own, as make sets it up")


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_a_reader_can_work_through(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page.read_text(encoding="utf-8")
    needs_database = "$DATABASE_URL" in text
    pages.run(text, tmp_path, {"DATABASE_URL": request.getfixturevalue("postgres_url")} if needs_database else {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_a_page_with_commands_says_which_file_a_block_is(page: Path) -> None:
    parts = pages.blocks(page.read_text(encoding="utf-8"))
    if any(part.language == "sh" for part in parts):
        assert [part.text for part in parts if part.language == "python" and not part.file] == []


GOOD = (
    "```python\n# a.py\nprint('the answer is', 42)\n```\n```sh\npython a.py\n```\n```text\nthe answer   is ...\n```\n"
)


@pytest.mark.usefixtures("tools")
def test_files_are_written_and_outputs_compared(tmp_path: Path) -> None:
    pages.run(GOOD, tmp_path)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("page", "said"),
    [
        (GOOD.replace("the answer   is", "the question is"), "the page shows"),
        (GOOD.replace("python a.py", "python b.py"), "ended with 2"),
        (GOOD.replace("python a.py", "python a.py | cat\nfalse | cat"), "ended with 1"),
        (GOOD.replace("# a.py\n", ""), "names its file"),
    ],
)
def test_a_page_that_does_not_do_what_it_says_is_found(page: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(pages.PageError, match=said):
        pages.run(page, tmp_path)


def test_a_block_with_a_reason_is_not_run() -> None:
    assert pages.blocks("<!-- not run: needs a package index -->\n```sh\npip install twophp\n```\n") == []
    assert len(pages.blocks("<!-- not run: -->\n```sh\npip install twophp\n```\n")) == 1
