"""Demand: what is counted as wanted, what is foretold of it, and that its bounds are those of its own record."""

from __future__ import annotations

import random
from typing import Any

from dray.core.model.records.records import Job
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec
from dray.hub.views.past.demand import (
    DAY,
    HOUR_MS,
    foretell,
    predict,
    read_wants,
    wanted_by_hour,
)

NOW = 1_000 * HOUR_MS


def job(
    name: str, submitted: float, started: float = 0, ended: float = 0, total: int = 1, **spec: Any
) -> Job:
    """Moments in hours before now."""
    packed = pack_spec(check_spec({"command": ["true"], **spec}))
    given: Any = {
        "id": name,
        "seq": 1,
        "user": "ann",
        "name": name,
        "queue": "default",
        "priority": 0,
        "tier": "",
    }
    found = Job(**given, spec=packed, numbered=False, total=total)
    found.submitted_at_ms = NOW - round(submitted * HOUR_MS)
    found.started_at_ms = NOW - round(started * HOUR_MS) if started else 0
    found.ended_at_ms = NOW - round(ended * HOUR_MS) if ended else 0
    return found


def test_wanted_is_what_waits_and_what_runs() -> None:
    jobs = [
        job("over", 10, 9, 4, gpu_count=2),
        job("runs", 5, 4, gpu_count=4, gpu_type="A100"),
        job("waits", 2, gpu_count=1, gpu_milli=500),
        job("cpu", 9, 8, 1),
    ]
    series = wanted_by_hour(read_wants(jobs, NOW), NOW)
    assert set(series) == {"all", "2", "4 a100", "shared"}
    assert series["2"][-11:] == [2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0]
    assert series["4 a100"][-7:] == [0, 4, 4, 4, 4, 4, 4]
    assert series["shared"][-3:] == [0.5, 0.5, 0.5]
    assert series["all"][-1] == 4.5


def test_an_array_fades_as_its_tasks_end() -> None:
    [want] = read_wants([job("array", 5, 4, 2, total=10, array={"last": 9}, gpu_count=1)], NOW)
    assert [want.at(NOW - round(hours * HOUR_MS)) for hours in (4.5, 4, 3, 2.5, 2)] == [10, 10, 5, 2.5, 0]


def test_the_last_value_gives_way_to_the_usual_one_of_that_hour() -> None:
    line = [float(hour % DAY) for hour in range(10 * DAY)]
    place = len(line) - 1
    assert predict(line, place, 1) == predict(line, place, 3) == line[-1] == 23
    assert predict(line, place, 24) == 23
    assert predict(line, place, 12) == 23 * (1 - 9 / 21) + 11 * 9 / 21
    assert predict(line[:10], 9, 1) is None, "no such hour was ever seen"


def test_bounds_and_error_are_those_of_the_past_week() -> None:
    rng = random.Random(3)
    line = [50 + 10 * (hour % DAY >= 8) + rng.gauss(0, 5) for hour in range(14 * DAY)]
    told = foretell(line, 24)
    assert told is not None
    assert told.error is not None
    assert 0.03 < told.error < 0.2
    assert told.low < told.cards < told.high
    within = 0
    for place in range(len(line) - 100, len(line) - 24):
        said = foretell(line[: place + 1], 24)
        assert said is not None
        within += said.low <= line[place + 24] <= said.high
    assert within / 76 > 0.6
    steady = foretell([7.0] * 100, 6)
    assert steady is not None
    assert (steady.cards, steady.low, steady.high, steady.error) == (7, 7, 7, 0)
    assert foretell([7.0], 1) is None
