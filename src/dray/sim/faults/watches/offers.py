"""Since when workers are what they are, and since when room is kept on them.

Room that was found on a worker which then registered as another (its twin, with fewer slots or other cards) is no
longer there to be kept: nothing is held against a hub for it, until it keeps room on that worker anew. One that had
given its slot up and goes on there takes it back before everybody for whom room is kept, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dray.core.lifecycle.state.state import State


class OfferWatch:
    """Counts looks, one per commit and one per turn, at what each worker offers and at what is kept."""

    def __init__(self) -> None:
        self._looks = 0
        self._offers: dict[str, tuple[object, ...]] = {}
        self._changed: dict[str, int] = {}
        self._yielded: dict[str, str] = {}
        self._resumed: dict[str, int] = {}
        self._kept: dict[Hashable, int] = {}

    def look(self, state: State) -> None:
        """Note who offers something else than before, and what is kept for the first time."""
        self._looks += 1
        for worker in state.workers.values():
            presence = state.presence[worker.id]
            totals = presence.slots.batch_total, presence.slots.service_total
            if not presence.session or not any(totals):
                continue  # away, or it has yet to say how much it can do
            offer = (
                worker.capability,
                worker.devices,
                totals,
                worker.resources,
                worker.ports,
                worker.all_labels,
            )
            if self._offers.setdefault(worker.id, offer) != offer:
                self._offers[worker.id], self._changed[worker.id] = offer, self._looks
        for uid, worker_id in self._yielded.items():
            attempt = state.attempts.get(uid)
            if attempt is not None and attempt.phase.live and not attempt.yielded:
                self._resumed[worker_id] = self._looks
        self._yielded = {uid: one.worker for uid, one in state.attempts.items() if one.yielded}
        for key in _kept(state):
            self._kept.setdefault(key, self._looks)

    def is_gone(self, key: Hashable, worker: str) -> bool:
        """Whether a worker became another after room on it was first kept."""
        return self._changed.get(worker, 0) > self._kept.get(key, self._looks)

    def is_crowded(self, key: Hashable, worker: str) -> bool:
        """Whether somebody took a slot back on a worker after room on it was first kept."""
        return self._resumed.get(worker, 0) > self._kept.get(key, self._looks)


def _kept(state: State) -> Iterable[Hashable]:
    yield from state.reservations.values()
    yield from (receipt.id for receipt in state.receipts.values())
    yield from state.moves.values()
