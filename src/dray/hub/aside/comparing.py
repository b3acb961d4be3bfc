"""The work of a side process that places what waits by several strategies, and says what each of them comes to.

From one scene, each on a state of its own. What is compared are tasks that can be placed together (one alternative, one
worker, no named resources), by what the policy's scorers say against the places that they get.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import Clock, PolicyChanged
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.model.policies.policy import MIN_COST, PLACERS, pack_policy
from dray.core.scheduling.passes.planning import plan
from dray.core.scheduling.passes.snapshot import build_scene
from dray.core.scheduling.solving.costs import UNIT, Group, Solve, assign, is_plain
from dray.hub.aside.genetic import solve_by_genes

GENETIC = "genetic"
COMPARED = (*PLACERS, MIN_COST, GENETIC)


class Outcome(msgspec.Struct, array_like=True):
    """What one strategy comes to: tasks placed, what speaks against their places together, on how many workers."""

    strategy: str
    placed: int
    cost: float
    workers: int
    seconds: float
    trouble: str = ""


class Compared(msgspec.Struct, array_like=True):
    """All of them, in the order asked for."""

    tasks: int
    outcomes: list[Outcome]


def compare(pieces: Sequence[bytes], go_on: Callable[[], bool]) -> Compared:
    """The first piece names the strategies, the others are a scene."""
    names, scene = pieces[0].decode().split(","), pieces[1:]
    state, _, wanted = build_scene(scene)
    keys = [key for key in wanted if is_plain(state, state.jobs[key[0]].shape)]
    prices = _prices(state, keys)
    return Compared(len(keys), [_try(name, scene, keys, prices) for name in names if go_on()])


def _try(
    name: str, scene: Sequence[bytes], keys: list[TaskKey], prices: Mapping[TaskKey, Mapping[str, int]]
) -> Outcome:
    state, clock, _ = build_scene(scene)
    began = time.monotonic()
    try:
        placed = _place(name, state, keys, clock)
    except ImportError as error:
        return Outcome(name, 0, 0.0, 0, 0.0, f"{error.name} is not installed where the hub runs")
    seconds = time.monotonic() - began
    known = {key: worker for key, worker in placed.items() if key in prices}
    cost = sum(prices[key][worker] for key, worker in known.items()) / UNIT
    return Outcome(name, len(known), cost, len(set(known.values())), seconds)


def _place(name: str, state: State, keys: list[TaskKey], clock: Clock) -> dict[TaskKey, str]:
    if name in PLACERS:
        placement = msgspec.structs.replace(state.policy.placement, strategy=name)
        policy = msgspec.structs.replace(state.policy, placement=placement)
        apply(state, PolicyChanged(pack_policy(policy), "imagined"), clock)
        return {(one.job_id, one.index): one.worker for one in plan(state).placements}
    solve: Solve = solve_by_genes
    if name == MIN_COST:
        from dray.hub.aside.min_cost import solve_by_flow

        solve = solve_by_flow
    return {(hint.job_id, hint.task): hint.worker for hint in assign(state, keys, solve)}


def _prices(state: State, keys: list[TaskKey]) -> dict[TaskKey, dict[str, int]]:
    """What speaks against each place of each task, before anybody is placed."""
    found: dict[TaskKey, dict[str, int]] = {}

    def note(group: Group) -> list[int]:
        for key, kind in zip(group.keys, group.kind_of.tolist(), strict=True):
            found[key] = dict(zip(state.columns.worker_of, group.costs[kind].tolist(), strict=True))
        return [-1] * len(group.keys)

    assign(state, keys, note)
    return found
