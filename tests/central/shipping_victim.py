"""A worker that ships and is killed while it waits: ``python -m tests.central.shipping_victim FOLDER URL``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.central.test_ship import shipper
from tests.cli.world import participants


async def main(folder: str, url: str) -> None:
    async with participants(Path(folder), "serviceA") as who:
        await who["serviceA"].registers(1)
        await shipper(who["serviceA"], url, "t", ledger_id="l").ship()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
