"""What a job could do better: what it asked for beside what it used, and what would let it start.

Says only what was measured or tried: nothing where nobody could look. Used is what its attempts used, those that run
included; run times are those of the last jobs of its name.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, JobState
from dray.core.model.records.worker import Use
from dray.core.model.specs.resources import Ask, asks_of_packed
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.units import GB, format_bytes
from dray.core.scheduling.explain.reason import span
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.decisions.commands import owned
from dray.hub.documents.records import Document
from dray.hub.engine.engine import Engine
from dray.hub.rows import job_row
from dray.hub.store.base import JobFilter, Store

MOST_ATTEMPTS, MOST_RUNS, ENOUGH_RUNS = 200, 50, 3
# Less than half of what was asked for is worth a word; what is proposed leaves a quarter more than was ever used.
HALF, MORE = 0.5, 1.25
LEAST_MEMORY = GB
LEAST_RAN_S = 60.0
BUSY = 0.05
LONGER = 1.5


class Used(NamedTuple):
    """What attempts of a job used: at most of memory, in the mean of cores, cards' busy time of what was looked at."""

    ran_s: float = 0.0
    memory: int = 0
    cores: float = 0.0
    busy_s: float = 0.0
    looked_s: float = 0.0


class Hint(NamedTuple):
    """One piece of advice: about what, in words, and as a flag of `dray submit` with its value where it is one."""

    about: str
    message: str
    flag: str = ""
    value: str = ""


def sum_up(attempts: Sequence[Attempt], uses: dict[str, Use], now_ms: int) -> Used:
    """What was used, by the last word on each attempt."""
    ran_s = cpu_s = busy_s = looked_s = 0.0
    memory = 0
    for one in attempts:
        use = uses.get(one.uid)
        if not one.started_at_ms:
            continue
        spent_s = (one.span_ms if one.ended_at_ms else now_ms - one.started_at_ms) / 1000
        told = use or Use(one.cpu_s, one.max_rss_bytes, one.gpu_s, one.gpu_seen_s)
        if not told.cpu_s and not told.max_rss_bytes:
            continue
        ran_s += spent_s
        cpu_s += told.cpu_s
        busy_s += told.gpu_s
        looked_s += told.gpu_seen_s
        memory = max(memory, told.max_rss_bytes)
    return Used(ran_s, memory, cpu_s / ran_s if ran_s else 0.0, busy_s, looked_s)


def compare(ask: Ask, used: Used) -> Iterator[Hint]:
    """Where far less was used than was asked for."""
    if not used.ran_s:
        return
    asked, peak = ask.memory_bytes, used.memory
    if peak and peak < asked * HALF and asked - peak >= LEAST_MEMORY:
        enough = max(1, math.ceil(peak * MORE / GB))
        said = f"it asks for {format_bytes(asked)} of memory and has used {format_bytes(peak)} at most"
        yield Hint("memory", said, "--mem", f"{enough}G")
    cores = ask.cpu_milli / 1000
    if cores >= 2 and used.ran_s >= LEAST_RAN_S and used.cores < cores * HALF:
        enough = max(1, math.ceil(used.cores * MORE))
        said = f"it asks for {cores:g} cores and has kept {used.cores:.2f} busy in the mean"
        yield Hint("cores", said, "--cpus", str(enough))
    if ask.gpus and used.looked_s >= LEAST_RAN_S and used.busy_s < used.looked_s * BUSY:
        share = used.busy_s / used.looked_s
        yield Hint("gpus", f"its GPUs were busy for {share:.0%} of the time in which somebody looked")


def compare_time(limit_ms: int, told: bool, runs_ms: Sequence[int]) -> Iterator[Hint]:
    """Where its limit is far above what jobs of its name have taken: room that is kept for others is closed to it."""
    runs = sorted(runs_ms)
    if len(runs) < ENOUGH_RUNS:
        return
    late_ms = runs[min(len(runs) - 1, len(runs) * 9 // 10)]
    minutes = math.ceil(late_ms * LONGER / 60_000)
    if minutes * 60_000 >= limit_ms * HALF:
        return
    what = f"its limit is {span(limit_ms)}" if told else f"it says no limit, and {span(limit_ms)} is assumed"
    said = (
        f"{what}; nine of ten of its last {len(runs)} runs by name took {span(late_ms)} or less: with a shorter one it "
        "may start in room that is kept for others until then"
    )
    yield Hint("time", said, "--time", f"{minutes}m")


class AdviceView:
    """One hub's advice on jobs."""

    def __init__(self, engine: Engine, store: Store, answers: Answers) -> None:
        self._engine, self._store, self._answers = engine, store, answers

    async def show(self, caller: Caller, job_id: str) -> Document:
        """All that can be said of one job."""

        def look(state: State) -> tuple[Job, dict[str, Use]]:
            job = owned(caller, self._answers.rows.job(job_id), job_id)
            uids = state.live_of.get(job_id, ())
            return job, {uid: state.uses[uid] for uid in uids if uid in state.uses}

        job, uses = await self._engine.read(look, job_row(job_id))
        await self._engine.settle()
        attempts, runs = await asyncio.to_thread(self._read, job)
        ask, spec = asks_of_packed(job.spec)[0], unpack_spec(job.spec)
        used = sum_up(attempts, uses, self._engine.clock_ms())
        told = bool(spec.max_runtime_s or spec.max_runtime_hours)
        hints = [*compare(ask, used)]
        if not job.service and not job.state.final:
            hints += compare_time(job.limit_ms, told, runs)
        waits = ""
        if job.waiting and not job.state.final:
            why = await self._answers.why(caller, job_id)
            waits = str(why["summary"])
            if (change := why["change"]) is not None:
                hints.append(Hint("start", str(change["message"]), change["flag"], change["value"]))
        return {
            "job_id": job.id,
            "name": job.name,
            "state": job.state.value,
            "waits": waits,
            "asked": {"memory_bytes": ask.memory_bytes, "cores": ask.cpu_milli / 1000, "gpus": ask.gpus},
            "used": {
                "ran_s": round(used.ran_s, 3),
                "max_rss_bytes": used.memory,
                "cores": round(used.cores, 4) if used.ran_s else None,
                "gpu_busy": round(used.busy_s / used.looked_s, 4) if used.looked_s else None,
            },
            "runs": len(runs),
            "advice": [hint._asdict() for hint in hints],
        }

    def _read(self, job: Job) -> tuple[list[Attempt], list[int]]:
        attempts = self._store.find_attempts(job.id, limit=MOST_ATTEMPTS)
        if not job.name:
            return attempts, []
        ended = JobFilter(name=job.name, user=job.user, states=(JobState.SUCCEEDED.value,), limit=MOST_RUNS)
        jobs = self._store.list_jobs(ended)
        return attempts, [one.ended_at_ms - one.started_at_ms for one in jobs if one.started_at_ms]
