"""Where a coroutine runs."""

from __future__ import annotations

import asyncio


async def in_a_task() -> None:
    """Go on inside a task, which a timeout needs: `twophp.uvicorn` takes the first step of an answer without one."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)
