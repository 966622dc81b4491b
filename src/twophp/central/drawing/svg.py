"""SVG elements as text that is safe to put on a page: all that is not markup already is escaped."""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

from markupsafe import Markup, escape

Attribute: TypeAlias = str | int | float | bool | None

WIDTH_OF_A_LETTER: Final = 0.56
"""Of the font's size, on average, in the fonts that systems bring along: text cannot be measured here."""
NO_BREAK: Final = "\N{NO-BREAK SPACE}"
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """One element. ``class_`` is the attribute class, an underscore is a hyphen, and None or False is left out."""
    written = "".join(
        f' {_name(key)}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = "".join(child if isinstance(child, Markup) else escape(printable(child)) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")  # noqa: S704 - Names are ours, all else is escaped.


def printable(words: str) -> str:
    """The words without what no eye can see: control characters, and marks that turn the direction of text around."""
    if words.isprintable():
        return words
    return "".join(letter if letter.isprintable() or letter == NO_BREAK else REPLACED for letter in words)


def text(words: str, x: float, y: float, class_: str, *, anchor: str | None = None) -> Markup:
    """Some words that begin, or are anchored, at a point on their baseline."""
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def icon(name: str, x: float, y: float, size: float, class_: str) -> Markup:
    """One of the symbols that every page carries (``icons.html``)."""
    return element("use", href=f"#i-{name}", x=x, y=y, width=size, height=size, class_=class_)


def cut(words: str, width: float, font_size: float) -> str:
    """The words, shortened so that they probably fit."""
    most = max(int(width / (font_size * WIDTH_OF_A_LETTER)), 2)
    return words if len(words) <= most else words[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def number(value: float) -> str:
    """A coordinate, no longer than it needs to be."""
    return f"{value:.1f}".removesuffix(".0")


@cache
def _name(key: str) -> str:
    return "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")


def _value(value: Attribute) -> str | Markup:
    if value is None or value is True:
        return ""
    return number(value) if isinstance(value, int | float) else escape(printable(value))
