"""The work of a side process that runs the scheduler forward: from a scene, when its tasks start.

The surprising rule: every draw runs in a fork of its own, because a run into the future uses its state up and
building one takes longer than a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import msgspec

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.passes.run_forward import Forecast, Placed
from dray.core.scheduling.passes.snapshot import TaskKey, build_scene

DRAWS = 9
LEAST_DRAWS = 3
BUDGET_S = 8.0
Waits = dict[TaskKey, int]


class Foreseen(msgspec.Struct, array_like=True):
    """When one task starts, counted from the scene's moment."""

    job_id: str
    index: int
    p50_ms: int
    p90_ms: int


class Foresight(msgspec.Struct, array_like=True):
    """When tasks start, by all runs; and by the one in which everybody takes their middle run time, where they run and
    when what runs already ends.
    """

    found: list[Foreseen]
    placed: list[Placed]
    ends: dict[str, int]


class _Run(msgspec.Struct, array_like=True):
    waits: list[tuple[str, int, int]]
    placed: list[Placed]
    ends: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_RUN = msgspec.msgpack.Decoder(_Run)


def foresee(pieces: Sequence[bytes], go_on: Callable[[], bool]) -> Foresight:
    """Several runs into the future of one scene."""
    return run_forward(*build_scene(pieces), go_on)


def run_forward(
    state: State,
    clock: Clock,
    wanted: list[TaskKey],
    go_on: Callable[[], bool],
    tell: Callable[[int], None] | None = None,
) -> Foresight:
    """Several runs into the future; a task that starts in fewer than half of them has no estimate. `tell` hears of
    each that it is over.
    """
    began, runs, middle = time.monotonic(), list[Waits](), _Run([], [], {})
    for number in range(DRAWS):
        if (number >= LEAST_DRAWS and time.monotonic() - began > BUDGET_S) or not go_on():
            break
        run = _run_aside(state, clock, number, wanted)
        if run is not None:
            runs.append({(job_id, index): wait for job_id, index, wait in run.waits})
            middle = run if number == 0 else middle
        if tell is not None:
            tell(number + 1)
    found = []
    for key in wanted:
        waits_of = sorted(run[key] for run in runs if key in run)
        if len(waits_of) * 2 > len(runs):
            missing = [waits_of[-1]] * (len(runs) - len(waits_of))
            spread = [*waits_of, *missing]
            last = len(spread) - 1
            found.append(Foreseen(*key, spread[len(spread) // 2], spread[min(last, len(spread) * 9 // 10)]))
    return Foresight(found, middle.placed, middle.ends)


def _run_aside(state: State, clock: Clock, number: int, wanted: list[TaskKey]) -> _Run | None:
    """One run in a fork; None where it came to grief."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            mine = os.getppid()
            forecast = Forecast(state, clock, number, lambda: os.getppid() == mine)
            waits = [(*key, wait) for key, wait in forecast.run(wanted).items()]
            more = ([], {}) if number else (forecast.placed, forecast.ends)
            with os.fdopen(writing, "wb") as sink:
                sink.write(_encode(_Run(waits, *more)))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        packed = source.read()
    _, status = os.waitpid(pid, 0)
    if status:
        return None
    return _RUN.decode(packed)
