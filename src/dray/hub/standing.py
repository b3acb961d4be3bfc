"""How the hub stands at one moment, for its metrics: read off the state, the sessions and what goes with them.

Counted is only what happened under this hub: what its recovery folded in anew ended under the one before.
"""

from __future__ import annotations

from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import DEFAULT_QUEUE
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.answers.metrics import Gauges
from dray.hub.engine.engine import Engine
from dray.hub.engine.fault_reports import Reports
from dray.hub.workers.sessions import Sessions

WORKER_STATES = ("ready", "offline", "draining", "suspect", "silent", "not_ready")


class Standing:
    """Made once the state is recovered, asked at every scrape."""

    def __init__(self, state: State, reports: Reports, certificate: CertificateWatch | None) -> None:
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
        return Gauges(depths, workers, len(sessions.open), engine.log_lag, reports, ended, left_s)


def _state_of(state: State, worker_id: str) -> str:
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    if worker.silent:
        return "silent"
    if not presence.session:
        return "offline"
    if worker.draining:
        return "draining"
    if presence.suspect:
        return "suspect"
    return "not_ready" if presence.paused or presence.not_ready else "ready"
