"""``python -m twophp.cli``, where the script is not on the path."""

from __future__ import annotations

from twophp.cli import main

main(prog_name="twophp")
