"""Waiting for several jobs or tasks, for all of them or for the first, and for no longer than was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dray.cli.base.exit_codes import exit_code, has_ended, is_numbered
from dray.cli.base.invocation import Session
from dray.cli.base.outage import Outage
from dray.cli.follow.following import LONG_POLL_S, job_exit_code, look, wait_for_job
from dray.cli.follow.progress import ArrayProgress
from dray.cli.jobs.jobs import find_task

LOOK_S = 1.0
Wanted = tuple[str, str, int]
Ended = tuple[str, dict[str, Any], int]


class WaitedLong(Exception):
    """The time that somebody was ready to wait is over."""


class Waiting:
    """One wait. `limit_s` is how long it may take in all, None for as long as it takes."""

    def __init__(self, session: Session, outage: Outage, limit_s: float | None) -> None:
        self._session, self._outage = session, outage
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def for_all(self, wanted: Sequence[Wanted]) -> Iterator[Ended]:
        """All of them, in the order given."""
        for text, job_id, index in wanted:
            document = self._one(job_id, index)
            yield text, document, self._code(document, index)

    def for_first(self, wanted: Sequence[Wanted]) -> Iterator[Ended]:
        """The first that is found ended; each is looked at in turn."""
        while True:
            for text, job_id, index in wanted:
                document = self._look(job_id, index, 0)
                if has_ended(document):
                    yield text, document, self._code(document, index)
                    return
            time.sleep(self._left(LOOK_S))

    def _one(self, job_id: str, index: int) -> dict[str, Any]:
        if index >= 0:
            # There is no long poll for tasks.
            while not has_ended(task := self._look(job_id, index, 0)):
                time.sleep(self._left(LOOK_S))
            return task
        bar = ArrayProgress(job_id)

        def watch(job: Mapping[str, Any]) -> float:
            drawn = self._draws(job)
            if drawn:
                bar.note(job)
            return 0.0 if has_ended(job) else self._left(LOOK_S if drawn else LONG_POLL_S)

        try:
            return wait_for_job(self._session.hub, self._outage, job_id, watch)
        finally:
            bar.close()

    def _draws(self, job: Mapping[str, Any]) -> bool:
        return bool((job.get("spec") or {}).get("array")) and is_numbered(job) and not self._session.json

    def _look(self, job_id: str, index: int, wait_s: float) -> dict[str, Any]:
        if index < 0:
            return look(self._session.hub, self._outage, job_id, wait_s)
        return self._outage.ride_out(lambda: find_task(self._session.hub, job_id, index))

    def _code(self, document: Mapping[str, Any], index: int) -> int:
        return exit_code(document) if index >= 0 else job_exit_code(self._session.hub, self._outage, document)

    def _left(self, most_s: float) -> float:
        """How long the next look may take; raises where no time is left."""
        if self._deadline is None:
            return most_s
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise WaitedLong
        return min(most_s, left_s)
