"""The mirror as the hub sees it: fed without waiting, looked at by the doctor and the metrics, ended with the hub.

Everything else happens on a thread of its own. Nothing of the hub ever waits for Redis, but its end, for a second.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.hub.answers.metrics import MirrorGauge
from dray.hub.loop_thread import LoopThread
from dray.hub.mirror.connection import Address
from dray.hub.mirror.ports import Inbox, Source
from dray.hub.mirror.writer import Writer
from dray.hub.store.base import Projection

# A hub that stands by goes before the one that leads.
STANDS_BY, LEADS = 0, 1
END_S = 1.0
LATE_S = 30.0
_WORDS = {
    "writes": "writes",
    "loading": "reads the rows, then writes",
    "another": "another writes",
    "away": "Redis is away",
    "full": "Redis is full",
    "unsafe": "Redis is not fit for it",
    "refused": "Redis refuses it",
}


class Mirror:
    """Made with the hub, started with its first turn."""

    def __init__(
        self, url: str, source: Source, *, prefix: str, documents_s: float, words: str, rank: int = LEADS
    ) -> None:
        self._address, self._source = Address(url), source
        self._inbox = Inbox()
        self._options: dict[str, Any] = {"prefix": prefix, "documents_s": documents_s, "rank": rank}
        self._options |= {"words": words, "nonce": secrets.token_hex(8)}
        self._thread: LoopThread | None = None
        self._writer: Writer | None = None
        self._running: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        """Begin, on a thread of its own."""
        self._thread = LoopThread("dray-mirror")
        self._writer = self._thread.call(self._make())
        self._running = self._thread.submit(self._writer.run())

    async def _make(self) -> Writer:
        writer, loop = (
            Writer(self._address, self._source, self._inbox, **self._options),
            asyncio.get_running_loop(),
        )

        def ring() -> None:
            loop.call_soon_threadsafe(writer.ring)

        self._inbox.ring = ring
        return writer

    def take_rows(self, projection: Projection) -> None:
        """Rows were written."""
        self._inbox.put_rows(self._source.epoch, projection)

    def take_notes(self, seq: int, at_ms: int, notes: Sequence[Note]) -> None:
        """Notes were committed."""
        self._inbox.put_notes(seq, at_ms, notes)

    async def close(self) -> None:
        """Write what is left if that is quick, let another write, and end the thread."""
        if self._thread is not None:
            self._inbox.ring = lambda: None
            await asyncio.to_thread(self._end, self._thread)
            self._thread = None

    def _end(self, thread: LoopThread) -> None:
        assert self._writer is not None, "made with the thread"
        with contextlib.suppress(Exception):
            thread.submit(self._writer.let_go()).result(END_S)
        thread.close()

    # --- how it is --------------------------------------------------------------------------------------------------

    @property
    def gauge(self) -> MirrorGauge:
        """How it stands now."""
        writer = self._writer
        if writer is None:
            return MirrorGauge("loading", 0.0, 0)
        return MirrorGauge(writer.state, writer.lag_s, writer.rebuilds)

    def examine(self, state: State) -> dict[str, Any]:
        """A check of the doctor's: who writes, how far behind, what is wrong."""
        now = self.gauge
        words = self._writer.words if self._writer is not None else ""
        told = [f"{self._address}: {_WORDS[now.state]}", words]
        if now.state != "another":
            told.append(f"{now.lag_s:.1f} s behind")
        ok = now.state in ("writes", "another", "loading") and now.lag_s < LATE_S
        return {"name": "redis", "ok": ok, "detail": ", ".join(filter(None, told))}
