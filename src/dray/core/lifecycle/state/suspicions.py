"""What speaks for and against workers: which jobs failed there at once of late, and how the same work went elsewhere.

A cache in memory, bounded, and no part of replay equality: a hub that starts again has seen what the tail of its log
tells. What is decided by it is a fact of its own. Knows nothing of what counts and how much is enough: that is in
`holding.quarantines`.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_FAILURES, MOST_WORKS, MOST_WORKERS = 8, 4_096, 16
UNKNOWN, WELL, ILL = "", "well", "ill"


class Failure(NamedTuple):
    """One job that failed on a worker as no job should. `node`: by its own words it was the machine."""

    job_id: str
    user: str
    work: str
    at_ms: int
    node: bool
    words: str


class Trace(NamedTuple):
    """How some work last went on a worker, and when; `uid` of the attempt of it that began there last."""

    how: str
    at_ms: int
    uid: str = ""


NO_TRACE = Trace(UNKNOWN, 0)


class Suspicions:
    """`failures` by worker and job, `traces` by whose work of what kind it was and by worker."""

    def __init__(self) -> None:
        self.failures: dict[str, dict[str, Failure]] = {}
        self.traces: dict[tuple[str, str], dict[str, Trace]] = {}

    def began(self, user: str, work: str, worker: str, uid: str) -> None:
        """Remember an attempt of some work on a worker: how the last one went stays known."""
        traces = self._traces_of((user, work), worker)
        before = traces.get(worker, NO_TRACE)
        traces[worker] = Trace(before.how, before.at_ms, uid)

    def ended(self, user: str, work: str, worker: str, how: str, at_ms: int) -> None:
        """Remember how some work went on a worker."""
        self._traces_of((user, work), worker)[worker] = Trace(how, at_ms)

    def _traces_of(self, key: tuple[str, str], worker: str) -> dict[str, Trace]:
        traces = self.traces.get(key)
        if traces is None:
            if len(self.traces) >= MOST_WORKS:
                del self.traces[next(iter(self.traces))]
            traces = self.traces[key] = {}
        elif worker not in traces and len(traces) >= MOST_WORKERS:
            del traces[next(iter(traces))]
        return traces

    def add(self, worker: str, failure: Failure) -> None:
        """Remember a job that failed on a worker, in place of what is known of it there."""
        failures = self.failures.setdefault(worker, {})
        failures.pop(failure.job_id, None)
        if len(failures) >= MOST_FAILURES:
            del failures[next(iter(failures))]
        failures[failure.job_id] = failure

    def acquit(self, worker: str) -> None:
        """Something went well there, or it is gone."""
        if self.failures:
            self.failures.pop(worker, None)
