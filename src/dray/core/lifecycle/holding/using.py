"""Who uses which services: jobs of one user that name the same ones wait and start together.

The index is a cache of `Job.uses` of jobs that live. All of a group agree in `unserved`, so that one look at its
services decides for all of it; the first of a group begins unserved, and is looked at before the next pass.
"""

from __future__ import annotations

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job


def register(state: State, job: Job, uses: tuple[str, ...]) -> None:
    """Let a job use these services from here on."""
    job.uses, job.unserved = uses, False
    if uses:
        group = state.using.setdefault((job.user, uses), {})
        job.unserved = state.jobs[next(iter(group))].unserved if group else True
        group[job.id] = None


def withdraw(state: State, job: Job) -> None:
    """Let a job use nothing any more: it has ended, or was told so."""
    if not job.uses:
        return
    group = state.using[job.user, job.uses]
    del group[job.id]
    if not group:
        del state.using[job.user, job.uses]
        state.use_notes.pop((job.user, job.uses), None)
    job.uses, job.unserved = (), False
    state.touched.jobs[job.id] = None


def recall(state: State, job: Job) -> None:
    """Index a job that was read from its row."""
    if job.uses:
        state.using.setdefault((job.user, job.uses), {})[job.id] = None
