"""A process that rotates, and stops to be killed: ``python -m tests.stores.rotating DATABASE PAGES``.

It prints its progress after each page. After that many pages it waits for a line on stdin that never comes.
"""

from __future__ import annotations

import asyncio
import sys

from twophp.stores.ring_file import RingFile
from twophp.stores.sqlite import SQLiteStore, rotate


async def main(path: str, pages: int) -> None:
    reported = -1

    def progress(done: int, total: int) -> None:
        nonlocal reported
        reported += 1
        sys.stdout.write(f"{done} {total}\n")
        sys.stdout.flush()
        if reported == pages:
            sys.stdin.readline()

    async with SQLiteStore(path) as store:
        await rotate.rotate(store, RingFile.beside(path), progress=progress)


if __name__ == "__main__":
    rotate.PAGE_ROWS = 4  # type: ignore[misc] # Small pages, so that a small database has many.
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
