"""What can go wrong, by name. Each fault takes the history, a machine and some drawn bits; all else is in the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dray.core.model.records.records import Phase
from dray.sim.faults.nodes.worker import WorkerNode

AWAY_MS = 180_000

if TYPE_CHECKING:
    from dray.sim.faults.leasing.executor import ExecutorNode
    from dray.sim.faults.nodes.foreign import ForeignNode
    from dray.sim.faults.run import History

    Node = WorkerNode | ForeignNode | ExecutorNode
    Fault = Callable[[History, Node, int], None]


def _while(history: History, duration_ms: int, on: Callable[[], None], off: Callable[[], None]) -> None:
    on()
    history.world.at(duration_ms, off)


def _flag(history: History, target: object, name: str, duration_ms: int) -> None:
    _while(history, duration_ms, lambda: setattr(target, name, True), lambda: setattr(target, name, False))


def _storm(history: History, node: Node, name: str, duration_ms: int) -> None:
    weather = node.weather

    def clear() -> None:
        setattr(weather, name, False)
        weather.rough_ms = history.world.now_ms

    _while(history, duration_ms, lambda: setattr(weather, name, True), clear)


def _break(node: Node) -> None:
    if node.connection is not None:
        node.connection.break_off()


def _cut(history: History, node: Node, duration_ms: int) -> None:
    for way in ("up_lost", "down_lost"):
        _storm(history, node, way, duration_ms)


def _cut_off_hub(history: History, duration_ms: int) -> None:
    for node in history.workers:
        _cut(history, node, duration_ms)


def _drain(history: History, node: Node, duration_ms: int) -> None:
    if history.hub.up:
        history.hub.now.drain(node.name, True)
        history.drained[node.name] = None
    history.world.at(duration_ms, history.resume, node.name)


def _drain_until(history: History, node: Node, duration_ms: int) -> None:
    """It resumes by itself: what watches the hub says so if it does not."""
    if history.hub.up:
        history.hub.now.drain(node.name, True, f"{duration_ms}ms")


def _remove(history: History, node: Node) -> None:
    """Somebody takes it for gone."""
    if history.hub.up:
        history.hub.now.remove_worker(node.name)


def _disable(history: History, node: Node, name: str, draw: int, most_ms: int = 25_000) -> None:
    """Something of dray's own agent does not work for a while; a foreign worker has no such parts."""
    if isinstance(node, WorkerNode):
        _flag(history, node, name, 500 + draw % most_ms)


def _twin(history: History, node: Node, duration_ms: int) -> None:
    """Another machine comes up under the same name, and is switched off some time later."""
    if not isinstance(node, WorkerNode):
        return
    twin = history.add_twin(node)
    history.world.at(duration_ms, twin.retire)


def _lie(history: History, node: Node, draw: int) -> None:
    """A machine claims that another's run succeeded."""
    others = [run for run in history.runs.all if run.ended_ms < 0 and run.worker != node.name]
    if others:
        node.lie(others[draw % len(others)])


def _restore(history: History, draw: int) -> None:
    if history.backups:
        history.restore(history.backups[draw % len(history.backups)])


def _lose_touch(history: History, node: Node, draw: int) -> None:
    """The hub is started anew, and a machine that runs a service stays away until the start grace is long over."""
    world, hub = history.world, history.hub
    state = hub.state
    serving = {
        attempt.worker
        for attempt in state.attempts.values()
        if attempt.phase is Phase.RUNNING and state.jobs[attempt.job_id].lost_after_ms < hub.rules.lost_ms
    }
    if hub.up and (found := [one for one in history.workers if one.name in serving]):
        hub.die("killed")
        _cut(history, found[draw % len(found)], AWAY_MS)
    elif world.now_ms + AWAY_MS < world.size.span_ms:
        world.at(1000, _lose_touch, history, node, draw)


def _span(draw: int) -> int:
    """Mostly short, sometimes past every timer."""
    return 500 + draw % 20_000 if draw % 3 else 30_000 + draw % 170_000


FAULTS: dict[str, Fault] = {
    "hub killed": lambda history, node, draw: history.hub.die("killed"),
    "hub killed within a turn": lambda history, node, draw: setattr(history.hub, "die_at_step", 1 + draw % 4),
    "commit fails": lambda history, node, draw: _flag(history, history.hub, "failing_store", 50),
    "slow store": lambda history, node, draw: _flag(history, history.hub, "slow_store", 2000 + draw % 20_000),
    "hub disk full": lambda history, node, draw: _flag(history, history.hub, "low_space", _span(draw)),
    "second hub on the store": lambda history, node, draw: history.hub.start_second(),
    "hub backed up": lambda history, node, draw: history.back_up(),
    "hub restored from a backup": lambda history, node, draw: _restore(history, draw),
    "hub cut off from all": lambda history, node, draw: _cut_off_hub(history, 30_000 + draw % 230_000),
    "agent killed": lambda history, node, draw: node.die(),
    "agent says goodbye": lambda history, node, draw: node.leave(),
    "supervisor killed": lambda history, node, draw: node.supervisor_dies(),
    "host rebooted": lambda history, node, draw: node.reboot(wiped=False),
    "host reinstalled": lambda history, node, draw: node.reboot(wiped=True),
    "worker disk full": lambda history, node, draw: _flag(history, node, "full", 500 + draw % 20_000),
    "worker drained": lambda history, node, draw: _drain(history, node, _span(draw)),
    "twin under one name": lambda history, node, draw: _twin(history, node, _span(draw)),
    "worker speaks for another": _lie,
    "socket broken": lambda history, node, draw: _break(node),
    "partition": lambda history, node, draw: _cut(history, node, _span(draw)),
    "one-way loss up": lambda history, node, draw: _storm(history, node, "up_lost", _span(draw)),
    "one-way loss down": lambda history, node, draw: _storm(history, node, "down_lost", _span(draw)),
    "messages late": lambda history, node, draw: _storm(history, node, "slow", _span(draw)),
    "messages doubled": lambda history, node, draw: _storm(history, node, "doubled", _span(draw)),
    "messages shuffled": lambda history, node, draw: _storm(history, node, "shuffled", _span(draw)),
    "wall clock jumps": lambda history, node, draw: setattr(
        history.world, "wall_shift_ms", history.world.wall_shift_ms + (draw % 7_200_000) - 3_600_000
    ),
}
# A worker that is there and cannot start anything. Drawn apart: worlds without them stay as they were.
DISABILITIES: dict[str, Fault] = {
    "worker cannot fork": lambda history, node, draw: _disable(history, node, "childless", draw),
    "supervisor stopped": lambda history, node, draw: _disable(history, node, "stalled", draw),
}
# A machine on which everything fails within a moment. Drawn apart too.
BREAKDOWNS: dict[str, Fault] = {
    "machine fails everything": lambda history, node, draw: _disable(history, node, "broken", draw, 180_000)
}
# A supervisor that dies as a task ends, before it has told anybody. Drawn apart too.
LAST_WORDS: dict[str, Fault] = {
    "supervisor killed with an end untold": lambda history, node, draw: node.supervisor_dies(untold=True)
}
# One of these in some worlds whose hub hardly ever ends otherwise: elsewhere none lives for long enough.
RESTARTS: dict[str, Fault] = {"hub restarted without a worker": _lose_touch}
# What operators do to machines, in some worlds; drawn apart too.
STEERING: dict[str, Fault] = {
    "worker drained until": lambda history, node, draw: _drain_until(history, node, _span(draw)),
    "worker removed": lambda history, node, draw: _remove(history, node),
}
BY_NAME = FAULTS | DISABILITIES | BREAKDOWNS | LAST_WORDS | RESTARTS | STEERING
# The rare ones end much of what goes on: as common as the rest they would leave nothing to go wrong.
WEIGHTS = {"hub restored from a backup": 0.35, "hub cut off from all": 0.3, "twin under one name": 0.5}
HUB_ENDS = (
    "hub killed",
    "hub killed within a turn",
    "commit fails",
    "second hub on the store",
    "hub restored from a backup",
)
# While these are common hardly anything waits for room: there is none, or nobody to use it.
ABSENCES = (
    "hub cut off from all",
    "host rebooted",
    "host reinstalled",
    "supervisor killed",
    "worker drained",
    "twin under one name",
    "partition",
    "one-way loss up",
    "one-way loss down",
)
