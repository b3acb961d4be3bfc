"""What running out of GPU memory has taught, by user and name of a job: which cards are too small for the next one.

Records of the ledger, so that they outlive the job and the hub; the oldest go once there are too many. A job heeds what
others of its name found out only where it says `oom: bigger` itself, and never asks for less than it was told to.
"""

from __future__ import annotations

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import Lesson
from dray.core.model.records.records import Job
from dray.core.model.specs.larger import asks_beyond

LESSON = "lesson"
MOST_LESSONS = 4096


def learn(state: State, job: Job, vram_bytes: int, clock: Clock) -> None:
    """Remember that cards with so much memory are too small for jobs of this name."""
    if not job.name:
        return
    key = _key(job.user, job.name)
    known = state.ledger.get((LESSON, key))
    if isinstance(known, Lesson) and known.vram_bytes >= vram_bytes:
        return
    state.enter(LESSON, key, Lesson(vram_bytes, job.id, clock.at_ms))
    kept = {key: one.at_ms for (_, key), one in state.ledger.items() if isinstance(one, Lesson)}
    if len(kept) > MOST_LESSONS:
        state.enter(LESSON, min(kept, key=lambda one: (kept[one], one)), None)


def find(state: State, user: str, name: str, packed: bytes) -> Lesson | None:
    """What others of its name teach a new job; None where there is nothing, or it asks for as much by itself."""
    known = state.ledger.get((LESSON, _key(user, name))) if name else None
    return known if isinstance(known, Lesson) and not asks_beyond(packed, known.vram_bytes) else None


def _key(user: str, name: str) -> str:
    # The name of a user has no slash in it.
    return f"{user}/{name}"
