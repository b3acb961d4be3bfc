"""How much of the hub's disk one user's large values may take: what no job refers to goes first, then uploads stop.

Counted is what the user's jobs refer to, and what the user has uploaded and no job refers to yet. Surprising rule: the
store is asked only when a sum that can but be too high reaches the limit, so that an upload usually costs an addition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from dray.core.model.units import format_bytes
from dray.errors import NoSpace
from dray.hub.calls.blobs import RECENT_MS, Blobs
from dray.hub.store.base import Store

# Sweeps at a full share come no closer together.
SWEEP_S = 30.0
# So many uploads of a user are taken for loose before the store is asked which of them are; and so many may be.
LOOSE, MOST_LOOSE = 10_000, 100_000
logger = logging.getLogger("dray.hub.calls.blobs")


class _Share:
    """One user's: `referred` as last counted, and by digest what was uploaded since and may be referred to by now."""

    __slots__ = ("loose", "loose_bytes", "referred")

    def __init__(self) -> None:
        self.referred, self.loose_bytes = -1, 0
        self.loose: dict[str, int] = {}

    @property
    def size(self) -> int:
        return max(0, self.referred) + self.loose_bytes

    def add(self, digest: str, size: int) -> None:
        self.drop(digest)
        self.loose[digest] = size
        self.loose_bytes += size

    def drop(self, digest: str) -> None:
        self.loose_bytes -= self.loose.pop(digest, 0)


class BlobShares:
    """The shares of all users of one hub."""

    def __init__(
        self, blobs: Blobs, store: Store, most_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._blobs, self._store, self._most, self._clock = blobs, store, most_bytes, clock
        self._users: dict[str, _Share] = {}
        self._swept_at = -SWEEP_S

    async def make_room(self, user: str, size: int) -> None:
        """Refuse an upload of so many bytes where the user's share is full and nothing of it can go."""
        share = self._users.setdefault(user, _Share())
        if share.referred >= 0 and len(share.loose) < LOOSE and self._fits(share, size):
            return
        await self._count(user, share)
        if self._fits(share, size):
            return
        if self._clock() - self._swept_at >= SWEEP_S:
            self._swept_at = self._clock()
            await self._blobs.sweep(RECENT_MS / 1000)
            await self._count(user, share)
        if not self._fits(share, size):
            logger.warning(
                "large values of user %s take %s: an upload is refused", user, format_bytes(share.size)
            )
            raise NoSpace(
                f"large values of user {user} take {format_bytes(share.size)}, and no job uses {len(share.loose)} of "
                f"them; {format_bytes(self._most)} and {MOST_LOOSE} are the limits: they go with the jobs that use "
                "them, and within an hour where none does (setting max_user_blob_bytes)"
            )

    def add(self, user: str, digest: str, size: int) -> None:
        """Count a blob that this user has brought."""
        self._users.setdefault(user, _Share()).add(digest, size)

    async def _count(self, user: str, share: _Share) -> None:
        loose = list(share.loose)

        def ask() -> tuple[int, list[str]]:
            used, referred = self._store.count_user_blobs(user, loose)
            return used, referred + self._blobs.gone(loose)

        share.referred, gone = await asyncio.to_thread(ask)
        for digest in gone:
            share.drop(digest)

    def _fits(self, share: _Share, size: int) -> bool:
        return share.size + size <= self._most and len(share.loose) < MOST_LOOSE
