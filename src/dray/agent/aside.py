"""Blocking work beside the agent's loop, also on a machine that has no room for another thread just now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

RETRY_S = 0.5
logger = logging.getLogger("dray.agent")
P = ParamSpec("P")
T = TypeVar("T")


async def do_aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run it in a thread; where none can be started, wait until one can: that passes, an agent that ended does not."""
    told = False
    while True:
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except RuntimeError as fault:
            # The interpreter has no other name for it.
            if "start new thread" not in str(fault):
                raise
            if not told:
                logger.warning("no thread can be started on this machine now: waiting until one can")
            told = True
        await asyncio.sleep(RETRY_S)
