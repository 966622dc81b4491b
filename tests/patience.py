"""How long a test waits for what has to come: a bound for what got stuck, however slow or loaded the machine is."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120
