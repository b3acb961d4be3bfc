"""When a workload ends and how it does: draws of what its tasks still take, and one verdict with its reasons.

What a task takes is drawn from the run times of jobs of its name, else it is what was told, else its time limit. So
many go side by side as run now, or as its width lets. Pure: the same state gives the same answer.
"""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

from dray.core.lifecycle.state.experience import kind_of_work
from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.records import Job
from dray.core.model.records.workload import MICRO, WorkloadState
from dray.core.model.units import format_seconds, parse_moment

DRAWS, SAMPLES = 64, 32
AT_RISK = 0.8
Z_95 = 1.96
LEAST_GAP_MS, GAPS = 60_000, 3


class Forecast(NamedTuple):
    """In how long it ends, half of the draws and nine of ten; NEVER where nothing tells. `in_time`: the share of draws
    that meet its deadline, None where it has none. `side_by_side`: so many tasks at once were reckoned with.
    """

    p50_ms: int
    p90_ms: int
    in_time: float | None
    side_by_side: int
    left: int


def foretell(state: State, tally: Tally, at_ms: int) -> Forecast:
    """Draw how long the rest of a workload takes from now on."""
    record = tally.record
    jobs = [state.jobs[job_id] for job_id in tally.jobs if not state.jobs[job_id].state.final]
    left = sum(job.total - job.ended for job in jobs)
    width = record.terms.width or max(1, record.running)
    if record.state in (WorkloadState.DRAFT, WorkloadState.PAUSED):
        width = record.terms.width or 1
    ends = sorted(_draw(state, jobs, width, number) for number in range(DRAWS)) if left else [0] * DRAWS
    deadline = record.terms.deadline
    in_time = None
    if deadline:
        room_ms = parse_moment(deadline) - at_ms
        in_time = sum(end <= room_ms for end in ends) / len(ends)
    return Forecast(ends[DRAWS // 2], ends[DRAWS * 9 // 10], in_time, width, left)


def _draw(state: State, jobs: list[Job], width: int, number: int) -> int:
    """One draw: the sum of what is left, side by side, and no sooner than the longest of those that were drawn."""
    total, longest = 0.0, 0
    for job in jobs:
        likely = state.experience.spans.likely(kind_of_work(job), job.limit_ms)
        spans = likely or ((job.expected_ms or job.limit_ms or NEVER),)
        count = job.total - job.ended
        sample = [
            spans[zlib.crc32(f"{job.id}/{place}/{number}".encode()) % len(spans)]
            for place in range(min(count, SAMPLES))
        ]
        if not sample:
            continue
        total += sum(sample) / len(sample) * count
        longest = max(longest, *sample)
    return min(NEVER, max(longest, round(total / max(1, width))))


class Verdict(NamedTuple):
    """`ok`, `at_risk`, `stuck`, `failing` or `over_budget`, and why."""

    word: str
    reasons: tuple[str, ...] = ()


def judge(state: State, tally: Tally, forecast: Forecast, first_reason: str, never: bool) -> Verdict:
    """The one verdict on a workload: the gravest that holds. `first_reason`: why the first task that waits does so,
    `never`: no known worker could ever take it.
    """
    record, reasons, words = tally.record, list[str](), list[str]()

    def find(word: str, reason: str) -> None:
        words.append(word)
        reasons.append(reason)

    came, failed = record.succeeded + record.open_failures, record.open_failures
    if came and wilson_low(failed, came) > record.terms.failures:
        find("failing", f"{failed:,} of {came:,} tasks that ended failed, {record.terms.failures:.1%} may")
    budget, now_ms = record.terms.budget, state.now_ms
    if (budget.gpu_hours or budget.money) and (record.spent or tally.is_empty(now_ms)):
        used = tally.used_ms(now_ms) / 3.6e9
        told = [f"{used:.4g} of {budget.gpu_hours:g} GPU-hours"] if budget.gpu_hours else []
        told += [f"{tally.paid(now_ms) / MICRO:.4g} of {budget.money:g} in money"] if budget.money else []
        find("over_budget", f"its budget is spent: {' and '.join(told)}")
    waiting = record.total - record.ended - record.running
    if waiting and not record.is_off and not record.state.ended:
        gap_ms = (record.last_start_ms - record.first_start_ms) // max(1, record.started - 1)
        quiet_ms = now_ms - (record.last_start_ms or now_ms)
        if never:
            find("stuck", first_reason)
        elif not record.running and record.started and quiet_ms > GAPS * max(gap_ms, LEAST_GAP_MS):
            find("stuck", f"nothing of it started for {format_seconds(quiet_ms // 1000)}: {first_reason}")
    if forecast.in_time is not None and forecast.left and forecast.in_time < AT_RISK:
        find("at_risk", f"{forecast.in_time:.0%} of the forecasts meet its deadline")
    return Verdict(words[0], tuple(reasons)) if words else Verdict("ok")


def wilson_low(part: int, whole: int) -> float:
    """The least share that is likely where so many of so many were seen, at 95 %."""
    share, square = part / whole, Z_95 * Z_95
    spread = Z_95 * math.sqrt(share * (1 - share) / whole + square / (4 * whole * whole))
    return max(0.0, (share + square / (2 * whole) - spread) / (1 + square / whole))
