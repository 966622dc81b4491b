"""Write the generated pages again: ``make docs``.

A page is a function without arguments that returns its text; `PAGES` says where each goes. A page depends on what is
committed alone, code and bench/latest.json, so it always has the same bytes and a test can compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools import cli_page, diagrams, obligations_page, registrar_page, server_page

ROOT = Path(__file__).parents[1]

Page = Callable[[], str]

PAGES: Mapping[str, Page] = {
    "docs/explanation/machines.md": diagrams.machines,
    "docs/reference/cli.md": cli_page.cli_page,
    "docs/reference/obligations.md": obligations_page.obligations_page,
    "docs/reference/registrar.md": registrar_page.registrar_page,
    "docs/reference/server.md": server_page.server_page,
}


def stale(root: Path, pages: Mapping[str, Page]) -> dict[str, str]:
    """Return the text of each page that differs from its file, by path relative to ``root``."""
    texts = {path: page() for path, page in pages.items()}
    return {path: text for path, text in texts.items() if _read(root / path) != text}


def write(root: Path, texts: Mapping[str, str]) -> None:
    """Write each text to its path, with folders as needed."""
    for path, text in texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> None:
    """Write what is stale and say so."""
    texts = stale(ROOT, PAGES)
    write(ROOT, texts)
    for path in PAGES:
        print(f"docs: {path}: {'written' if path in texts else 'up to date'}")


if __name__ == "__main__":
    main()
