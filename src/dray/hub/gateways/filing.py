"""Output of workers at a gateway, filed by it: where files are in the database that all hubs share.

Whose attempt it is says the state that follows the leader's; what that does not know (yet) goes to the leader, and so
does the output of calls. Nothing else of a worker's is decided here, and its other words wait until what it printed
before them is filed.
"""

from __future__ import annotations

from dray.core.model.records.records import Attempt
from dray.hub.engine.follower import Follower
from dray.hub.files.base import Tapes
from dray.hub.workers.outputs import Outputs, Tell
from dray.wire.messages.worker import JobLog


class GatewayFiling:
    """For as long as this hub stands by."""

    def __init__(self, tapes: Tapes, cap_bytes: int, follower: Follower) -> None:
        self._follower = follower
        self._outputs = Outputs(tapes, cap_bytes, self._find)

    @property
    def is_full(self) -> bool:
        """Whether whoever reads frames of a worker that prints is to wait."""
        return self._outputs.is_full

    async def has_room(self) -> None:
        """Wait while the database is behind."""
        await self._outputs.has_room()

    def start(self) -> None:
        """Begin to file."""
        self._outputs.start()

    async def close(self) -> None:
        """File all that was taken; nothing more is."""
        await self._outputs.close()

    def take(self, worker: str, logs: tuple[JobLog, ...], tell: Tell) -> bool:
        """File all of it, and have `tell` called for each piece; False where that is the leader's to do."""
        if not all(log.attempt and self._outputs.knows(worker, log) for log in logs):
            return False
        for log in logs:
            self._outputs.take(worker, log, tell)
        return True

    def _find(self, worker: str, job_id: str, index: int, uid: str) -> Attempt | None:
        """The attempt that a worker speaks of, if it is its own."""
        with self._follower.reading() as fold:
            attempt = fold.state.attempts.get(uid) if fold is not None else None
        if attempt is None or attempt.lane or (attempt.worker, attempt.job_id) != (worker, job_id):
            return None
        return attempt if index in (-1, attempt.index) else None
