"""Histories that once failed never fail again, and some that never did stay so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dray.sim.faults.soaking import Scenario, draw_first, judge, reproduction

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_scenario_stays_mended(path):
    scenario = msgspec.json.decode(path.read_bytes(), type=Scenario)
    assert scenario.note, "a scenario says what was wrong"
    problem = judge(scenario.seed, scenario.size, scenario.skipped).problem
    assert not problem, f"{problem}\n{reproduction(scenario)} --story"


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_small_worlds_keep_every_promise(first):
    problems = [
        verdict.problem for seed in range(first, first + 10) if (verdict := judge(seed, "small")).problem
    ]
    assert problems == []


@pytest.mark.parametrize(("size", "count"), [("small", 8), ("large", 1)])
def test_worlds_that_nobody_ever_saw_keep_every_promise(size, count):
    """Drawn anew each time. A failure is a real one: run its line, and make it a scenario."""
    first = draw_first(count)
    for seed in range(first, first + count):
        problem = judge(seed, size).problem
        assert not problem, f"{problem}\n{reproduction(Scenario(seed, size))} --story"


def test_a_large_world_keeps_every_promise():
    assert judge(0, "large").problem == ""


def test_a_world_is_as_full_of_trouble_as_it_says():
    outcome = judge(5, "small").outcome
    assert outcome is not None
    assert sum(outcome.faults.values()) >= 60
    assert outcome.runs > 10


STORY = """
import hashlib, logging, sys
logging.disable(logging.CRITICAL)
from dray.sim.faults.soaking import judge
for seed in (1, 2):
    verdict = judge(seed, "small")
    print(seed, len(verdict.story), hashlib.sha256("\\n".join(verdict.story).encode()).hexdigest())
"""


def test_a_seed_is_a_whole_history_whatever_the_hash_seed():
    stories = [
        subprocess.run(
            [sys.executable, "-c", STORY],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) == 2
