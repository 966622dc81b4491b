"""A client that makes one call and ends without closing anything.

python -m tests.client.ending FOLDER URL sync|async
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx2

from tests.client.callers import settings
from twophp.client import AsyncTwoPhaseTransport, TwoPhaseTransport, write_behind


async def call(folder: Path, url: str) -> None:
    http = httpx2.AsyncClient(transport=AsyncTwoPhaseTransport(**settings(folder)), timeout=60)
    await http.post(url, json={"item": 1})


def main(folder: str, url: str, colour: str) -> None:
    write_behind.DELAY_S = 3_600  # type: ignore[misc]
    if colour == "async":
        asyncio.run(call(Path(folder), url))
        return
    http = httpx2.Client(transport=TwoPhaseTransport(**settings(Path(folder))), timeout=60)
    http.post(url, json={"item": 1})


if __name__ == "__main__":
    main(*sys.argv[1:])
