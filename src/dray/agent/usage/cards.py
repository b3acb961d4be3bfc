"""The newest word about this machine's cards: keeps the program that asks their driver, and listens to it.
Of what fails it can say what was wrong with its cards, in words that verdicts know.

Nothing is known where the program says nothing in time. Surprising rule: one that hangs is killed and waited for
without end before another is started, since what hangs in the kernel cannot be ended, and a second would hang too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from dray.agent.detect.child import child_env
from dray.agent.usage.nvml import CardFault, CardReading
from dray.core.model.units import format_vram

PROGRAM = ("-m", "dray.agent.usage.nvml")
# The first answer of a driver that nobody uses may take a while.
SILENCE_S = 60.0
AGAIN_S, AGAIN_MAX_S = 5.0, 600.0
STALE_ROUNDS = 3
LINE_BYTES = 1 << 20
FAULTS = 256
SHORT_S = 10.0
# A card of which no more than a twentieth is free holds no further tensor.
FULL = 0.95
# Those of NVIDIA's numbers that stand for a broken card or driver; others, 13 and 31 the most frequent, for a mistake
# of the program on it.
XIDS = {
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "memory that is broken could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's firmware does not answer",
    120: "error of the GPU's firmware",
    140: "unrecovered ECC error",
    143: "the GPU cannot be initialized",
}
_ERROR = re.compile(r"\w*(?:Error|Exception)\b", re.IGNORECASE)
logger = logging.getLogger("dray.agent")
_decode = msgspec.json.Decoder(list[CardReading] | CardFault).decode


class CardWatch:
    """One machine's cards. Run it beside the agent, cancel it with it."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._cards: dict[int, CardReading] = {}
        self._at = float("-inf")
        self._faults: deque[tuple[float, CardFault]] = deque(maxlen=FAULTS)

    def latest(self) -> dict[int, CardReading]:
        """Each card as it was last seen; none once that is too long ago to mean anything."""
        fresh = time.monotonic() - self._at <= STALE_ROUNDS * self._every_s
        return self._cards if fresh else {}

    def testify(self, devices: Sequence[int], since: float, said: str) -> list[str]:
        """What was wrong with cards while an attempt ran that has failed: lines that say it as a driver would.

        `since`: when it started; 0 where nobody heard of its start before its end, so short it was. A full card is told
        only of what said nothing of an error itself: many programs fill their cards and fail by something else.
        """
        since = since or time.time() - SHORT_S
        told = [
            f"NVRM: Xid {fault.xid} on GPU {fault.index} of this worker: {XIDS[fault.xid]}"
            for at, fault in self._faults
            if at >= since and fault.index in devices
        ]
        if told or _ERROR.search(said):
            return told[-1:]
        latest = self.latest()
        return [
            _tell_full(latest[index]) for index in devices if index in latest and _is_full(latest[index])
        ][:1]

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
            told = _decode(line)
            if isinstance(told, CardFault):
                self._note(told)
            else:
                self._cards = {card.index: card for card in told}
                self._at = time.monotonic()

    def _note(self, fault: CardFault) -> None:
        if fault.xid in XIDS:
            self._faults.append((time.time(), fault))
            logger.error("GPU %d: %s (Xid %d)", fault.index, XIDS[fault.xid], fault.xid)


def _is_full(card: CardReading) -> bool:
    return bool(card.total_bytes) and (card.memory_bytes or 0) >= FULL * (card.total_bytes or 0)


def _tell_full(card: CardReading) -> str:
    held = f"{format_vram(card.memory_bytes or 0)} of {format_vram(card.total_bytes or 0)}"
    return f"RESOURCE_EXHAUSTED: the memory of GPU {card.index} was full when last looked at ({held})"
