"""``twophp doctor``: what is wrong with a service's settings and surroundings, and what to do about it."""

from __future__ import annotations

from twophp.cli.doctor.command import doctor

__all__ = ["doctor"]
