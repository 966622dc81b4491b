"""The site builds without a warning, leads nowhere dead, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.repo.test_public_names import PUBLIC
from tools import site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew."""
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("furo") is None:
        pytest.skip("needs sphinx and furo")
    folder = tmp_path_factory.mktemp("site") / "site"
    site.build(folder)
    return folder


def test_the_site_has_no_dead_link_and_loads_nothing_from_elsewhere(built: Path) -> None:
    assert list(site.wrong(built)) == []


def test_the_api_reference_has_every_public_name(built: Path) -> None:
    anchors = site.read(built / "reference" / "api.html").anchors
    names = [f"{module}.{name}" for module, names in PUBLIC.items() for name in names]
    assert [name for name in names if name not in anchors] == []


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ('<a href="gone.html">x</a>', "dead link gone.html"),
        ('<a href="index.html#gone">x</a>', "dead anchor index.html#gone"),
        ('<a href="#gone">x</a>', "dead anchor #gone"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "loads //cdn.example/x.png"),
        ('<link rel="stylesheet" href="gone.css">', "dead link gone.css"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(tmp_path: Path, html: str, complaint: str) -> None:
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    assert list(site.wrong(tmp_path)) == [f"index.html: {complaint}"]


def test_a_font_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url('https://fonts.example/a') } a { background: url(#b) }")
    assert list(site.wrong(tmp_path)) == ["a.css: loads https://fonts.example/a"]


def test_what_leads_out_or_exists_is_left_alone(tmp_path: Path) -> None:
    page = '<h1 id="top">x</h1><a href="https://a.example/x">x</a> <a href="#top">x</a> <img src="data:image/gif,x">'
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    assert list(site.wrong(tmp_path)) == []
