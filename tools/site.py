"""Build the documentation as a site in build/site, and check it: ``make docs``.

Sphinx refuses a page that it cannot read. What it does not look at is checked here, on the pages that it wrote: every
link and anchor inside the site exists, and no page loads anything from elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
# What a browser fetches by itself, as opposed to a link that a reader may follow.
LOADS = {
    "img": "src",
    "script": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}
IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""")


@dataclass(slots=True)
class Page(HTMLParser):
    """What one page links to, loads and can be linked to."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        known = {name: value or "" for name, value in attrs}
        self.anchors.update(known[name] for name in ("id", "name") if name in known)
        if tag == "a" and known.get("href"):
            self.links.append(known["href"])
        if (name := LOADS.get(tag)) and known.get(name) and known.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.append(known[name])


def read(path: Path) -> Page:
    """Read one page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def wrong(site: Path) -> Iterator[str]:
    """Yield each dead link, each dead anchor and each thing that is loaded from elsewhere."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        yield from (f"{here}: loads {load}" for load in page.loads if is_elsewhere(load))
        for link in [*page.links, *(load for load in page.loads if not is_elsewhere(load))]:
            if complaint := dead(path, link, pages):
                yield f"{here}: {complaint}"
    for path in sorted(site.rglob("*.css")):
        loads = IN_CSS.findall(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: loads {load}" for load in loads if is_elsewhere(load))


def is_elsewhere(address: str) -> bool:
    """Whether an address leads to another host. Data that stands in the page itself does not."""
    parts = urlsplit(address)
    return bool(parts.netloc or parts.scheme) and parts.scheme != "data"


def dead(path: Path, link: str, pages: dict[Path, Page]) -> str:
    """Say what is wrong with a link that stays inside the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"dead link {link}"
    anchor = unquote(parts.fragment)
    return f"dead anchor {link}" if anchor and target in pages and anchor not in pages[target].anchors else ""


def build(site: Path = SITE) -> None:
    """Have Sphinx write the site anew; a warning ends it. Pages hold what Sphinx does not know that they hold."""
    options = ["-b", "html", "-W", "--keep-going", "-q", "-E", "-j", "auto", "-d", str(site.parent / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(site)]
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - our own pages


def main() -> None:
    """Build, check, and say where the site is."""
    build()
    if complaints := list(wrong(SITE)):
        sys.exit("\n".join(f"site: {complaint}" for complaint in complaints))
    pages = sum(1 for _ in SITE.rglob("*.html"))
    print(f"site: {SITE.relative_to(ROOT)}/index.html: {pages} pages; no dead link, nothing loaded from elsewhere")


if __name__ == "__main__":
    main()
