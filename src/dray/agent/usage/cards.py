"""The newest word about this machine's cards: keeps the program that asks their driver, and listens to it.

Nothing is known where the program says nothing in time. Surprising rule: one that hangs is killed and waited for
without end before another is started, since what hangs in the kernel cannot be ended, and a second would hang too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time

import msgspec

from dray.agent.detect.child import child_env
from dray.agent.usage.nvml import CardReading

PROGRAM = ("-m", "dray.agent.usage.nvml")
# The first answer of a driver that nobody uses may take a while.
SILENCE_S = 60.0
AGAIN_S, AGAIN_MAX_S = 5.0, 600.0
STALE_ROUNDS = 3
LINE_BYTES = 1 << 20
logger = logging.getLogger("dray.agent")
_decode = msgspec.json.Decoder(list[CardReading]).decode


class CardWatch:
    """One machine's cards. Run it beside the agent, cancel it with it."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._cards: dict[int, CardReading] = {}
        self._at = float("-inf")

    def latest(self) -> dict[int, CardReading]:
        """Each card as it was last seen; none once that is too long ago to mean anything."""
        fresh = time.monotonic() - self._at <= STALE_ROUNDS * self._every_s
        return self._cards if fresh else {}

    async def run(self) -> None:
        """Keep the program running, until cancelled."""
        delay_s = AGAIN_S
        while True:
            before = self._at
            try:
                await self._listen()
            except OSError as fault:
                logger.warning("the use of cards cannot be looked at: %s", fault)
            delay_s = AGAIN_S if self._at > before else min(2 * delay_s, AGAIN_MAX_S)
            await asyncio.sleep(delay_s)

    async def _listen(self) -> None:
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        words = (sys.executable, *PROGRAM, str(self._every_s))
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=pipe,
            stdout=pipe,
            stderr=none,
            env=child_env(),
            start_new_session=True,
            limit=LINE_BYTES,
        )
        try:
            assert child.stdout is not None  # asked for above
            while line := await asyncio.wait_for(child.stdout.readline(), SILENCE_S + self._every_s):
                self._take(line)
        except (TimeoutError, ValueError):
            logger.warning("the driver of the cards does not answer: nobody knows how busy they are")
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()

    def _take(self, line: bytes) -> None:
        """Read one line; libraries print banners, and those are none."""
        with contextlib.suppress(msgspec.DecodeError):
            self._cards = {card.index: card for card in _decode(line)}
            self._at = time.monotonic()
