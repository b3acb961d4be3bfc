"""Lanes: held places through which the calls of one job go, one at a time, in the order given.

A lane is an attempt without a task. It is opened by a plan like any attempt, fed without one, and closed when it has no
calls and gets none. What a call's end means for the job is decided here; on the hot path that is one dict operation and
a counter. A call gets a record of its own only once it had trouble: queued again, or cancelled by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dray.core.lifecycle.state import State
from dray.core.model.records import Attempt


class Outstanding(NamedTuple):
    """Which of a frame's calls count: `places` in its columns; `gone`: indices of calls cancelled before, now over."""

    places: Sequence[int]
    gone: tuple[int, ...]


def find_lane(state: State, worker: str, uid: str) -> Attempt | None:
    """The live lane of a worker; None where there is none under this uid."""
    lane = state.attempts.get(uid)
    if lane is None or lane.worker != worker or lane.calls is None or not lane.phase.live:
        return None
    return lane


def outstanding(state: State, worker: str, uid: str, index: Sequence[int], no: Sequence[int]) -> Outstanding:
    """Sift a frame of ended calls: only those that the lane was given, by the same number, and that did not end."""
    lane = find_lane(state, worker, uid)
    if lane is None or lane.calls is None:
        return Outstanding((), ())
    calls = lane.calls
    places: list[int] = []
    gone: list[int] = []
    seen: set[int] = set()
    for place, (one, number) in enumerate(zip(index, no, strict=True)):
        known = calls.get(one, 0)
        if one in seen or not known:
            continue
        if known == number:
            seen.add(one)
            places.append(place)
        elif known == -number:
            seen.add(one)
            gone.append(one)
    return Outstanding(places, tuple(gone))


def finals(state: State, uid: str, index: Sequence[int], words: Sequence[str] | str) -> Sequence[int]:
    """Which of these ends are the calls' recorded results, as places: those are kept and told to clients.

    The others are queued again, or end otherwise (`CallsDone`).
    """
    if words == "succeeded":
        return range(len(index))
    lane = state.attempts[uid]
    said = [words] * len(index) if isinstance(words, str) else words
    return [place for place, one in enumerate(index) if is_final(state, lane, one, said[place])]


def is_final(state: State, lane: Attempt, index: int, word: str) -> bool:
    """Whether a call that ends so now has its result."""
    if word == "succeeded":
        return True
    if word not in ("failed", "killed") or lane.cancel in SENT_BACK:
        return False
    if word == "killed":
        return True
    job, task = state.jobs[lane.job_id], state.tasks.get((lane.job_id, index))
    return (task.failures if task is not None else 0) + 1 > job.retries


# A lane that is stopped for these reasons gives its calls back, whatever they made of the signal.
SENT_BACK = ("preempted", "requeued", "revoked")
