"""Random lives of a small cluster: after every step everything holds, and what was recorded folds to the same again."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import get_args

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.properties.world import STEPS, World, records, refold

from dray.core.lifecycle.state.events import Fact, pack_facts
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Phase

ROOT = Path(__file__).parents[2]
NUMBERS = st.integers(0, 63)
# Facts of which other random lives consist.
ELSEWHERE = {
    "LaunchAsked": "tests/core/scheduling/test_launches.py",
    "LaunchMoved": "tests/core/scheduling/test_launches.py",
    "LaunchSaid": "tests/core/scheduling/test_launches.py",
    "LaunchForgotten": "tests/core/scheduling/test_launches.py",
    "MovesDecided": "tests/core/lifecycle/test_moving_at_random.py",
    "MoveStepped": "tests/core/lifecycle/test_moving_at_random.py",
}


class Life(RuleBasedStateMachine):
    """The steps of the world in any order. The checks sit in the world: they run after every fold."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(offers=st.lists(NUMBERS, min_size=1, max_size=3), kinds=st.lists(NUMBERS, max_size=4))
    def begin(self, offers: list[int], kinds: list[int]) -> None:
        for number, offer in enumerate(offers):
            self.world.connect(number, offer)
            self.world.ready(number, 1 + offer % 5)
        for kind in kinds:
            self.world.submit_one(kind, kind)

    @rule(name=st.sampled_from(STEPS), a=NUMBERS, b=NUMBERS)
    def step(self, name: str, a: int, b: int) -> None:
        getattr(self.world, name)(a, b)

    def teardown(self) -> None:
        world = self.world
        world.compare(world.recovered())
        fresh = State(world.state.rules)
        refold(fresh, world.journal)
        theirs = records(fresh)
        for kind, ours in records(world.state).items():
            assert {key: theirs[kind].get(key) for key in ours} == ours


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40)


def lived(seed: int, steps: int) -> World:
    """A world after so many steps drawn from a seed."""
    world, numbers = World(), random.Random(seed)
    for _ in range(steps):
        getattr(world, numbers.choice(STEPS))(numbers.randrange(64), numbers.randrange(64))
    return world


def live(seed: int, steps: int) -> str:
    """Live through a seed and give a digest of all facts and of what they come to."""
    world = lived(seed, steps)
    digest = hashlib.sha256()
    for clock, fact in world.journal:
        digest.update(repr(clock).encode() + pack_facts([fact]))
    for kind in records(world.state).values():
        for key, packed in kind.items():
            digest.update(repr(key).encode() + packed)
    return digest.hexdigest()


def test_a_life_is_the_same_under_every_hash_seed() -> None:
    code = "from tests.properties.test_life import live; print(live(7, 300))"
    seen = []
    for hash_seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout)
    assert seen[0] == seen[1]


def test_long_lives_do_a_bit_of_everything() -> None:
    """Guards the world itself: a driver that places nothing or loses nothing would prove nothing."""
    kinds: dict[str, int] = {}
    ended: dict[str, int] = {}
    expected = {kind.__name__ for kind in get_args(Fact)} - ELSEWHERE.keys()
    for seed in range(16):
        if kinds.keys() >= expected and ended.keys() >= {phase for phase in Phase if not phase.live}:
            break
        world = lived(seed, 200)
        for _, fact in world.journal:
            kinds[type(fact).__name__] = kinds.get(type(fact).__name__, 0) + 1
        for attempt in world.rows.attempts.values():
            ended[attempt.phase] = ended.get(attempt.phase, 0) + 1
    assert not expected - kinds.keys(), kinds
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())
    assert not [phase for phase in Phase if not phase.live and not ended.get(phase)], ended
