"""How long starts wait for what must be brought, with workers told ahead of time and without, on a replayed trace.

The very decisions of hub and agent, in virtual time. The trace is drawn: users who edit their code and submit a sweep
of some jobs with it, run times that vary within a sweep by a third and between them by much, told with an error of up
to a twentieth, a little more work than there is room for. Each sweep has a snapshot of its own, which takes a quarter
of a minute to two minutes to fetch. How often hints are of use hangs on that error more than on all else.
"""

from __future__ import annotations

import random

from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.core.model.policies.policy import Policy
from dray.sim.traces.warmth import Warmth
from dray.sim.traces.workload import Node, TraceJob
from dray.sim.traces.world import World

SEED = 20
NODES, CORES = 20, 8
USERS = 30
ERROR = 0.05
JOBS = 2_400
MEAN_GAP_MS, MEAN_SWEEP = 15_500, 10


def measure(quick: bool) -> dict[str, Figure]:
    jobs = draw_trace(JOBS // (4 if quick else 1))
    without, _ = replay(jobs, foresees=False)
    ahead, ends = replay(jobs, foresees=True)
    used, wasted = ends.get("used", 0), ends.get("wasted", 0)
    saved, share = 1 - ahead / without, used / max(1, used + wasted)
    tell(
        f"mean start delay {without / 1000:.1f} s, with hints {ahead / 1000:.1f} s; {share:.0%} of them used"
    )
    return {
        "without": Figure("mean start delay of jobs with a snapshot, nobody told", "s", without / 1000),
        "ahead": Figure("the same with workers told ahead of time", "s", ahead / 1000),
        "saved": Figure("what hints take off it", "%", 100 * saved, bars=[Bar(at_least=60.0)]),
        "used": Figure("hints that were of use", "%", 100 * share, bars=[Bar(at_least=70.0)]),
    }


def draw_trace(count: int) -> list[TraceJob]:
    """The jobs, sorted by arrival."""
    draw = random.Random(SEED)
    jobs: list[TraceJob] = []
    at_ms = sweeps = 0
    while len(jobs) < count:
        user, size = draw.randrange(USERS), min(40, 1 + int(draw.expovariate(1 / MEAN_SWEEP)))
        at_ms += round(draw.expovariate(1 / (MEAN_GAP_MS * size)))
        sweeps += 1
        cores, typical_s = draw.choice([1000, 1000, 2000]), draw.lognormvariate(7.4, 0.6)
        for _ in range(size):
            duration_ms = round(1000 * typical_s * draw.uniform(0.7, 1.4))
            jobs.append(
                TraceJob(
                    id=f"j{len(jobs)}",
                    arrival_ms=at_ms,
                    duration_ms=duration_ms,
                    user=f"user{user}",
                    cpu_milli=cores,
                    estimate_ms=round(duration_ms * draw.uniform(1 - ERROR, 1 + ERROR)),
                    snapshot=f"snap-{user}-{sweeps}",
                )
            )
    return jobs


def replay(jobs: list[TraceJob], foresees: bool) -> tuple[float, dict[str, int]]:
    """The mean start delay in ms, and what became of the hints."""
    draw = random.Random(SEED + 1)
    names = dict.fromkeys(job.snapshot for job in jobs)
    warmth = Warmth({name: draw.randint(15_000, 120_000) for name in names})
    nodes = [Node(name=f"n{place}", cpu_milli=1000 * CORES) for place in range(NODES)]
    world = World(nodes, Policy(), warmth=warmth, foresees=foresees)
    world.run(jobs)
    return sum(warmth.delays_ms) / len(warmth.delays_ms), dict(world.state.prewarm_ends)
