"""Many seeds: run them, gather what they were like, and turn a failing one into a scenario.

Whatever ends a history early counts as a failure, also an exception that no check raised.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dray.sim.faults.mutants.mutants import Mutant, applied
from dray.sim.faults.mutants.shy import SHOWN_BY
from dray.sim.faults.run import History, Outcome
from dray.sim.faults.shrinking import shrink
from dray.sim.faults.world.world import CALM_MS, LARGE, SMALL, Size

SIZES: dict[str, Size] = {"small": SMALL, "large": LARGE}
LAST_LINES = 25
# Sound small worlds are over within twenty minutes of calm: what a planted bug has stuck after an hour stays so.
HUNT_CALM_MS = 3600 * 1000
# Above all that were ever chosen by hand, and small enough for any reader of JSON.
FRESH_FROM, FRESH_TO = 10**9, 2**53


class Scenario(msgspec.Struct):
    """A history that once failed, kept so that it never fails again."""

    seed: int
    size: str
    skipped: list[int] = []
    problem: str = ""
    note: str = ""


class Verdict(NamedTuple):
    """How one seed went. `problem` is empty where every promise held."""

    seed: int
    outcome: Outcome | None
    problem: str
    story: list[str]


class Tally:
    """Sums over many seeds."""

    def __init__(self) -> None:
        self.seeds = self.steps = self.runs = 0
        self.virtual_s = 0.0
        self.faults: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.runs += outcome.runs
        self.virtual_s += outcome.virtual_s
        self.faults.update(outcome.faults)


def draw_first(seeds: int) -> int:
    """Draw where a run of seeds begins that nobody is likely to have run before: what is known to pass shows little."""
    return random.SystemRandom().randrange(FRESH_FROM, FRESH_TO - seeds)


def judge(seed: int, size: str, skipped: Iterable[int] = (), calm_ms: int = CALM_MS) -> Verdict:
    """Live through one history and say how it went."""
    history = History(seed, SIZES[size], frozenset(skipped))
    try:
        outcome = history.run(calm_ms)
    except Exception as failure:  # noqa: BLE001  # whatever broke in there is what this is for
        return Verdict(seed, None, f"{type(failure).__name__}: {failure}", history.world.story)
    return Verdict(seed, outcome, "", history.world.story)


def shrink_seed(seed: int, size: str, tries: int = 200) -> Scenario:
    """Leave out faults of a failing seed for as long as it fails."""
    numbers = list(range(SIZES[size].faults))
    skipped = shrink(numbers, lambda out: bool(judge(seed, size, out).problem), tries)
    return Scenario(seed, size, sorted(skipped), judge(seed, size, skipped).problem)


def reproduction(scenario: Scenario) -> str:
    """The one line that shows a failure again."""
    skipped = f" --skip {','.join(map(str, scenario.skipped))}" if scenario.skipped else ""
    return f"./dev soak --seed {scenario.seed} --size {scenario.size}{skipped}"


def hunt(mutant: Mutant, first: int, most: int) -> Verdict | None:
    """Look for a small seed that shows a deliberate bug, first one that did before; None where none of them does."""
    with applied(mutant):
        shown = [SHOWN_BY[mutant.name]] if mutant.name in SHOWN_BY else []
        for seed in (*shown, *range(first, first + most)):
            verdict = judge(seed, "small", calm_ms=HUNT_CALM_MS)
            if verdict.problem:
                return verdict
    return None
