"""How Sphinx builds these pages (ADR 39). ``make docs`` runs it; nothing here may load anything from elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from twophp import __version__

HERE = Path(__file__).parent
# IDs of requirements are for those who work on the code.
REQUIREMENT = re.compile(r" ?\((?:A-\d|P-\d|OBL-|REG-|T\d-\d)[^()]*\)")
STANDS_FOR = re.compile(r"# .+\n\nThe site has \[(\S+)\]\(\S+\) here\.\n")
LINK = re.compile(r"\[([^][]+)\]\((?!\w+:)([^)#\s]*)(#[^)\s]+)?\)")
PAGES = {
    found[1]: str(page.relative_to(HERE))
    for page in HERE.rglob("*.md")
    if (found := STANDS_FOR.match(page.read_text(encoding="utf-8")))
}
ROWS = HERE.parent / "build" / "conformance.md"

project = "twophp"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist"]
exclude_patterns = ["vectors", "screenshots"]
html_theme = "furo"
html_title = "twophp"
html_show_copyright = False
html_copy_source = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
# Links and anchors are those that the pages have as files: a heading is an anchor under the same name everywhere.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}


def append_rows(_app: Sphinx, name: str, source: list[str]) -> None:
    """Append the rows of the last full test run to the page of their numbers."""
    if name == "conformance" and ROWS.exists():
        source[0] += "\n" + ROWS.read_text(encoding="utf-8").replace("\n## ", "\n### ").replace(
            "# Every", "## Every", 1
        )


def bring_in(_app: Sphinx, name: str, source: list[str]) -> None:
    """Put the file that a page stands for in its place: the changelog and its like, and the examples' READMEs."""
    if found := STANDS_FOR.match(source[0]):
        file = PurePosixPath(found[1])
        text = (HERE.parent / file).read_text(encoding="utf-8")
        source[0] = LINK.sub(lambda link: _link(link, file, name), text) + source[0][found.end() :]


def _link(link: re.Match[str], file: PurePosixPath, name: str) -> str:
    """A link of a file elsewhere in the project, as a page has it. One that leads to no page is only its text."""
    target = os.path.normpath(file.parent / link[2]) if link[2] else str(file)
    pages = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if pages is None:
        return link[1]
    return f"[{link[1]}]({os.path.relpath(pages, PurePosixPath(name).parent)}{link[3] or ''})"


def leave_out_ids(_app: Sphinx, _what: str, _name: str, _of: Any, _options: Any, lines: list[str]) -> None:
    """Take the IDs of requirements out of a docstring."""
    lines[:] = REQUIREMENT.sub("", "\n".join(lines)).split("\n")


def setup(app: Sphinx) -> None:
    """Take mermaid diagrams for text: drawing them needs a script from elsewhere, and each stands beside its table."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", append_rows)
    app.connect("source-read", bring_in)
    app.connect("autodoc-process-docstring", leave_out_ids)
