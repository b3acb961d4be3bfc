"""How the hub stands at one moment, for its metrics: read off the state, the sessions and what goes with them.

Counted is only what happened under this hub: what its recovery folded in anew ended under the one before.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from dray.core.lifecycle.state.state import State
from dray.core.model.policies.alarms import KINDS
from dray.core.model.policies.policy import DEFAULT_QUEUE
from dray.core.model.records.ledger import AlarmRecord
from dray.core.model.specs.resources import WHOLE
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.answers.metrics import Card, Gauges
from dray.hub.decisions.holdings import find_oldest
from dray.hub.documents.usage import FRESH_MS
from dray.hub.engine.engine import Engine
from dray.hub.engine.fault_reports import Reports
from dray.hub.files.base import Files
from dray.hub.gateways.leading import Gateways
from dray.hub.workers.sessions import Sessions

if TYPE_CHECKING:
    from dray.hub.mirror.mirror import Mirror

WORKER_STATES = ("ready", "offline", "draining", "quarantined", "suspect", "silent", "not_ready")


class Standing:
    """Made once the state is recovered, asked at every scrape."""

    def __init__(
        self,
        state: State,
        reports: Reports,
        certificate: CertificateWatch | None,
        home: Path,
        files: Files,
        mirror: Mirror | None = None,
    ) -> None:
        self._home, self._files, self._mirror = home, files, mirror
        self.gateways: Gateways | None = None
        self._before = dict(state.ends)
        self._reports, self._certificate = reports, certificate

    def read(self, engine: Engine, sessions: Sessions) -> Gauges:
        """Look at everything now."""
        state = engine.state
        workers = dict.fromkeys(WORKER_STATES, 0)
        for worker_id in state.workers:
            workers[_state_of(state, worker_id)] += 1
        waiting = {name: depth for name, depth in state.backlog.depth.items() if depth}
        depths = dict.fromkeys([DEFAULT_QUEUE, *state.policy.queues], 0) | waiting
        left_s = self._certificate.left_s if self._certificate is not None else None
        ended = {phase.value: count - self._before.get(phase, 0) for phase, count in state.ends.items()}
        reports = len(self._reports.open())
        oldest, at_ms = find_oldest(state, depths), engine.clock_ms()
        waits_s = {
            name: (at_ms - oldest[name].submitted_at_ms) / 1000 if name in oldest else 0.0 for name in depths
        }
        raised = Counter(record.kind for record in state.ledger.values() if isinstance(record, AlarmRecord))
        alarms = dict.fromkeys(KINDS, 0) | raised
        told = (len(sessions.open), engine.log_lag, reports, ended, left_s)
        mirror = None if self._mirror is None else self._mirror.gauge
        return Gauges(
            depths,
            workers,
            *told,
            waits_s,
            alarms,
            _measure_disk(self._home),
            _list_cards(state, at_ms),
            self._files.free_bytes(),
            self._files.describe()[0],
            mirror,
            {} if self.gateways is None else self.gateways.gauge,
            dict(state.prewarm_ends),
        )


def _measure_disk(home: Path) -> tuple[int, int]:
    disk = os.statvfs(home)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def _list_cards(state: State, at_ms: int) -> list[Card]:
    """Every card of a worker that is there, what live attempts hold of it, and what they use where somebody looked."""
    held: Counter[tuple[str, int]] = Counter()
    used: dict[tuple[str, int], float] = {}
    for uid, use in state.uses.items():
        attempt = state.attempts.get(uid)
        if attempt is not None and use.cards and at_ms - use.at_ms <= FRESH_MS:
            for card in use.cards:
                spot = (attempt.worker, card.card)
                used[spot] = used.get(spot, 0.0) + card.share
    for uids in state.live_of.values():
        for uid in uids:
            attempt = state.attempts[uid]
            for index in attempt.devices:
                held[attempt.worker, index] += state.ask(attempt).gpu_milli
    return [
        Card(
            worker.id,
            index,
            worker.capability.gpu_type or "gpu",
            held[worker.id, index] / WHOLE,
            used.get((worker.id, index)),
        )
        for worker in state.workers.values()
        if state.presence[worker.id].session
        for index in range(worker.capability.gpu_count)
    ]


def _state_of(state: State, worker_id: str) -> str:
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    if worker.silent:
        return "silent"
    if not presence.session:
        return "offline"
    if worker.draining:
        return worker.drain_word
    if presence.suspect:
        return "suspect"
    return "not_ready" if presence.paused or presence.not_ready else "ready"
